//! Projections, embedding and token selection in the kernel checker, against plain f64.

mod batch;
mod definition;
mod embedding;
mod per_head_linear;
#[path = "../plain/mod.rs"]
mod plain;

use crate::batch::{check_batches, check_quantized_outputs};
use crate::definition::check;
use forge_kernels::spec::{Kernel, Knobs, LinearKernel, LinearLayout, Operand, Rows};
use forge_kernels::{Family, Spec};
use forge_ops::{
    Activation, ArgmaxCombine, DeferredNorm, Epilogue, Format, Gating, InlineNorm, Linear, Squares, UnaryOp,
};
use plain::{Bench, Input, Random};

const GATE: Epilogue = Epilogue::Gate(Gating::Plain(Activation::Silu));

/// Formats of every kind: every number of bits, each size of groups and both kinds of scales among them.
pub(crate) fn formats() -> Vec<Format> {
    let plain = [
        "f32", "f16", "bf16", "fp8", "q8_0", "q5_0", "q4_0", "iq4_nl", "iq4_xs", "q6_k", "q5_k", "q4_k",
        "q3_k", "q2_k",
    ];
    let affine =
        ["affine8_32_bf16", "affine6_128", "affine5", "affine4_bf16", "affine4_128", "affine3", "affine2_32"];
    plain.into_iter().chain(affine).chain(["mxfp4", "nvfp4"]).map(named).collect()
}

fn named(name: &str) -> Format {
    Format::from_name(name).unwrap_or_else(|| panic!("{name}"))
}

fn project(rows: Rows, format: Format, outputs: usize, inputs: usize, epilogue: Epilogue) -> LinearKernel {
    Kernel {
        op: Linear {
            format,
            outputs,
            inputs,
            norm: None,
            own_norm: None,
            bias: false,
            unary: None,
            epilogue,
            chooses: false,
        },
        layout: LinearLayout {
            rows,
            operand: Operand::F32,
            knobs: Knobs::for_chip(Family::Apple9, 10, rows, format, [outputs, inputs], false, false),
            quantizes: false,
        },
    }
}

pub(crate) fn knobs(rows_per_simdgroup: usize, simdgroups: usize, split: usize, packets: usize) -> Knobs {
    Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows: 1, tile_outputs: 1, codes: false }
}

#[test]
fn gemv_matches_the_reference() {
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let norm = |partials| Some(DeferredNorm { partials, epsilon: 1e-5 });
    let own = |gain| Some(InlineNorm { gain, epsilon: 1e-5, pitch: None });
    // x is the first columns of wider rows.
    let of_columns = |pitch| Some(InlineNorm { gain: true, epsilon: 1e-5, pitch: Some(pitch) });
    let (scale, gelu) = (Some(UnaryOp::Scale(0.22)), Some(UnaryOp::Activate(Activation::GeluTanh)));
    let mut all = Vec::new();
    for format in formats() {
        let one = |outputs, inputs, epilogue| project(Rows::One, format, outputs, inputs, epilogue);
        all.extend([
            one(18, 1100, Epilogue::Store)
                .with_op(|op| Linear { norm: norm(128), ..op })
                .with_knobs(knobs(4, 2, 1, 2)),
            one(18, 1100, Epilogue::Store)
                .with_op(|op| Linear { own_norm: own(true), ..op })
                .with_knobs(knobs(4, 2, 1, 2)),
            one(21, 70, Epilogue::Store)
                .with_op(|op| Linear { own_norm: own(false), bias: true, ..op })
                .with_knobs(knobs(2, 4, 2, 1)),
            one(22, 90, GATE)
                .with_op(|op| Linear { own_norm: of_columns(97), ..op })
                .with_knobs(knobs(4, 4, 2, 1)),
            one(22, 70, GATE)
                .with_op(|op| Linear { norm: norm(30), bias: true, ..op })
                .with_knobs(knobs(2, 4, 2, 1)),
            one(26, 64, GATE)
                .with_op(|op| Linear { norm: norm(52), unary: Some(UnaryOp::Softcap(0.5)), ..op })
                .with_knobs(knobs(4, 2, 1, 1)),
            one(22, 96, squares(11, true)).with_knobs(knobs(2, 4, 1, 1)),
            one(64, 40, squares(2, true)).with_knobs(knobs(4, 8, 1, 1)),
            one(37, 2100, squares(5, false))
                .with_op(|op| Linear { bias: true, ..op })
                .with_knobs(knobs(4, 4, 2, 2)),
            one(150, 32, Epilogue::Best { candidates: 1 << 16 })
                .with_op(|op| Linear { norm: norm(200), unary: Some(UnaryOp::Softcap(3.0)), ..op })
                .with_knobs(knobs(8, 4, 1, 1)),
            one(5, 50, Epilogue::Add).with_op(|op| Linear { bias: true, ..op }).with_knobs(knobs(1, 2, 1, 1)),
            one(6, 50, Epilogue::Add)
                .with_op(|op| Linear { unary: scale, bias: true, ..op })
                .with_knobs(knobs(2, 2, 1, 1)),
            one(22, 96, squares(11, true))
                .with_op(|op| Linear { norm: norm(8), unary: scale, ..op })
                .with_knobs(knobs(2, 4, 1, 1)),
            one(7, 50, Epilogue::Store)
                .with_op(|op| Linear { unary: gelu, bias: true, ..op })
                .with_knobs(knobs(2, 2, 1, 1)),
            one(6, 33, Epilogue::Gate(Gating::Plain(Activation::GeluTanh))).with_knobs(knobs(2, 2, 1, 1)),
            one(7, 50, Epilogue::Multiply { of: 12 })
                .with_op(|op| Linear { unary: scale, bias: true, ..op })
                .with_knobs(knobs(2, 2, 1, 1)),
            one(22, 96, Epilogue::Multiply { of: 40 })
                .with_op(|op| Linear { norm: norm(8), bias: true, ..op })
                .with_knobs(knobs(2, 4, 2, 1)),
        ]);
    }
    check(&all, &[1]);
    check_batches(&all);
}

