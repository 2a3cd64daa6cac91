//! Projections, embedding and token selection in the kernel checker, against plain f64.

mod batch;
mod definition;
mod embedding;
#[path = "../execution/mod.rs"]
mod execution;
mod on_core;
mod per_head_linear;

use crate::batch::{check_batches, check_quantized_outputs};
use crate::definition::{check, check_language};
use crate::execution::{Input, Kernels, words_of};
use forge_kernels::spec::{Kernel, Knobs, LinearKernel, LinearLayout, Operand, Rows};
use forge_kernels::{Family, Spec};
use forge_ops::{ArgmaxCombine, Epilogue, Format, Linear, Squares};
use forge_oracle::Random;
use forge_oracle::head::{CANDIDATES, argmax_combine, candidates};
use forge_oracle::matmul::{
    SWIGLU, decode_linears, gemm_linears, plain as plain_linear, quantized_linears, small_batch_linears,
};

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

/// The kernel of a layer, for this many rows.
fn project(rows: Rows, op: Linear) -> LinearKernel {
    let shape = [op.outputs, op.inputs];
    let knobs = Knobs::for_chip(Family::Apple9, 10, rows, op.format, shape, false, false);
    Kernel { op, layout: LinearLayout { rows, operand: Operand::F32, knobs, quantizes: false } }
}

/// The first column read from rows that are longer than a result.
const FIRST: usize = 5;

