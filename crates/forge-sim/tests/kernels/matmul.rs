//! Matmuls and related kernels.

use crate::cases::{Case, Launch, rows_for};
use forge_kernels::spec::{Kernel, Knobs, LinearKernel, LinearLayout, Operand, Rows};
use forge_kernels::{Family, Spec};
use forge_ops::{ArgmaxCombine, DeferredNorm, Embed, Epilogue, Format, Linear, Quantize, Squares};
use forge_oracle::matmul::{SWIGLU, plain};

pub(crate) fn project(rows: Rows, format: Format, outputs: usize, inputs: usize, epilogue: Epilogue) -> Case {
    let knobs = Knobs::for_chip(Family::Apple9, 10, rows, format, [outputs, inputs], false, false);
    let spec = Spec::Linear(Kernel {
        op: Linear { bias: outputs == 50, ..plain(format, outputs, inputs, epilogue) },
        layout: LinearLayout { rows, operand: Operand::F32, knobs, quantizes: false },
    });
    Case { spec, launches: rows_for(rows) }
}

/// A projection of one row whose columns are split between two simdgroups.
pub(crate) fn shared(format: Format, epilogue: Epilogue) -> Case {
    let mut case = project(Rows::One, format, 50, 96, epilogue);
    if let Spec::Linear(project) = &mut case.spec {
        project.layout.knobs = Knobs { simdgroups: 4, split: 2, ..project.layout.knobs };
    }
    case
}

/// Special cases of projections and related kernels, at sizes that need each of their bounds.
pub(crate) fn mutated_projections() -> Vec<Case> {
    let knobs = |rows_per_simdgroup, simdgroups, split, packets| {
        let (tile_rows, tile_outputs) = (16, 16);
        Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows, tile_outputs, mma: false }
    };
    let norm = |partials| Some(DeferredNorm { partials, epsilon: 1e-5 });
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let stored = |name: &str| Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
    let kernel = |rows, format, outputs, inputs, epilogue| match project(
        rows,
        stored(format),
        outputs,
        inputs,
        epilogue,
    ) {
        Case { spec: Spec::Linear(project), .. } => project,
        case => panic!("{:?}", case.spec),
    };
    let one = |format, outputs, inputs, epilogue| kernel(Rows::One, format, outputs, inputs, epilogue);
    let few = |format, outputs, inputs, epilogue| kernel(Rows::Few, format, outputs, inputs, epilogue);
    let many = |format, outputs, inputs, epilogue| kernel(Rows::Many, format, outputs, inputs, epilogue);
    let projects = [
        one("affine4", 14, 1300, SWIGLU)
            .with_op(|op| Linear { norm: norm(12), ..op })
            .with_knobs(knobs(4, 2, 1, 2)),
        one("q8_0", 7, 50, Epilogue::Store)
            .with_op(|op| Linear { norm: norm(9), bias: true, ..op })
            .with_knobs(knobs(2, 2, 1, 1)),
        one("affine8_32", 27, 1040, squares(6, true)).with_knobs(knobs(4, 4, 2, 2)),
        one("f16", 21, 31, Epilogue::Best { candidates: 1 << 16 })
            .with_op(|op| Linear { norm: norm(140), ..op })
            .with_knobs(knobs(2, 4, 1, 1)),
        few("affine8_32", 13, 35, Epilogue::Add).with_layout(|layout| LinearLayout {
            knobs: knobs(8, 2, 1, 1),
            operand: Operand::Ranged,
            ..layout
        }),
        few("f32", 38, 64, SWIGLU).with_op(|op| Linear { bias: true, ..op }).with_knobs(knobs(16, 2, 2, 1)),
        many("affine4_32", 22, 66, SWIGLU).with_layout(|layout| LinearLayout {
            knobs: knobs(1, 4, 2, 1),
            operand: Operand::F16,
            ..layout
        }),
        many("q4_0", 22, 66, SWIGLU).with_layout(|layout| LinearLayout {
            knobs: knobs(1, 4, 2, 1),
            operand: Operand::F16Weights,
            ..layout
        }),
        many("bf16", 50, 30, Epilogue::Add).with_layout(|layout| LinearLayout {
            knobs: Knobs { tile_rows: 32, ..knobs(1, 1, 1, 1) },
            operand: Operand::F16Weights,
            ..layout
        }),
        many("q8_0", 50, 32, Epilogue::Store).with_layout(|layout| LinearLayout {
            knobs: Knobs { tile_rows: 64, tile_outputs: 64, ..knobs(1, 1, 1, 1) },
            operand: Operand::F16,
            ..layout
        }),
    ];
    let launches = |rows| match rows {
        Rows::One => vec![Launch::rows(1, 0)],
        Rows::Two | Rows::Four | Rows::Eight | Rows::Sixteen => {
            unreachable!("compared with one row: projections/batch.rs")
        }
        Rows::Few => [1, 8, 11].map(|rows| Launch::rows(rows, rows - 1)).to_vec(),
        Rows::Many => [17, 70].map(|rows| Launch::rows(rows, rows - 1)).to_vec(),
    };
    let case =
        |project: LinearKernel| Case { launches: launches(project.layout.rows), spec: Spec::Linear(project) };
    let embed = |width, squares| {
        let format = stored("affine4");
        Case {
            spec: Spec::Embed(Embed { format, vocabulary: 40, width, scale: 2.5, adds: false, squares }),
            launches: vec![Launch::rows(1, 0)],
        }
    };
    let mut cases: Vec<Case> = projects.into_iter().map(case).collect();
    cases.push(embed(1060, Some(Squares { partials: 3, gain: true })));
    cases.push(embed(33, Some(Squares { partials: 2, gain: false })));
    cases.push(Case {
        spec: Spec::ArgmaxCombine(ArgmaxCombine { candidates: 300 }),
        launches: vec![Launch::rows(2, 1)],
    });
    for (width, gain, parts, pitch) in [(300, false, 0, None), (130, true, 2, Some(141))] {
        cases.push(Case {
            spec: Spec::Quantize(Quantize { width, gain, parts, pitch }),
            launches: vec![Launch::rows(6, 5)],
        });
    }
    cases
}

/// Formats of every kind: every number of bits, each size of groups and both kinds of scales among them.
pub(crate) fn formats() -> Vec<Format> {
    let affine =
        ["affine8_bf16", "affine6_32", "affine5_128", "affine4", "affine4_32_bf16", "affine3", "affine2_128"];
    let plain = [
        "f32", "f16", "bf16", "fp8", "q8_0", "q5_0", "q4_0", "iq4_nl", "iq4_xs", "q6_k", "q5_k", "q4_k",
        "q3_k", "q2_k",
    ];
    let named = |name: &str| Format::from_name(name).unwrap_or_else(|| panic!("{name}"));
    plain.into_iter().chain(affine).chain(["mxfp4", "nvfp4"]).map(named).collect()
}