#[test]
fn gemv_with_quantized_activations_matches_the_reference() {
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let own = |gain| Some(InlineNorm { gain, epsilon: 1e-5, pitch: None });
    // x is the first columns of wider rows.
    let of_columns = |pitch| Some(InlineNorm { gain: true, epsilon: 1e-5, pitch: Some(pitch) });
    let norm = Some(DeferredNorm { partials: 128, epsilon: 1e-5 });
    let codes =
        |rows, simdgroups, split, packets| Knobs { codes: true, ..knobs(rows, simdgroups, split, packets) };
    let mut all = Vec::new();
    let stored = ["q4_0", "q8_0", "affine4_bf16", "affine4_128", "affine8_32_bf16", "affine8", "q4_k"];
    for format in stored.map(named) {
        let one = |outputs, inputs, epilogue| project(Rows::One, format, outputs, inputs, epilogue);
        all.extend([
            one(16, 128, Epilogue::Store).with_knobs(codes(16, 1, 1, 1)),
            one(50, 640, Epilogue::Store).with_op(|op| Linear { norm, ..op }).with_knobs(codes(16, 2, 1, 2)),
            one(64, 640, GATE)
                .with_op(|op| Linear { own_norm: own(true), bias: true, ..op })
                .with_knobs(codes(32, 2, 2, 2)),
            one(37, 384, Epilogue::Add)
                .with_op(|op| Linear { own_norm: own(false), ..op })
                .with_knobs(codes(16, 8, 8, 1)),
            one(70, 896, squares(3, true))
                .with_op(|op| Linear { bias: true, ..op })
                .with_knobs(codes(16, 4, 2, 2)),
            one(150, 512, Epilogue::Best { candidates: 1 << 16 })
                .with_op(|op| Linear { norm, unary: Some(UnaryOp::Softcap(3.0)), ..op })
                .with_knobs(codes(16, 8, 4, 1)),
            one(33, 256, Epilogue::Multiply { of: 60 }).with_knobs(codes(32, 1, 1, 1)),
            one(18, 272, Epilogue::Store)
                .with_op(|op| Linear { own_norm: of_columns(336), ..op })
                .with_knobs(codes(16, 4, 2, 2)),
            one(18, 50, Epilogue::Store).with_knobs(codes(16, 2, 1, 1)),
        ]);
    }
    check(&all, &[1]);
    check_batches(&all);
}

