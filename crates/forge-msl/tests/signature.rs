//! Signatures, threadgroup variables and functions of a source.

use forge_msl::{Builtin, Scalars, Signature, called_names, functions, threadgroup_decls, tokenize};

const TEXT: &str = "\
#include <metal_stdlib>
struct Args { uint n; float a[2]; };
template <class T> inline T twice(T x) { return x + x; }
constant float table[2] = {1.0f, 2.0f};
[[max_total_threads_per_threadgroup(40)]]
kernel void first(
    device const uint4* codes [[buffer(0)]], device half* y [[buffer(1)]],  // a comment
    constant Args& args [[buffer(2)]],
    uint3 group [[thread_position_in_grid]]) {
    threadgroup float tile[2][4 * 8], sum;
    threadgroup float* pointer = tile[0];
    if (group.x < args.n) { threadgroup half4 v; y[0] = half(twice(codes[0].x)); }
}
kernel void second() {}
";

fn signatures() -> Vec<Signature> {
    Signature::parse_all(TEXT).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_signature_has_what_is_written() {
    let [first, second] = &signatures()[..] else { panic!("two kernels") };
    assert_eq!((first.name.as_str(), first.line, first.threads), ("first", 6, Some(40)));
    let buffers = first.buffers.iter().map(|buffer| {
        (buffer.name.as_str(), buffer.element.as_str(), buffer.written, buffer.slot, buffer.alignment())
    });
    assert_eq!(buffers.collect::<Vec<_>>(), [("codes", "uint4", false, 0, 16), ("y", "half", true, 1, 2)]);
    let scalars = Scalars { name: "args".to_owned(), element: "Args".to_owned(), slot: 2, line: 8 };
    assert_eq!(first.scalars, Some(scalars));
    let [name, element, attribute] = ["group", "uint3", "thread_position_in_grid"].map(str::to_owned);
    assert_eq!(first.builtins, [Builtin { name, element, attribute, line: 9 }]);
    assert_eq!((second.threads, second.buffers.len(), &second.scalars), (None, 0, &None));
}

#[test]
fn ranges_include_attributes_and_braces() {
    let text = signatures().into_iter().map(|kernel| (&TEXT[kernel.range], &TEXT[kernel.body]));
    let [(first, first_body), second] = text.collect::<Vec<_>>()[..] else { panic!("two kernels") };
    assert!(first.starts_with("[[max_total") && first.ends_with("codes[0].x)); }\n}"), "{first}");
    assert!(first_body.starts_with("{\n    threadgroup") && first.ends_with(first_body), "{first_body}");
    assert_eq!(second, ("kernel void second() {}", "{}"));
}

#[test]
fn threadgroup_variables_are_not_pointers() {
    let tokens = tokenize(TEXT).unwrap();
    let decls = threadgroup_decls(TEXT, &tokens).unwrap();
    let shown = decls.iter().map(|decl| {
        let variables = decl.variables.iter();
        let variables = variables.map(|variable| (variable.name.text, variable.dimensions.len()));
        (decl.line, &TEXT[decl.range.clone()], decl.element, variables.collect())
    });
    let expected = [
        (10, "threadgroup float tile[2][4 * 8], sum;", "float", vec![("tile", 8), ("sum", 0)]),
        (12, "threadgroup half4 v;", "half4", vec![("v", 0)]),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    let hidden = "#define TILE threadgroup float tile[8];";
    let error = threadgroup_decls(hidden, &tokenize(hidden).unwrap()).err().map(|error| error.to_string());
    let message = "line 1: unsupported threadgroup memory in a macro: declare it outside macros";
    assert_eq!(error.as_deref(), Some(message));
}

#[test]
fn functions_are_defined_and_called() {
    let tokens = tokenize(TEXT).unwrap();
    let defined: Vec<_> = functions(&tokens).into_iter().map(|it| (it.name, &TEXT[it.body])).collect();
    assert_eq!(defined[0], ("twice", "{ return x + x; }"));
    assert_eq!(defined[1..].iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["first", "second"]);
    let called = called_names(&tokens);
    assert!(called.contains("twice") && called.contains("half") && !called.contains("table"), "{called:?}");
}
