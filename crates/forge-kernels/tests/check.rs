//! Every kind of kernel renders, parses and passes clang's type check, at odd sizes too.

mod common;

use forge_kernels::{assemble, check, render};

#[test]
fn clang_accepts_every_kernel() {
    let Some(clang) = check::find_clang() else {
        panic!(
            "no clang of version 15 or later is installed; `apt-get install clang` or `xcode-select --install`"
        );
    };
    let specs = [common::others(), common::projections(), common::attentions()].concat();
    for (batch, specs) in specs.chunks(64).enumerate() {
        let name = |index: usize| format!("kernel_{batch}_{index}");
        let instances: Result<Vec<_>, _> =
            specs.iter().enumerate().map(|(index, spec)| render(&name(index), spec)).collect();
        let text = assemble(&instances.unwrap_or_else(|error| panic!("{error}")), "");
        if let Err(error) = check::check_text(&clang, &text) {
            let line = |number: usize| text.lines().nth(number).unwrap_or_default();
            let faults = match &error {
                check::CheckError::Rejected(faults) => faults.as_slice(),
                _ => &[],
            };
            let shown = |fault: &check::ClangFault| {
                format!("{fault}\n    {}", line((fault.line as usize).wrapping_sub(1)))
            };
            panic!("{error}\n{}", faults.iter().map(shown).collect::<Vec<_>>().join("\n"));
        }
    }
}

#[test]
fn clang_rejects_what_apple_rejects() {
    let Some(clang) = check::find_clang() else {
        panic!(
            "no clang of version 15 or later is installed; `apt-get install clang` or `xcode-select --install`"
        );
    };
    let body = |statement: &str| {
        format!(
            "#include <metal_stdlib>\nusing namespace metal;\n\
             kernel void f(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) {{\n\
             threadgroup float tile[32]; tile[0] = x[0];\n{statement}\n}}\n"
        )
    };
    let cases = [
        "y[0] = tile[1];",
        "x[0] = 1.0f;",
        "threadgroup float* t = y; t[0] = 1.0f;",
        "float v = x[0] * 2.0; y[0] = v;",
        "y[0] = min(x[0], 1u);",
        "y[0] = double(x[0]);",
        "y[0] = simd_product(x[0]);",
        "y[0] = float4(x[0], x[1]).x;",
        "int unused = 3;",
        "thread float* t = tile; y[0] = t[0];",
        "float4 v = as_type<float4>(x[0]); y[0] = v.x;",
        "simdgroup_matrix<float, 8, 8> m; simdgroup_store(m, x);",
        "y[0] = x[0]",
    ];
    let results = cases.map(|statement| {
        let answer = check::check_text(&clang, &body(statement));
        // Wording differs between versions of clang; the line and the verdict do not.
        let lines = match answer {
            Ok(()) => "accepted".to_owned(),
            Err(check::CheckError::Rejected(faults)) => format!("rejected on line {}", faults[0].line),
            Err(error) => error.to_string(),
        };
        format!("{statement}: {lines}")
    });
    insta::assert_snapshot!(results.join("\n"), @r"
    y[0] = tile[1];: accepted
    x[0] = 1.0f;: rejected on line 5
    threadgroup float* t = y; t[0] = 1.0f;: rejected on line 5
    float v = x[0] * 2.0; y[0] = v;: rejected on line 5
    y[0] = min(x[0], 1u);: rejected on line 5
    y[0] = double(x[0]);: rejected on line 5
    y[0] = simd_product(x[0]);: rejected on line 5
    y[0] = float4(x[0], x[1]).x;: rejected on line 5
    int unused = 3;: rejected on line 5
    thread float* t = tile; y[0] = t[0];: rejected on line 5
    float4 v = as_type<float4>(x[0]); y[0] = v.x;: rejected on line 5
    simdgroup_matrix<float, 8, 8> m; simdgroup_store(m, x);: rejected on line 5
    y[0] = x[0]: rejected on line 5
    ");
}

#[test]
fn reports_a_missing_clang() {
    let answer = check::check_text("/nowhere/clang".as_ref(), "");
    assert!(matches!(answer, Err(check::CheckError::Run { .. })), "{answer:?}");
}