#[test]
fn batched_gemv_writes_quantized_rows() {
    let squares = |gain| Epilogue::AddSquares(Squares { partials: 16, gain });
    let codes = |rows, simdgroups, split| Knobs { codes: true, ..knobs(rows, simdgroups, split, 1) };
    let one = |outputs, epilogue| project(Rows::One, Format::Q4_0, outputs, 200, epilogue);
    check_quantized_outputs(&[
        one(256, squares(true)).with_knobs(codes(16, 4, 2)),
        one(128, squares(false)).with_knobs(codes(32, 1, 1)),
        one(512, GATE).with_knobs(codes(16, 2, 2)),
    ]);
}

#[test]
fn small_batch_matmul_matches_the_reference() {
    let mut all = Vec::new();
    for format in formats() {
        let few = |outputs, inputs, epilogue| project(Rows::Few, format, outputs, inputs, epilogue);
        all.extend([
            few(18, 70, Epilogue::Store)
                .with_op(|op| Linear { bias: true, ..op })
                .with_knobs(knobs(8, 2, 1, 1)),
            few(22, 96, GATE).with_op(|op| Linear { unary: Some(UnaryOp::Softcap(0.5)), ..op }).with_layout(
                |layout| LinearLayout { knobs: knobs(16, 2, 2, 1), operand: Operand::Ranged, ..layout },
            ),
            few(13, 130, Epilogue::Add)
                .with_op(|op| Linear { unary: Some(UnaryOp::Scale(0.22)), ..op })
                .with_knobs(knobs(8, 4, 2, 1)),
            few(8, 640, Epilogue::Store).with_knobs(knobs(8, 2, 2, 1)),
        ]);
    }
    check(&all, &[1, 2, 11]);
}

#[test]
fn gemm_matches_the_reference() {
    let mut all = Vec::new();
    let knobs =
        |tile_rows, tile_outputs, split| Knobs { split, tile_rows, tile_outputs, ..knobs(1, 4, 1, 1) };
    for format in formats() {
        let many = |outputs, inputs, epilogue| project(Rows::Many, format, outputs, inputs, epilogue);
        let halves = Operand::F16;
        all.extend([
            many(18, 70, Epilogue::Store)
                .with_op(|op| Linear { bias: true, unary: Some(UnaryOp::Softcap(2.0)), ..op })
                .with_knobs(knobs(16, 32, 1)),
            many(70, 33, Epilogue::Add).with_layout(|layout| LinearLayout {
                knobs: knobs(32, 64, 2),
                operand: halves,
                ..layout
            }),
            many(16, 128, GATE).with_op(|op| Linear { bias: true, ..op }).with_knobs(knobs(16, 16, 2)),
            many(16, 96, Epilogue::Store).with_layout(|layout| LinearLayout {
                knobs: knobs(48, 16, 1),
                operand: Operand::Ranged,
                ..layout
            }),
            many(22, 288, GATE).with_layout(|layout| LinearLayout {
                knobs: knobs(32, 16, 1),
                operand: halves,
                ..layout
            }),
        ]);
    }
    // Results in two partitions.
    for (format, split) in [("q4_0", 1), ("affine8_32", 2)] {
        let format = Format::from_name(format).unwrap_or(Format::F16);
        let plain = project(Rows::Many, format, 64, 96, Epilogue::Add);
        all.push(plain.with_layout(|layout| LinearLayout {
            knobs: knobs(64, 64, split),
            operand: Operand::F16,
            ..layout
        }));
    }
    check(&all, &[17]);
}

#[test]
fn argmax_ties_go_to_the_lowest_index() {
    let mut random = Random(4);
    let specs = [1, 3, 70, 1500, 5000].map(|candidates| ArgmaxCombine { candidates });
    let bench = Bench::new(&specs.map(Spec::ArgmaxCombine));
    for (index, it) in specs.iter().enumerate() {
        let mut pairs: Vec<[u32; 2]> =
            (0..2 * it.candidates).map(|_| [random.bits() % 9, random.bits()]).collect();
        // The second row is all NaN.
        pairs[it.candidates..].iter_mut().for_each(|pair| pair[0] = 0);
        let best = pairs[..it.candidates].iter().map(|&[key, id]| (key, u32::MAX - id)).max();
        let first = best.filter(|&(key, _)| key > 0).map_or(0, |(_, id)| u32::MAX - id);
        let outputs = bench.run(index, 2, |name| match name {
            "candidates" => Input::U32(pairs.concat()),
            _ => Input::Uninitialized(2),
        });
        assert_eq!(outputs[0], [first, 0], "{it:?}");
    }
}
