//! What cannot be rendered is refused in words that name the value and the way out.

mod common;

use forge_ir::{Activation, Format, Pairing};
use forge_kernels::spec::{
    Append, Argmax, AttendJoin, AttendSplit, AttendTiled, Elementwise, Embed, Epilogue, Function, HeadNorm,
    Knobs, Project, RmsNorm, Rotate, RotateAppend, Rows,
};
use forge_kernels::{Spec, prologue_fits, render};

fn refusal(name: &str, spec: Spec) -> String {
    match render(name, &spec) {
        Ok(_) => format!("{spec:?} is rendered"),
        Err(error) => error.to_string(),
    }
}

fn attend(query_heads: usize, key_heads: usize, width: usize, cache: Format, scale: f32) -> Spec {
    Spec::AttendSplit(AttendSplit { scale, ..common::split(query_heads, key_heads, width, cache) })
}

/// A projection of 64 by 64 with other knobs.
fn knobs(rows: Rows, epilogue: Epilogue, change: impl FnOnce(&mut Knobs)) -> Spec {
    let mut project = common::project(rows, Format::F32, 64, 64, epilogue);
    change(&mut project.knobs);
    Spec::Project(project)
}

#[test]
fn refusals() {
    let gate = Epilogue::Gate(Activation::Silu);
    let plain = |outputs, inputs| common::project(Rows::One, Format::Q4_0, outputs, inputs, Epilogue::Store);
    let mut rotations =
        [16, 4, 4, 4].map(|pairs| common::rotate(2, 1, 16, Format::F16, pairs, Pairing::Half));
    rotations[1].rotation.frequencies.clear();
    rotations[2].rotation.frequencies[1] = f32::INFINITY;
    rotations[3].rotation.magnitude = f32::NAN;
    let cases = [
        refusal("2nd", Spec::Argmax(Argmax { vocabulary: 5 })),
        refusal("half", Spec::Argmax(Argmax { vocabulary: 5 })),
        refusal("a", Spec::Argmax(Argmax { vocabulary: 0 })),
        refusal("a", Spec::Argmax(Argmax { vocabulary: 1 << 32 })),
        refusal(
            "a",
            Spec::Embed(Embed { format: Format::F16, vocabulary: 1 << 30, width: 4096, squares: None }),
        ),
        refusal("a", Spec::Embed(Embed { format: Format::F16, vocabulary: 8, width: 0, squares: None })),
        refusal(
            "a",
            Spec::RmsNorm(RmsNorm { width: 8, parts: 1, epsilon: f32::NAN, gain: true, gather: false }),
        ),
        refusal("a", Spec::AttendJoin(AttendJoin { query_heads: 0, width: 8 })),
        refusal("a", attend(4, 2, 7, Format::F16, 1.0)),
        refusal("a", attend(4, 2, 512, Format::F16, 1.0)),
        refusal("a", attend(5, 2, 64, Format::F16, 1.0)),
        refusal("a", attend(64, 1, 64, Format::F16, 1.0)),
        refusal("a", attend(4, 2, 64, Format::Q8_0, 1.0)),
        refusal("a", attend(4, 2, 64, Format::F16, f32::INFINITY)),
        refusal("a", Spec::Project(plain(0, 64))),
        refusal("a", Spec::Project(plain(64, 0))),
        refusal("a", Spec::Project(Project { epilogue: gate, ..plain(7, 64) })),
        refusal("a", knobs(Rows::One, gate, |knobs| knobs.rows_per_simdgroup = 3)),
        refusal("a", knobs(Rows::One, Epilogue::Store, |knobs| knobs.split = 3)),
        refusal("a", knobs(Rows::One, Epilogue::Store, |knobs| knobs.simdgroups = 64)),
        refusal("a", knobs(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 33)),
        refusal("a", knobs(Rows::Few, Epilogue::Store, |knobs| knobs.tile_rows = 16)),
        refusal("a", knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_rows = 24)),
        refusal("a", knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_rows = 64)),
    ]
    .into_iter()
    .chain(rotations.map(|rotate| refusal("a", Spec::RotateAppend(rotate))));
    insta::assert_snapshot!(cases.collect::<Vec<_>>().join("\n"), @r"
    `2nd` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has
    `half` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 4294967296, and must be below 2^32, as ids are
    kernel `a`: the vocabulary is 1073741824, and must be such that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes; split it
    kernel `a`: the width is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of query heads is 0; leave the kernel out of the plan
    kernel `a`: the head's width is 7, and must be even: channels turn in pairs; pad the head with a channel of zeros
    kernel `a`: the head's width is 512, and must be at most 256: a wider head needs a kernel of its own
    kernel `a`: the number of query heads is 5, and must be a multiple of the key heads, which are 2
    kernel `a`: the number of query heads that read one key head is 64, and must be at most 32: repeat key heads until it is
    kernel `a`: keys and values in q8_0; attention reads f32 and f16, so choose one of these
    kernel `a`: the scale is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of outputs is 0; leave the kernel out of the plan
    kernel `a`: the number of inputs is 0; leave the kernel out of the plan
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: rows_per_simdgroup is 3, and must be even, as a simdgroup finishes pairs of gate and up
    kernel `a`: split is 3, and must be a divisor of simdgroups, which are 2
    kernel `a`: simdgroups is 64, and must be at most 32
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32, one a lane, as a lane finishes a row
    kernel `a`: the number of results of a simdgroup is 64, and must be at most 32, one a lane; lower rows_per_simdgroup or tile_rows
    kernel `a`: tile_rows is 24, and must be a multiple of 16: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 18432, and must be at most 16384 bytes; take a smaller tile
    kernel `a`: the number of rotated pairs is 16, and must be at most half the head's width, which is 16
    kernel `a`: the number of rotated pairs is 0; leave the kernel out of the plan
    kernel `a`: a frequency is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the magnitude of a rotation is NaN, which no literal can say; mend the configuration it comes from
    ");
}