/// The scalars of kernels.
pub(crate) fn scalars(rows: usize) -> [(&'static str, usize); 2] {
    [("rows", rows), ("first", FIRST)]
}

pub(crate) fn knobs(rows_per_simdgroup: usize, simdgroups: usize, split: usize, packets: usize) -> Knobs {
    Knobs { rows_per_simdgroup, simdgroups, split, packets, tile_rows: 1, tile_outputs: 1, mma: false }
}

#[test]
fn gemv_matches_the_reference() {
    // In the order of the layers.
    let layouts = [
        knobs(4, 2, 1, 2),
        knobs(4, 2, 1, 2),
        knobs(2, 4, 2, 1),
        knobs(4, 4, 2, 1),
        knobs(2, 4, 2, 1),
        knobs(4, 2, 1, 1),
        knobs(2, 4, 1, 1),
        knobs(4, 8, 1, 1),
        knobs(4, 4, 2, 2),
        knobs(8, 4, 1, 1),
        knobs(1, 2, 1, 1),
        knobs(2, 2, 1, 1),
        knobs(2, 4, 1, 1),
        knobs(2, 2, 1, 1),
        knobs(2, 2, 1, 1),
        knobs(2, 2, 1, 1),
        knobs(2, 4, 2, 1),
    ];
    let of_format = |format| {
        let layers: [Linear; 17] = decode_linears(format);
        layers.into_iter().zip(layouts).map(|(op, knobs)| project(Rows::One, op).with_knobs(knobs))
    };
    let all: Vec<LinearKernel> = formats().into_iter().flat_map(of_format).collect();
    check(&all, &[1]);
    check_batches(&all);
}

/// GEMV on matrix units in these formats, for one row and for the rows of decode passes.
fn check_gemv_with_mma<const N: usize>(formats: [&str; N]) {
    let mma =
        |rows, simdgroups, split, packets| Knobs { mma: true, ..knobs(rows, simdgroups, split, packets) };
    // In the order of the layers.
    let layouts = [
        mma(16, 1, 1, 1),
        mma(16, 2, 1, 2),
        mma(32, 2, 2, 2),
        mma(16, 8, 8, 1),
        mma(16, 4, 2, 2),
        mma(16, 8, 4, 1),
        mma(32, 1, 1, 1),
        mma(16, 4, 2, 2),
        mma(16, 2, 1, 1),
    ];
    let of_format = |format| {
        let layers: [Linear; 9] = quantized_linears(format);
        layers.into_iter().zip(layouts).map(|(op, knobs)| project(Rows::One, op).with_knobs(knobs))
    };
    let all: Vec<LinearKernel> = formats.map(named).into_iter().flat_map(of_format).collect();
    check(&all, &[1]);
    check_batches(&all);
}

#[test]
fn gemv_with_float_mma_matches_the_reference() {
    check_gemv_with_mma(["f16", "bf16"]);
}

#[test]
fn gemv_with_integer_mma_matches_the_reference() {
    check_gemv_with_mma([
        "q4_0",
        "q8_0",
        "affine4_bf16",
        "affine4_128",
        "affine8_32_bf16",
        "affine8",
        "q4_k",
    ]);
}

#[test]
fn batched_gemv_writes_quantized_rows() {
    let squares = |gain| Epilogue::AddSquares(Squares { partials: 16, gain });
    let codes = |rows, simdgroups, split| Knobs { mma: true, ..knobs(rows, simdgroups, split, 1) };
    let one = |outputs, epilogue| project(Rows::One, plain_linear(Format::Q4_0, outputs, 200, epilogue));
    check_quantized_outputs(&[
        one(256, squares(true)).with_knobs(codes(16, 4, 2)),
        one(128, squares(false)).with_knobs(codes(32, 1, 1)),
        one(512, SWIGLU).with_knobs(codes(16, 2, 2)),
    ]);
}

/// A kernel with these knobs and operands.
fn with_operand(rows: Rows, op: Linear, (knobs, operand): (Knobs, Operand)) -> LinearKernel {
    project(rows, op).with_layout(|layout| LinearLayout { knobs, operand, ..layout })
}

#[test]
fn small_batch_matmul_matches_the_reference() {
    // In the order of the layers.
    let layouts = [
        (knobs(8, 2, 1, 1), Operand::F32),
        (knobs(16, 2, 2, 1), Operand::Ranged),
        (knobs(8, 4, 2, 1), Operand::F32),
        (knobs(8, 2, 2, 1), Operand::F32),
    ];
    let of_format = |format| {
        let layers: [Linear; 4] = small_batch_linears(format);
        layers.into_iter().zip(layouts).map(|(op, layout)| with_operand(Rows::Few, op, layout))
    };
    check(&formats().into_iter().flat_map(of_format).collect::<Vec<_>>(), &[1, 2, 11]);
}

/// GEMM in every format, with each type of operands.
fn gemm_kernels() -> Vec<LinearKernel> {
    let knobs =
        |tile_rows, tile_outputs, split| Knobs { split, tile_rows, tile_outputs, ..knobs(1, 4, 1, 1) };
    // In the order of the layers.
    let layouts = [
        (knobs(16, 32, 1), Operand::F32),
        (knobs(32, 64, 2), Operand::F16),
        (knobs(16, 16, 2), Operand::F32),
        (knobs(48, 16, 1), Operand::Ranged),
        (knobs(32, 16, 1), Operand::F16),
    ];
    let of_format = |format| {
        let layers: [Linear; 5] = gemm_linears(format);
        layers.into_iter().zip(layouts).map(|(op, layout)| with_operand(Rows::Many, op, layout))
    };
    let mut all: Vec<LinearKernel> = formats().into_iter().flat_map(of_format).collect();
    for format in formats() {
        let [_, narrow, .., wide] = gemm_linears(format);
        all.push(with_operand(Rows::Many, narrow, (knobs(32, 64, 1), Operand::F16Weights)));
        all.push(with_operand(Rows::Many, wide, (knobs(16, 32, 2), Operand::F16Weights)));
    }
    // Results in two partitions.
    for (format, split) in [("q4_0", 1), ("affine8_32", 2)] {
        let format = Format::from_name(format).unwrap_or(Format::F16);
        let op = plain_linear(format, 64, 96, Epilogue::Add);
        all.push(with_operand(Rows::Many, op, (knobs(64, 64, split), Operand::F16)));
    }
    all
}

#[test]
fn gemm_matches_the_reference() {
    check(&gemm_kernels(), &[17]);
}

#[test]
#[cfg_attr(feature = "gpu", ignore = "NVIDIA GPUs have no tensors of Metal 4")]
fn gemm_with_tensors_matches_the_reference() {
    let all = gemm_kernels();
    let has_tensors = |it: &&LinearKernel| Spec::Linear(**it).tensor_operand().is_some();
    let with_tensors: Vec<LinearKernel> = all.iter().filter(has_tensors).copied().collect();
    // Of each format two; and the one with two partitions.
    assert_eq!(with_tensors.len(), 2 * formats().len() + 1);
    check_language(&with_tensors, &[17, 40], 400);
}

#[test]
fn argmax_ties_go_to_the_lowest_index() {
    let mut random = Random(4);
    let specs = CANDIDATES.map(|candidates| ArgmaxCombine { candidates });
    let kernels = Kernels::of(specs.map(Spec::ArgmaxCombine));
    for (index, it) in specs.iter().enumerate() {
        let pairs = candidates(&mut random, it.candidates);
        let words = pairs.concat();
        let inputs = [("candidates", Input::U32(&words)), ("ids", Input::Uninitialized(8))];
        let outputs = kernels.run(index, &[("rows", 2)], &inputs);
        assert_eq!(words_of(&outputs[0]), [argmax_combine(&pairs[..it.candidates]), 0], "{it:?}");
    }
}
