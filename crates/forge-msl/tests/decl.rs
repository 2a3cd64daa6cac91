//! The signature parser: round trips, and the line of every syntax error.

use forge_msl::{Expr, KernelDecl};

/// A valid kernel, in which tests change one thing.
const RIGHT: &str = "\
constant float table[2] = {1.0f, 2.0f};

struct ScaleArgs {
    uint rows;
    uint width;  // of a row
};

inline float twice(float x) { return 2.0f * x; }

// Scales rows.
// grid: ceil(rows * width / 64), rows + 2 * (width + 1), 3
[[max_total_threads_per_threadgroup(64)]]
kernel void scale(
    device const float4* x [[buffer(0)]],
    device half* y [[buffer(1)]],
    constant ScaleArgs& args [[buffer(2)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[8 * (4 + 1)];
    threadgroup uint pair[2][3];
    threadgroup half3 odd;
    threadgroup float* pointer = tile;
    if (args.rows > 0u) { y[lane] = half(twice(x[0][0])); }
}
";

fn parsed(text: &str) -> String {
    KernelDecl::parse(text).map_or_else(|error| error.to_string(), |decl| decl.to_string())
}

/// The error after replacing the first text in `RIGHT` with the second.
fn changed(changes: &[(&str, &str)]) -> String {
    let mut text = RIGHT.to_owned();
    for (before, after) in changes {
        assert!(text.contains(before), "{before} is not in the text");
        text = text.replacen(before, after, 1);
    }
    parsed(&text)
}

#[test]
fn parses_signatures() {
    insta::assert_snapshot!(parsed(RIGHT), @r"
    scale: [(rows * width).div_ceil(64), rows + 2 * (width + 1), 3] groups of 64 threads, 208 bytes each
       0 read    float4 x
       1 written half y
       2 scalars rows, width
    ");
    let decl = KernelDecl::parse(RIGHT).unwrap_or_else(|error| panic!("{error}"));
    let groups =
        |rows, width| decl.grid.each_ref().map(|expr| expr.eval(&[("rows", rows), ("width", width)]));
    assert_eq!(groups(10, 13), [Some(3), Some(38), Some(3)]);
    assert_eq!(groups(1 << 20, 1 << 20), [None, Some((1 << 20) + 2 * ((1 << 20) + 1)), Some(3)]);
    assert_eq!(decl.grid[0].eval(&[("rows", 1)]), None);
    let builtins = decl
        .builtins
        .iter()
        .map(|builtin| format!("{} {}: {}", builtin.element, builtin.name, builtin.attribute));
    insta::assert_snapshot!(builtins.collect::<Vec<_>>().join("\n"), @r"
    uint2 group: threadgroup_position_in_grid
    uint lane: thread_index_in_simdgroup
    ");
}

#[test]
fn parses_signatures_in_other_layouts() {
    let same = [
        vec![("device const float4* x", "const device float4* x")],
        vec![("    uint2 group", "    /* where */ uint2 group")],
        vec![(
            "[[max_total_threads_per_threadgroup(64)]]",
            "[[max_total_threads_per_threadgroup(0x40)]] // wide",
        )],
        vec![("// grid: ceil", "//grid:ceil")],
    ];
    for changes in &same {
        assert_eq!(changed(changes), parsed(RIGHT), "{changes:?}");
    }
}

#[test]
fn parses_files_with_many_kernels() {
    let second =
        RIGHT.replace("ScaleArgs", "OtherArgs").replace("void scale", "void other").replace("table", "more");
    let names = KernelDecl::parse_all(&format!("{RIGHT}\n{second}")).map(|all| {
        all.into_iter().map(|decl| format!("{} on line {}", decl.name, decl.line)).collect::<Vec<_>>()
    });
    assert_eq!(names, Ok(vec!["scale on line 13".to_owned(), "other on line 38".to_owned()]));
    insta::assert_snapshot!(parsed(&format!("{RIGHT}\n{second}")), @r"line 38: `other` is a second kernel: expected one");
}

#[test]
fn grid_comments_become_rust_expressions() {
    let cases = [
        ("rows", "rows"),
        ("ceil(4096 / 8)", "512"),
        ("2 * 3 + 4", "10"),
        ("2 * rows + 4 * width", "2 * rows + 4 * width"),
        ("(rows + 1) * (width + 2)", "(rows + 1) * (width + 2)"),
        ("rows * (width * 2)", "rows * (width * 2)"),
        ("ceil((rows + 1) / (width + 2))", "(rows + 1).div_ceil(width + 2)"),
        ("ceil(64 / rows) * 2", "64_u32.div_ceil(rows) * 2"),
    ];
    for (grid, rust) in cases {
        let text = RIGHT.replace("ceil(rows * width / 64), rows + 2 * (width + 1), 3", grid);
        let decl = KernelDecl::parse(&text).unwrap_or_else(|error| panic!("{grid}: {error}"));
        assert_eq!(decl.grid[0].to_string(), rust);
        assert_eq!(decl.grid[1..], [Expr::Literal(1), Expr::Literal(1)]);
    }
}

#[test]
fn faults_have_a_line_and_a_hint() {
    let buffers: String = (0..31).map(|slot| format!("device float* b{slot} [[buffer({slot})]], ")).collect();
    let cases = [
        parsed("struct Nothing {\n    uint rows;\n};\n"),
        changed(&[("buffer(1)", "buffer(2)")]),
        changed(&[("buffer(2)", "buffer(7)")]),
        changed(&[
            ("device half* y [[buffer(1)]],\n", ""),
            ("[[buffer(2)]],", "[[buffer(1)]], device half* y [[buffer(2)]],"),
        ]),
        changed(&[("    constant ScaleArgs& args [[buffer(2)]],\n", "")]),
        changed(&[
            ("buffer(2)", "buffer(31)"),
            ("device const float4* x [[buffer(0)]],\n    device half* y [[buffer(1)]],", &buffers),
        ]),
        changed(&[("constant ScaleArgs&", "constant OtherArgs&")]),
        changed(&[("constant ScaleArgs&", "constant ScaleArgs*")]),
        changed(&[("device half* y", "threadgroup half* y")]),
        changed(&[("    uint width;", "    float width;")]),
        changed(&[("float tile[8 * (4 + 1)]", "float tile[8193]")]),
        changed(&[("float tile[8 * (4 + 1)]", "float tile[args.rows]")]),
        changed(&[("float tile[8 * (4 + 1)]", "simdgroup_matrix tile[8]")]),
        changed(&[("// grid", "// geometry")]),
        changed(&[("// grid: ceil(rows * width / 64)", "// grid: ceil(rows / 0)")]),
        changed(&[("// grid: ceil(rows * width / 64)", "// grid: 65536 * 65536")]),
        changed(&[("// grid: ceil(rows * width / 64)", "// grid: columns")]),
        changed(&[("// grid: ceil(rows * width / 64)", "// grid: rows / 2")]),
        changed(&[("), 3\n", "), 3, 4\n")]),
        changed(&[("[[max_total_threads_per_threadgroup(64)]]\n", "")]),
        changed(&[("group(64)]]", "group(48)]]")]),
        changed(&[("group(64)]]", "group(2048)]]")]),
        changed(&[("thread_index_in_simdgroup", "thread_position_in_grid")]),
        changed(&[("uint lane", "ushort lane")]),
        changed(&[("uint lane [[thread_index_in_simdgroup]]", "uint lane")]),
        changed(&[("kernel void scale", "kernel float scale")]),
        changed(&[("half(twice(x[0][0]));", "half(twice(x[0][0]);")]),
        changed(&[("// of a row", "/* of a row")]),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    line 1: no kernel found
    line 15: buffer `y` is in slot 2, but the next slot is 1
    line 16: buffer `args` is in slot 7, but the next slot is 2
    line 15: buffer `y` comes after the scalars: the scalars' struct uses the last slot
    line 13: kernel `scale` has no scalars: add a last parameter `constant Args& args`
    line 13: kernel `scale` has 32 slots; the maximum is 31
    line 16: kernel `scale` uses struct `OtherArgs`, which is not declared above it
    line 16: expected `&`, found `*`
    line 15: expected `device`, `constant` or a launch builtin, found `threadgroup`
    line 5: scalar `width` has type `float`: expected `uint`
    line 13: kernel `scale` has 32832 bytes of threadgroup memory; the maximum is 32768
    line 19: the size of threadgroup array `tile` is not a number
    line 19: threadgroup array `tile` has elements of `simdgroup_matrix`, whose size is unknown
    line 13: kernel `scale` has no grid: put `// grid: <x>, <y>, <z>` directly above it
    line 11: the grid divides by zero, or exceeds 32 bits
    line 11: the grid divides by zero, or exceeds 32 bits
    line 11: the grid names `columns`, which is not a scalar of kernel `scale`
    line 11: expected `+`, `*` or `,`, found `/`
    line 11: the grid has 4 dimensions; it may have one to three
    line 12: kernel `scale` has no number of threads: put [[max_total_threads_per_threadgroup(N)]] before it
    line 12: kernel `scale` has 48 threads; it must be a multiple of 32, at most 1024
    line 12: kernel `scale` has 2048 threads; it must be a multiple of 32, at most 1024
    line 18: unsupported launch builtin `thread_position_in_grid`: expected one of threadgroup_position_in_grid, thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup
    line 18: builtin `lane` has type `ushort`: `thread_index_in_simdgroup` is a uint
    line 18: parameter `lane` has no attribute: add [[buffer(N)]] or a launch builtin
    line 13: expected `void`, found `float`
    line 18: unclosed comment, bracket or parenthesis
    line 5: unclosed comment, bracket or parenthesis
    ");
}