#[test]
fn refusals_of_attention() {
    let split = |query_heads, width| common::split(query_heads, 1, width, Format::F16);
    let rotate =
        |query_heads, width| common::rotate(query_heads, 1, width, Format::F16, width / 2, Pairing::Half);
    let with_prologue = |rotate: RotateAppend| {
        let prologue = Some(common::prologue(&rotate));
        Spec::AttendSplit(AttendSplit { prologue, ..split(rotate.query_heads, rotate.width) })
    };
    let norm = Some(HeadNorm { epsilon: f32::INFINITY });
    let mut turns = rotate(1, 8).rotation;
    turns.frequencies.push(1.0);
    assert!(prologue_fits(16, 1, 128) && prologue_fits(64, 8, 256));
    assert!(!prologue_fits(17, 1, 128) && !prologue_fits(9, 1, 250));
    let cases = [
        refusal("turn", Spec::RotateAppend(rotate(2, 16))),
        refusal("a", with_prologue(rotate(17, 128))),
        refusal("a", with_prologue(RotateAppend { norm, ..rotate(2, 16) })),
        refusal("a", Spec::RotateAppend(RotateAppend { norm, ..rotate(2, 16) })),
        refusal("a", Spec::AttendSplit(AttendSplit { window: Some(0), ..split(2, 16) })),
        refusal("a", Spec::AttendSplit(AttendSplit { window: Some(1 << 32), ..split(2, 16) })),
        refusal(
            "a",
            Spec::AttendTiled(AttendTiled { softcap: Some(0.0), ..common::tiled(2, 1, 16, Format::F16) }),
        ),
        refusal("a", Spec::Elementwise(Elementwise { function: Function::Softcap(f32::NAN), width: 8 })),
        refusal(
            "a",
            Spec::RmsNorm(RmsNorm { width: 8, parts: 0, epsilon: 1e-5, gain: false, gather: false }),
        ),
        refusal("a", Spec::Append(Append { key_heads: 2, width: 8, cache: Format::Bf16 })),
        refusal("a", Spec::Rotate(Rotate { heads: 2, width: 8, rotation: turns, pairing: Pairing::Half })),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    `turn` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has
    kernel `a`: the number of query heads that are prepared at once is 17, and must be such that they fill at most 8 KiB; leave the preparation to rotate_append
    kernel `a`: epsilon is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: epsilon is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the window is 0, and must be at least 1 and below 2^32, as positions are; leave it out where a row sees all
    kernel `a`: the window is 4294967296, and must be at least 1 and below 2^32, as positions are; leave it out where a row sees all
    kernel `a`: the cap is 0; leave the kernel out of the plan
    kernel `a`: the cap is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of parts is 0; leave the kernel out of the plan
    kernel `a`: keys and values in bf16; attention reads f32 and f16, so choose one of these
    kernel `a`: the number of rotated pairs is 5, and must be at most half the head's width, which is 8
    ");
}
