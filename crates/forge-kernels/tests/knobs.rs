//! Kernel layouts of real shapes on every chip: their invariants hold and they render.

mod common;

use std::collections::BTreeSet;

use forge_kernels::spec::{Knobs, LinearKernel, LinearLayout, Operand, PerHeadLayout, Rows};
use forge_kernels::{Family, Spec, render};
use forge_ops::{Activation, DeferredNorm, Epilogue, Format, Gating, Linear, Squares};

/// Family and GPU cores.
const CHIPS: [(&str, Family, usize); 7] = [
    ("M1", Family::Apple7, 7),
    ("M1 Ultra", Family::Apple7, 64),
    ("M2 Pro", Family::Apple8, 19),
    ("M3 Ultra", Family::Apple9, 80),
    ("M4 Max", Family::Apple9, 40),
    ("M5", Family::Apple10, 10),
    ("M5 Max", Family::Apple10, 40),
];

/// Outputs and inputs of models with 0.5B, 1B, 8B and 70B parameters, and of an unusual shape.
const SHAPES: [(usize, usize); 14] = [
    (1152, 896),
    (896, 4864),
    (9728, 896),
    (151_936, 896),
    (3072, 2048),
    (2048, 8192),
    (16_384, 2048),
    (6144, 4096),
    (4096, 14_336),
    (28_672, 4096),
    (8192, 28_672),
    (57_344, 8192),
    (14, 30),
    (2, 5),
];

fn threadgroups(linear: &LinearKernel) -> usize {
    let Knobs { rows_per_simdgroup, simdgroups, split, .. } = linear.layout.knobs;
    linear.op.outputs.div_ceil(rows_per_simdgroup * simdgroups / split)
}

#[test]
fn knobs_render_and_keep_cores_busy() {
    // Chips agree about most shapes; each spec is rendered once.
    let mut seen = BTreeSet::new();
    let mut check = |linear: &LinearKernel| {
        let what = format!("{linear:?}");
        if !seen.insert(what.clone()) {
            return;
        }
        let instance = render("layer_kernel", &Spec::Linear(*linear));
        let decl = instance.unwrap_or_else(|error| panic!("{what}: {error}")).decl;
        assert!(!decl.is_crowded(), "{what} takes {} bytes", decl.threadgroup_bytes);
        assert!(decl.threads <= 512, "{what} has {} threads", decl.threads);
    };
    let formats = ["f32", "f16", "q8_0", "q4_0", "affine4_128"];
    for format in formats.map(|name| Format::from_name(name).unwrap_or_else(|| panic!("{name}"))) {
        for ((chip, family, cores), (outputs, inputs)) in
            CHIPS.into_iter().flat_map(|chip| SHAPES.map(|shape| (chip, shape)))
        {
            let make = |rows, epilogue| {
                let writes_partials = matches!(epilogue, Epilogue::AddSquares(_) | Epilogue::Best { .. });
                let knobs =
                    Knobs::for_chip(family, cores, rows, format, [outputs, inputs], writes_partials, false);
                let plain = common::linear(rows, format, outputs, inputs, epilogue);
                plain.with_layout(|layout| LinearLayout { knobs, operand: Operand::F16, ..layout })
            };
            check(&make(Rows::One, Epilogue::Store));
            check(&make(Rows::Few, Epilogue::Gate(Gating::Plain(Activation::Silu))));
            check(&make(Rows::Many, Epilogue::Gate(Gating::Plain(Activation::Silu))));
            let norm = Some(DeferredNorm { partials: 128, epsilon: 1e-6 });
            check(
                &make(Rows::One, Epilogue::Gate(Gating::Plain(Activation::Silu)))
                    .with_op(|op| Linear { norm, ..op }),
            );
            check(&make(Rows::One, Epilogue::Best { candidates: 1 << 16 }));

            let mut leaving = make(Rows::One, Epilogue::AddSquares(Squares { partials: 0, gain: true }));
            let partials = threadgroups(&leaving);
            leaving.op.epilogue = Epilogue::AddSquares(Squares { partials, gain: true });
            check(&leaving);
            assert!(partials <= 512 || outputs > 16_384, "{chip}: {partials} partial sums of {leaving:?}");
            let enough = 2 * cores;
            assert!(partials >= enough || outputs < 8 * enough, "{chip}: {partials} groups of {leaving:?}");
        }
    }
}

/// The table as it is, reviewed by eye.
#[test]
fn knobs_of_real_shapes() {
    let mut lines = Vec::new();
    for (chip, family, cores) in [CHIPS[0], CHIPS[4], CHIPS[5]] {
        for name in ["f16", "q8_0", "q4_0"] {
            let format = Format::from_name(name).unwrap_or(Format::F32);
            for (outputs, inputs, writes_partials) in
                [(3072, 2048, false), (2048, 8192, true), (16_384, 2048, false), (4096, 14_336, true)]
            {
                let knobs = |rows| {
                    Knobs::for_chip(family, cores, rows, format, [outputs, inputs], writes_partials, false)
                };
                let (one, few, many) = (knobs(Rows::One), knobs(Rows::Few), knobs(Rows::Many));
                lines.push(format!(
                    "{chip:6} {name:4} {outputs:5} x {inputs:5}: one {} rows, {:2} simdgroups, split {}, {} ahead; \
                     few {:2} rows, {} simdgroups, split {}; many {} x {}, split {}",
                    one.rows_per_simdgroup,
                    one.simdgroups,
                    one.split,
                    one.packets - 1,
                    few.rows_per_simdgroup,
                    few.simdgroups,
                    few.split,
                    many.tile_rows,
                    many.tile_outputs,
                    many.split
                ));
            }
        }
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("knobs", lines.join("\n"));
    });
}

/// DeepSeek V3 has enough heads for whole rows; V2 Lite has 16, and shares columns and rows among threadgroups on large chips.
#[test]
fn per_head_matrices_keep_cores_busy() {
    let each = |cores, heads, transposed| {
        PerHeadLayout::each_for(cores, Format::Q4_0, [heads, 128, 512], transposed)
    };
    let found =
        [10, 40, 80].map(|cores| [each(cores, 128, true), each(cores, 16, true), each(cores, 16, false)]);
    assert_eq!(found, [[16, 8, 4], [16, 4, 4], [8, 4, 2]]);
    let tiny = PerHeadLayout::each_for(40, Format::F32, [2, 6, 24], false);
    assert_eq!([tiny, PerHeadLayout::each_for(40, Format::F32, [2, 6, 4], true)], [1, 1]);
    let together = ["f32", "f16", "q8_0", "q4_0"].map(|name| {
        let format = Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
        [true, false].map(|transposed| PerHeadLayout::together(format, transposed))
    });
    assert_eq!(together, [[4, 4], [4, 4], [4, 4], [2, 4]]);
}
