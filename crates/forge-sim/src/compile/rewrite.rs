//! Rewrites Metal source to C++ for clang. Threadgroup arrays become references to memory of the executor, unselected
//! kernels are removed, and each kernel gets a function that calls it for one thread. Loops are not unrolled: clang takes
//! half the time, and instrumented code is as fast. Line numbers do not change.

use forge_msl::{
    Buffer, Builtin, DeclError, DeclFault, Scalars, Signature, ThreadgroupDecl, ThreadgroupVariable, edit,
    line_breaks, threadgroup_decls, tokenize,
};
use std::fmt::Write;

/// Index of each launch builtin in the words that the executor passes to a thread.
pub(crate) const BUILTINS: &[(&str, usize)] = &[
    ("thread_position_in_grid", 0),
    ("threadgroup_position_in_grid", 3),
    ("thread_position_in_threadgroup", 6),
    ("threads_per_threadgroup", 9),
    ("dispatch_threads_per_threadgroup", 9),
    ("threadgroups_per_grid", 12),
    ("threads_per_grid", 15),
    ("thread_index_in_threadgroup", 18),
    ("thread_index_in_simdgroup", 19),
    ("simdgroup_index_in_threadgroup", 20),
    ("simdgroups_per_threadgroup", 21),
    ("dispatch_simdgroups_per_threadgroup", 21),
    ("threads_per_simdgroup", 22),
    ("thread_execution_width", 22),
];

/// Number of words that the executor passes to a thread.
pub(crate) const BUILTIN_WORDS: usize = 24;

/// The C++ of `text` and its kernels; with `only`, other kernels are removed.
pub(crate) fn rewrite(text: &str, only: Option<&[&str]>) -> Result<(String, Vec<Signature>), DeclError> {
    let (text, found) = select(&text.replace("#pragma unroll", ""), only)?;
    let tokens = tokenize(&text)?;
    let arrays = threadgroup_decls(&text, &tokens)?;
    let reference = |decl: ThreadgroupDecl<'_>| (decl.range.clone(), references(&text, &decl));
    let mut source = edit(&text, arrays.into_iter().map(reference));
    source.push_str("\n#line 1 \"calls\"\n");
    for kernel in &found {
        write_call(&mut source, kernel)?;
    }
    Ok((source, found))
}

/// `text` without the unselected kernels, and the selected ones.
fn select(text: &str, only: Option<&[&str]>) -> Result<(String, Vec<Signature>), DeclError> {
    let all = Signature::parse_all(text)?;
    let Some(only) = only else { return Ok((text.to_owned(), all)) };
    let dropped = all.into_iter().filter(|kernel| !only.contains(&kernel.name.as_str()));
    let text = edit(text, dropped.map(|kernel| (kernel.range.clone(), line_breaks(&text[kernel.range]))));
    // Removing kernels has moved the ranges.
    let kept = Signature::parse_all(&text)?;
    Ok((text, kept))
}

/// The references that replace a declaration of threadgroup variables.
fn references(text: &str, decl: &ThreadgroupDecl<'_>) -> String {
    let element = decl.element;
    let mut written = String::new();
    for ThreadgroupVariable { name, dimensions } in &decl.variables {
        let end = dimensions.last().unwrap_or(name).end();
        let (id, dimensions, name) = (name.offset, &text[name.end()..end], name.text);
        let _ = write!(
            written,
            "typedef {element} forge_type_{id}{dimensions}; forge_type_{id}& {name} = *(forge_type_{id}*)\
             forge_threadgroup({id}u, sizeof(forge_type_{id}), alignof(forge_type_{id}), \"{name}\"); "
        );
    }
    // Keeps the line breaks of a declaration.
    written.push_str(&line_breaks(&text[decl.range.clone()]));
    written
}

/// Writes the function that calls a kernel for one thread, and the size of its scalars.
fn write_call(source: &mut String, kernel: &Signature) -> Result<(), DeclError> {
    let mut arguments = Vec::new();
    for Buffer { element, written, slot, .. } in &kernel.buffers {
        let access = if *written { "" } else { "const " };
        arguments.push(format!("(device {access}{element}*)pointers[{slot}]"));
    }
    let mut size = "0".to_owned();
    if let Some(Scalars { element, slot, .. }) = &kernel.scalars {
        arguments.push(format!("*(constant {element}*)pointers[{slot}]"));
        size = format!("sizeof(constant {element})");
    }
    for Builtin { element, attribute, line, .. } in &kernel.builtins {
        let Some((_, offset)) = BUILTINS.iter().find(|(known, _)| known == attribute) else {
            let known = BUILTINS.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
            let fault = DeclFault::Builtin { attribute: attribute.clone(), known };
            return Err(DeclError { line: *line, fault });
        };
        arguments.push(format!("forge_builtin<{element}>(words + {offset})"));
    }
    let name = &kernel.name;
    let _ = writeln!(
        source,
        "extern \"C\" __attribute__((disable_sanitizer_instrumentation, visibility(\"default\")))\n\
         void forge_call_{name}(void* const* pointers, const uint* words) {{ {name}({}); }}\n\
         extern \"C\" __attribute__((visibility(\"default\"))) const uint forge_scalars_{name} = {size};",
        arguments.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_parameters_become_references() {
        let text = "kernel void a(uint t [[thread_index_in_threadgroup]]) {\n threadgroup float s[2][4], u[3];\n threadgroup float4 v;\n threadgroup float* p = u;\n}\nkernel void b() {\n}\n";
        let (source, found) = rewrite(text, Some(&["a"])).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(found.len(), 1);
        let lines: Vec<_> = source.lines().collect();
        let id = text.find("s[2]").unwrap_or(0);
        assert!(lines[1].contains(&format!(
            "typedef float forge_type_{id}[2][4]; forge_type_{id}& s = *(forge_type_{id}*)forge_threadgroup({id}u"
        )));
        assert!(lines[1].contains("[3]; ") && lines[1].contains("\"u\""));
        assert!(lines[2].contains("typedef float4 forge_type_"));
        assert_eq!(lines[3], " threadgroup float* p = u;");
        assert!(!source.contains("void b"));
    }
}
