//! Rendered kernels as they are, reviewed by eye: one of each template, at the sizes of a small real model or odd ones.

mod common;

use forge_ir::{Activation, Format, Pairing};
use forge_kernels::spec::{
    Append, Argmax, AttendJoin, AttendSplit, AttendTiled, Elementwise, Embed, Epilogue, Function, HeadNorm,
    Knobs, Project, RmsNorm, Rotate, RotateAppend, Rows,
};
use forge_kernels::{Spec, assemble, render};

fn snapshot(name: &str, spec: Spec) {
    let instance = render(name, &spec).unwrap_or_else(|error| panic!("{error}"));
    insta::with_settings!({ omit_expression => true, description => format!("{spec:?}"), prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, format!("{}\n{}", instance.decl, instance.text));
    });
}

#[test]
fn embed() {
    snapshot("embed", Spec::Embed(Embed { format: Format::Q8_0, vocabulary: 512, width: 56, squares: None }));
}

#[test]
fn norms() {
    snapshot(
        "norm",
        Spec::RmsNorm(RmsNorm { width: 1024, parts: 1, epsilon: 1e-6, gain: true, gather: false }),
    );
    snapshot(
        "norm_heads",
        Spec::RmsNorm(RmsNorm { width: 128, parts: 16, epsilon: 1e-6, gain: true, gather: false }),
    );
    snapshot(
        "norm_wanted",
        Spec::RmsNorm(RmsNorm { width: 30, parts: 1, epsilon: 1e-5, gain: true, gather: true }),
    );
}

#[test]
fn projections() {
    let gate = Epilogue::Gate(Activation::Silu);
    snapshot("gate_up_one", Spec::Project(common::project(Rows::One, Format::Q4_0, 6144, 1024, gate)));
    let plain = common::project(Rows::One, Format::Q8_0, 50, 2048, Epilogue::Add);
    let knobs = Knobs { rows_per_simdgroup: 2, simdgroups: 4, split: 2, ..plain.knobs };
    snapshot("output_one", Spec::Project(Project { bias: true, knobs, ..plain }));
    snapshot("down_few", Spec::Project(common::project(Rows::Few, Format::F16, 64, 56, Epilogue::Add)));
    snapshot(
        "qkv_many",
        Spec::Project(common::project(Rows::Many, Format::Q4_0, 4096, 1024, Epilogue::Store)),
    );
    let odd = common::project(Rows::Many, Format::Bf16, 50, 30, gate);
    snapshot("gate_up_many", Spec::Project(Project { bias: true, ..odd }));
}

#[test]
fn attention() {
    let cache = Format::F16;
    let whole = common::rotate(16, 8, 128, cache, 64, Pairing::Half);
    let interleaved = common::rotate(16, 8, 128, cache, 64, Pairing::Interleaved);
    let part = common::rotate(4, 2, 20, Format::F32, 4, Pairing::Half);
    let norm = Some(HeadNorm { epsilon: 1e-6 });
    snapshot("rotate_append", Spec::RotateAppend(interleaved));
    snapshot("rotate_append_part", Spec::RotateAppend(part.clone()));
    snapshot("rotate_append_norm", Spec::RotateAppend(RotateAppend { norm, ..part.clone() }));
    snapshot(
        "rotate",
        Spec::Rotate(Rotate { heads: 4, width: 20, rotation: part.rotation, pairing: Pairing::Half }),
    );
    snapshot("append", Spec::Append(Append { key_heads: 8, width: 128, cache }));
    let split = common::split(16, 8, 128, cache);
    let prologue = Some(common::prologue(&RotateAppend { norm, ..whole }));
    snapshot("attend_split", Spec::AttendSplit(AttendSplit { prologue, ..split.clone() }));
    snapshot("attend_split_few", Spec::AttendSplit(split));
    let odd = AttendSplit {
        window: Some(40),
        softcap: Some(50.0),
        sinks: true,
        ..common::split(10, 2, 6, Format::F32)
    };
    snapshot("attend_split_odd", Spec::AttendSplit(odd));
    snapshot("attend_join", Spec::AttendJoin(AttendJoin { query_heads: 16, width: 80 }));
    snapshot("attend_tiled", Spec::AttendTiled(common::tiled(16, 8, 128, cache)));
    let odd = AttendTiled {
        window: Some(40),
        softcap: Some(50.0),
        sinks: true,
        ..common::tiled(9, 1, 6, Format::F32)
    };
    snapshot("attend_tiled_odd", Spec::AttendTiled(odd));
}

#[test]
fn elementwise() {
    let function = Function::Softcap(30.0);
    snapshot("soft_cap", Spec::Elementwise(Elementwise { function, width: 50_257 }));
}

#[test]
fn argmax() {
    snapshot("argmax", Spec::Argmax(Argmax { vocabulary: 151_936 }));
}

#[test]
fn a_file_has_each_support_unit_once() {
    let specs = [Rows::One, Rows::Few].map(|rows| common::project(rows, Format::F32, 8, 32, Epilogue::Store));
    let names = ["head_one", "head_few"];
    let instances: Result<Vec<_>, _> =
        names.iter().zip(specs).map(|(name, spec)| render(name, &Spec::Project(spec))).collect();
    let file = assemble(&instances.unwrap_or_else(|error| panic!("{error}")), "Made for a test.\n\nTwice.");
    let outline: Vec<&str> = file
        .lines()
        .take_while(|line| !line.contains("y = W x"))
        .chain(file.lines().filter(|line| line.starts_with("kernel")))
        .collect();
    insta::assert_snapshot!(outline.join("\n"), @r"
    // Made for a test.
    //
    // Twice.

    #include <metal_stdlib>
    #include <metal_simdgroup_matrix>
    using namespace metal;

    // A packet of f32 weights: 16 bytes, 4 columns.
    inline void f32_decode(uint4 packet, thread float4* weights) {
        weights[0] = as_type<float4>(packet);
    }

    // Four columns of a row whose width is a multiple of what is loaded at once.
    inline float4 load4_whole(device const float* row, uint column) {
        return *(device const float4*)(row + column);
    }

    kernel void head_one(
    kernel void head_few(
    ");
}
