//! What cannot be rendered is refused in words that name the value and the way out.

mod common;

use forge_ir::{Activation, Format, Gating, Groups, LongContext, Pairing, Rotation, Scores};
use forge_kernels::spec::{
    Append, Argmax, Attend, AttendJoin, DeferredNorm, Elementwise, Embed, Epilogue, ExpertsGroup,
    ExpertsInner, ExpertsJoin, ExpertsSum, ExpertsTiles, Function, HeadNorm, InlineNorm, Knobs, KvSource,
    LatentAppend, LatentAttend, Linear, MlaAttentionExpanded, MlaLoadLatents, NormAdd, Operand,
    PerHeadLinear, RmsNorm, Rotate, RotateAppend, Route, Rows, Sample, Squares, Summed, UnaryOp,
};
use forge_kernels::{KernelDecl, KernelError, Spec, prologue_fits, render};

fn refusal(name: &str, spec: Spec) -> String {
    match render(name, &spec) {
        Ok(_) => format!("{spec:?} is rendered"),
        Err(error) => error.to_string(),
    }
}

fn attend(query_heads: usize, key_heads: usize, width: usize, cache: Format, scale: f32) -> Spec {
    Spec::AttendSplit(Attend { scale, ..common::attend(query_heads, key_heads, width, cache) })
}

/// A projection of 64 by 64 with other knobs.
fn knobs(rows: Rows, epilogue: Epilogue, change: impl FnOnce(&mut Knobs)) -> Spec {
    let mut project = common::project(rows, Format::F32, 64, 64, epilogue);
    change(&mut project.knobs);
    Spec::Project(project)
}

#[test]
fn refusals() {
    let mut rotations =
        [16, 4, 4, 4].map(|pairs| common::rotate(2, 1, 16, Format::F16, pairs, Pairing::Half));
    // Heads may stay as they are, but there is no long context in which they turn.
    rotations[1].rotation =
        Rotation { long: Some(LongContext::Stretched { beyond: 16, factor: 2.0 }), ..Rotation::none() };
    rotations[2].rotation.frequencies[1] = f32::INFINITY;
    rotations[3].rotation.magnitude = f32::NAN;
    let cases = [
        refusal("2nd", Spec::Argmax(Argmax { vocabulary: 5 })),
        refusal("half", Spec::Argmax(Argmax { vocabulary: 5 })),
        refusal("a", Spec::Argmax(Argmax { vocabulary: 0 })),
        refusal("a", Spec::Sample(Sample { vocabulary: 0 })),
        refusal("a", Spec::Argmax(Argmax { vocabulary: 1 << 32 })),
        refusal(
            "a",
            Spec::Embed(Embed {
                format: Format::F16,
                vocabulary: 1 << 30,
                width: 4096,
                scale: 1.0,
                adds: false,
                squares: None,
            }),
        ),
        refusal(
            "a",
            Spec::Embed(Embed {
                format: Format::F16,
                vocabulary: 8,
                width: 0,
                scale: 1.0,
                adds: false,
                squares: None,
            }),
        ),
        refusal(
            "a",
            Spec::RmsNorm(RmsNorm {
                width: 8,
                parts: 1,
                epsilon: f32::NAN,
                gain: true,
                gather: false,
                pitch: None,
            }),
        ),
        refusal(
            "a",
            Spec::NormAdd(NormAdd {
                width: 8,
                epsilon: 1e-6,
                gain: true,
                factor: false,
                squares: Some(Squares { partials: 0, gain: true }),
            }),
        ),
        refusal("a", Spec::AttendJoin(AttendJoin { query_heads: 0, width: 8, gates: None })),
        refusal("a", attend(4, 2, 7, Format::F16, 1.0)),
        refusal("a", attend(4, 2, 384, Format::F16, 1.0)),
        refusal("a", attend(5, 2, 64, Format::F16, 1.0)),
        refusal("a", attend(64, 1, 64, Format::F16, 1.0)),
        refusal("a", attend(4, 2, 64, Format::Q4_0, 1.0)),
        refusal("a", attend(4, 2, 80, Format::Q8_0, 1.0)),
        refusal("a", attend(4, 2, 64, Format::F16, f32::INFINITY)),
    ]
    .into_iter()
    .chain(rotations.map(|rotate| refusal("a", Spec::RotateAppend(rotate))));
    insta::assert_snapshot!(cases.collect::<Vec<_>>().join("\n"), @r"
    `2nd` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has
    `half` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 4294967296, and must be below 2^32, as ids are
    kernel `a`: the vocabulary is 1073741824, and must be such that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes; split it
    kernel `a`: the width is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of partial sums of squares is 0; leave the kernel out of the plan
    kernel `a`: the number of query heads is 0; leave the kernel out of the plan
    kernel `a`: the head's width is 7, and must be even: channels turn in pairs; pad the head with a channel of zeros
    kernel `a`: the head's width is 384, and must be at most 256, or 512
    kernel `a`: the number of query heads is 5, and must be a multiple of the key heads, which are 2
    kernel `a`: the number of query heads that read one key head is 64, and must be at most 32: repeat key heads until it is
    kernel `a`: keys and values in q4_0; attention reads f32, f16 and q8_0, so choose one of these
    kernel `a`: the head's width is 80, and must be a multiple of 32 where keys and values are cached as q8_0; cache them as f16
    kernel `a`: the scale is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of rotated pairs is 16, and must be at most half the head's width, which is 16
    kernel `a`: the number of rotated pairs is 0; leave the kernel out of the plan
    kernel `a`: a frequency is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the magnitude of a rotation is NaN, which no literal can say; mend the configuration it comes from
    ");
}

#[test]
fn refusals_of_attention() {
    let split = |query_heads, width| common::attend(query_heads, 1, width, Format::F16);
    let rotate =
        |query_heads, width| common::rotate(query_heads, 1, width, Format::F16, width / 2, Pairing::Half);
    let with_prologue = |rotate: RotateAppend| {
        let prologue = Some(common::prologue(&rotate));
        Spec::AttendSplit(Attend { prologue, ..split(rotate.query_heads, rotate.width) })
    };
    let norm = Some(HeadNorm { epsilon: f32::INFINITY, turned: false, values: false });
    let mut turns = rotate(1, 8).rotation;
    turns.frequencies.push(1.0);
    assert!(prologue_fits(16, 1, 128) && prologue_fits(64, 8, 256));
    assert!(!prologue_fits(17, 1, 128) && !prologue_fits(9, 1, 250));
    let cases = [
        refusal("turn", Spec::RotateAppend(rotate(2, 16))),
        refusal("a", with_prologue(rotate(17, 128))),
        refusal("a", with_prologue(RotateAppend { norm, ..rotate(2, 16) })),
        refusal("a", Spec::RotateAppend(RotateAppend { norm, ..rotate(2, 16) })),
        refusal("a", Spec::RotateAppend(RotateAppend { brings: KvSource::Nothing, ..rotate(2, 16) })),
        refusal("a", Spec::AttendSplit(Attend { window: Some(0), ..split(2, 16) })),
        refusal("a", Spec::AttendSplit(Attend { window: Some(1 << 32), ..split(2, 16) })),
        refusal("a", Spec::AttendTiled(Attend { softcap: Some(0.0), ..split(2, 16) })),
        refusal(
            "a",
            Spec::AttendTiled(Attend { prologue: Some(common::prologue(&rotate(2, 16))), ..split(2, 16) }),
        ),
        refusal(
            "a",
            Spec::Elementwise(Elementwise { function: Function::Each(UnaryOp::Softcap(f32::NAN)), width: 8 }),
        ),
        refusal(
            "a",
            Spec::RmsNorm(RmsNorm {
                width: 8,
                parts: 0,
                epsilon: 1e-5,
                gain: false,
                gather: false,
                pitch: None,
            }),
        ),
        refusal("a", Spec::Append(Append { key_heads: 2, width: 8, cache: Format::Bf16, ring: None })),
        refusal("a", Spec::Append(Append { key_heads: 2, width: 8, cache: Format::F16, ring: Some(0) })),
        refusal("a", Spec::AttendSplit(Attend { window: Some(65), ring: Some(64), ..split(2, 16) })),
        refusal("a", Spec::AttendSplit(Attend { ring: Some(64), ..split(2, 16) })),
        refusal("a", Spec::Rotate(Rotate { heads: 2, width: 8, rotation: turns, pairing: Pairing::Half })),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    `turn` cannot be a kernel's name; give it letters, digits and underscores, and no name that C++ or a support unit has
    kernel `a`: the number of query heads that are prepared at once is 17, and must be such that they fill at most 8 KiB; leave the preparation to rotate_append
    kernel `a`: epsilon is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: epsilon is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of key heads of a row is 0, and must be that of the cache; rotate queries alone by rotate
    kernel `a`: the window is 0, and must be at least 1 and below 2^32, as positions are; leave it out where a row sees all
    kernel `a`: the window is 4294967296, and must be at least 1 and below 2^32, as positions are; leave it out where a row sees all
    kernel `a`: the cap is 0; leave the kernel out of the plan
    kernel `a`: the number of rows that are prepared at once is 8, and must be 1; leave the preparation to rotate_append
    kernel `a`: the cap is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of parts is 0; leave the kernel out of the plan
    kernel `a`: keys and values in bf16; attention reads f32, f16 and q8_0, so choose one of these
    kernel `a`: the length of a ring is 0; leave the kernel out of the plan
    kernel `a`: the length of a ring is 64, and must be below 2^32, and no less than a row sees: without a window the cache has the whole context
    kernel `a`: the length of a ring is 64, and must be below 2^32, and no less than a row sees: without a window the cache has the whole context
    kernel `a`: the number of rotated pairs is 5, and must be at most half the head's width, which is 8
    ");
}

#[test]
fn refusals_of_projections() {
    let gate = Epilogue::Gate(Activation::Silu);
    let squares = |partials| Epilogue::AddSquares(Squares { partials, gain: true });
    let norm = |partials, epsilon| Some(DeferredNorm { partials, epsilon });
    let plain = |rows, outputs, inputs| common::project(rows, Format::Q4_0, outputs, inputs, Epilogue::Store);
    let one = || plain(Rows::One, 64, 64);
    let refused = |project| refusal("a", Spec::Project(project));
    let knobs_refused = |rows, epilogue, change: fn(&mut Knobs)| refusal("a", knobs(rows, epilogue, change));
    let cases = [
        refused(plain(Rows::One, 0, 64)),
        refused(plain(Rows::One, 64, 0)),
        refused(plain(Rows::One, 1 << 30, 4096)),
        refused(Linear { epilogue: gate, ..plain(Rows::One, 7, 64) }),
        refused(Linear { each: Some(UnaryOp::Scale(f32::INFINITY)), ..one() }),
        refused(Linear { norm: norm(0, 1e-5), ..one() }),
        refused(Linear { norm: norm(4, f32::NAN), ..one() }),
        refused(Linear { norm: norm(4, 1e-5), ..plain(Rows::Few, 64, 64) }),
        refused(Linear { epilogue: squares(64), ..plain(Rows::Many, 64, 64) }),
        refused(Linear { epilogue: Epilogue::Best, ..plain(Rows::Few, 64, 64) }),
        refused(Linear { epilogue: Epilogue::Multiply { of: 64 }, ..plain(Rows::Few, 64, 64) }),
        refused(Linear { epilogue: Epilogue::Multiply { of: 63 }, ..plain(Rows::One, 64, 64) }),
        refused(Linear { epilogue: squares(3), ..one() }),
        knobs_refused(Rows::One, gate, |knobs| knobs.rows_per_simdgroup = 3),
        knobs_refused(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 0),
        knobs_refused(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 33),
        knobs_refused(Rows::One, Epilogue::Store, |knobs| knobs.split = 3),
        knobs_refused(Rows::One, Epilogue::Store, |knobs| knobs.split = 0),
        knobs_refused(Rows::One, Epilogue::Store, |knobs| knobs.simdgroups = 64),
        knobs_refused(Rows::One, Epilogue::Store, |knobs| knobs.packets = 2),
        knobs_refused(Rows::One, Epilogue::Best, |knobs| {
            (knobs.rows_per_simdgroup, knobs.simdgroups) = (8, 8)
        }),
        knobs_refused(Rows::Few, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 4),
        knobs_refused(Rows::Few, Epilogue::Store, |knobs| {
            (knobs.rows_per_simdgroup, knobs.simdgroups) = (32, 16)
        }),
        knobs_refused(Rows::Many, Epilogue::Store, |knobs| knobs.tile_rows = 24),
        knobs_refused(Rows::Many, Epilogue::Store, |knobs| knobs.tile_outputs = 0),
        knobs_refused(Rows::Many, Epilogue::Store, |knobs| knobs.tile_outputs = 256),
        knobs_refused(Rows::Many, Epilogue::Store, |knobs| knobs.split = 4),
        knobs_refused(Rows::Many, Epilogue::Store, |knobs| (knobs.tile_rows, knobs.split) = (64, 2)),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of outputs is 0; leave the kernel out of the plan
    kernel `a`: the number of inputs is 0; leave the kernel out of the plan
    kernel `a`: the number of outputs is 1073741824, and must be such that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes; split it
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: the factor is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of partial sums of squares is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of rows of x is 2, and must be 1 where a norm is deferred, squares or candidates are left, factors are columns of a row, or x is taken as codes; give these kernels of their own
    kernel `a`: the number of rows of x is 17, and must be 1 where a norm is deferred, squares or candidates are left, factors are columns of a row, or x is taken as codes; give these kernels of their own
    kernel `a`: the number of rows of x is 2, and must be 1 where a norm is deferred, squares or candidates are left, factors are columns of a row, or x is taken as codes; give these kernels of their own
    kernel `a`: the number of rows of x is 2, and must be 1 where a norm is deferred, squares or candidates are left, factors are columns of a row, or x is taken as codes; give these kernels of their own
    kernel `a`: the number of factors is 63, and must be at least the number of outputs, which is 64
    kernel `a`: the number of partial sums of squares is 3, and must be at least the number of threadgroups, which is 16
    kernel `a`: rows_per_simdgroup is 3, and must be even, as a simdgroup finishes pairs of gate and up
    kernel `a`: rows_per_simdgroup is 0; leave the kernel out of the plan
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32, one a lane, as a lane finishes a row
    kernel `a`: split is 3, and must be a divisor of simdgroups, which are 2
    kernel `a`: split is 0; leave the kernel out of the plan
    kernel `a`: simdgroups is 64, and must be at most 32
    kernel `a`: packets is 2, and must be 1, or 2 where lanes have a second packet; a row has 16
    kernel `a`: the number of outputs of a threadgroup is 64, and must be at most 32, as one simdgroup finishes them; lower simdgroups
    kernel `a`: rows_per_simdgroup is 4, and must be 8, 16, 24 or 32: matrices are 8 by 8, and registers hold those of 4
    kernel `a`: the threadgroup memory of rows_per_simdgroup and simdgroups is 32768, and must be at most 16384 bytes; lower either
    kernel `a`: tile_rows is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: tile_outputs is 0; leave the kernel out of the plan
    kernel `a`: tile_outputs is 256, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: split is 4, and must be 1 or 2: one quartet of simdgroups, or two
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 36864, and must be at most 32768 bytes; take a smaller tile, or halves
    ");
}

#[test]
fn refusals_of_experts() {
    let route = || Route {
        experts: 12,
        chosen: 3,
        scores: Scores::Softmax,
        correction: false,
        groups: None,
        shares: true,
        factor: 1.0,
        scale: false,
        shared: 0,
        gated: false,
    };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let inner = || ExpertsInner {
        format: Format::Q4_0,
        experts: 12,
        chosen: 3,
        shared: 0,
        outputs: 64,
        inputs: 64,
        record: 4096,
        norm: None,
        bias: false,
        gating: Gating::Plain(Activation::Silu),
        route: None,
        rows_per_simdgroup: 4,
        simdgroups: 2,
    };
    let sum = || ExpertsSum {
        format: Format::Q4_0,
        experts: 12,
        chosen: 3,
        shared: 0,
        outputs: 64,
        inputs: 64,
        record: 4096,
        bias: false,
        ending: Summed::Add,
        rows_per_simdgroup: 4,
        simdgroups: 2,
    };
    let tiles = || ExpertsTiles {
        format: Format::Q4_0,
        experts: 12,
        chosen: 3,
        shared: 0,
        outputs: 64,
        inputs: 64,
        record: 4096,
        bias: false,
        gating: Some(Gating::Plain(Activation::Silu)),
        operand: Operand::F16,
        tile_rows: 16,
        tile_outputs: 64,
    };
    let squares = |partials| Summed::AddSquares(Squares { partials, gain: true });
    let clamped = |limit, sharpness| Gating::Clamped { limit, sharpness };
    let cases = [
        Spec::Route(Route { experts: 0, ..route() }),
        Spec::Route(Route { experts: 1025, ..route() }),
        Spec::Route(Route { chosen: 13, ..route() }),
        Spec::Route(Route { experts: 64, chosen: 33, ..route() }),
        Spec::Route(Route { factor: f32::NAN, ..route() }),
        Spec::Route(Route { groups: groups(5, 1, 1), ..route() }),
        Spec::Route(Route { groups: groups(6, 1, 1), ..route() }),
        Spec::Route(Route { groups: groups(4, 2, 3), ..route() }),
        Spec::Route(Route { experts: 1024, shared: 1, ..route() }),
        Spec::Route(Route { shared: 30, ..route() }),
        Spec::Route(Route { gated: true, ..route() }),
        Spec::ExpertsInner(ExpertsInner { outputs: 7, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { inputs: 1 << 24, outputs: 1 << 13, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { record: 2048, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { record: 4096 + 32, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { rows_per_simdgroup: 3, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { simdgroups: 33, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { route: Some(Route { experts: 11, ..route() }), ..inner() }),
        Spec::ExpertsInner(ExpertsInner { shared: 4, ..inner() }),
        Spec::ExpertsInner(ExpertsInner { route: Some(Route { shared: 1, ..route() }), ..inner() }),
        Spec::ExpertsInner(ExpertsInner { gating: clamped(f32::NAN, 1.0), ..inner() }),
        Spec::ExpertsInner(ExpertsInner { gating: clamped(7.0, f32::INFINITY), ..inner() }),
        Spec::ExpertsSum(ExpertsSum { inputs: 1 << 31, experts: 3, outputs: 1, record: 1 << 31, ..sum() }),
        Spec::ExpertsSum(ExpertsSum { rows_per_simdgroup: 33, ..sum() }),
        Spec::ExpertsSum(ExpertsSum { simdgroups: 16, ending: squares(64), ..sum() }),
        Spec::ExpertsSum(ExpertsSum { ending: squares(3), ..sum() }),
        Spec::ExpertsGroup(ExpertsGroup { experts: 1025, chosen: 3, tile_rows: 16 }),
        Spec::ExpertsGroup(ExpertsGroup { experts: 12, chosen: 3, tile_rows: 24 }),
        Spec::ExpertsTiles(ExpertsTiles { outputs: 63, ..tiles() }),
        Spec::ExpertsTiles(ExpertsTiles { gating: Some(clamped(f32::NAN, 1.0)), ..tiles() }),
        Spec::ExpertsTiles(ExpertsTiles { inputs: 1 << 24, outputs: 1 << 13, ..tiles() }),
        Spec::ExpertsTiles(ExpertsTiles { tile_outputs: 24, ..tiles() }),
        Spec::ExpertsTiles(ExpertsTiles { tile_rows: 64, ..tiles() }),
        Spec::ExpertsJoin(ExpertsJoin { chosen: 33, width: 64, adds: false }),
        Spec::ExpertsJoin(ExpertsJoin { chosen: 16, width: 1 << 30, adds: false }),
    ];
    let cases: Vec<String> = cases.into_iter().map(|spec| refusal("a", spec)).collect();
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of experts is 0; leave the kernel out of the plan
    kernel `a`: the number of experts is 1025, and must be at most 1024, which are 32 a lane
    kernel `a`: the number of experts of a row is 13, and must be at most 12, one a lane
    kernel `a`: the number of experts of a row is 33, and must be at most 32, one a lane
    kernel `a`: the factor is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of groups of experts is 5, and must be a divisor of the experts, which are 12, and at most 32, one a lane
    kernel `a`: the number of groups that are kept is 1, and must be at most 6, with 3 experts or more
    kernel `a`: the number of experts that make a group's worth is 3, and must be 1 or 2, and no more than the experts of a group, which are 3
    kernel `a`: the number of experts is 1025, and must be at most 1024, which are 32 a lane
    kernel `a`: the number of experts of a row is 33, and must be at most 32, one a lane
    kernel `a`: the number of experts that every row has is 0, and must be 1 or more, as a logit weighs them
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: the number of outputs is 8192, and must be such that a matrix of 16777216 columns has fewer than 2^32 packets of 16 bytes; split it
    kernel `a`: the bytes from one expert's matrix to the next is 2048, and must be a multiple of 64, and at least those of a matrix, which are 2304
    kernel `a`: the bytes from one expert's matrix to the next is 4128, and must be a multiple of 64, and at least those of a matrix, which are 2304
    kernel `a`: rows_per_simdgroup is 3, and must be even: gate and up rows alternate
    kernel `a`: simdgroups is 33, and must be at most 32
    kernel `a`: the number of experts that are chosen from is 11, and must be 12, for 3 experts of a row, of which every row has 0
    kernel `a`: the number of experts that every row has is 4, and must be at most those of a row, which are 3
    kernel `a`: the number of experts that are chosen from is 12, and must be 12, for 3 experts of a row, of which every row has 0
    kernel `a`: the limit of gates and ups is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the sharpness of gates is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of inputs is 2147483648, and must be such that those of all experts of a row are counted in 32 bits
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32, one a lane, as a lane finishes a row
    kernel `a`: the number of outputs of a threadgroup is 64, and must be at most 32, as one simdgroup finishes them; lower simdgroups
    kernel `a`: the number of partial sums of squares is 3, and must be at least the number of threadgroups, which is 8
    kernel `a`: the number of experts is 1025, and must be at most 1024, which are 32 a lane
    kernel `a`: tile_rows is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the number of outputs is 63, and must be even: gate and up rows alternate
    kernel `a`: the limit of gates and ups is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of outputs is 8192, and must be such that a matrix of 16777216 columns has fewer than 2^32 packets of 16 bytes; split it
    kernel `a`: tile_outputs is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 17408, and must be at most 16384 bytes; take a smaller tile
    kernel `a`: the number of experts of a row is 33, and must be at most 32, one a lane
    kernel `a`: the width is 1073741824, and must be such that the numbers of all experts of a row are counted in 32 bits
    ");
}

/// Whatever passes the limits renders, and keeps to the hardware's.
#[test]
fn what_is_not_refused_renders() {
    let mut seed = 1_u32;
    let mut below = |end: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % end
    };
    let mut rendered = [0; 3];
    for _ in 0..6000 {
        let rows = [Rows::One, Rows::Few, Rows::Many][below(3)];
        let squares = Squares { partials: below(600), gain: below(2) == 0 };
        let gate = Epilogue::Gate(Activation::Silu);
        let epilogues = [Epilogue::Store, Epilogue::Add, gate, Epilogue::AddSquares(squares), Epilogue::Best];
        let project = Linear {
            rows,
            format: Format::ALL[below(Format::ALL.len())],
            outputs: [below(70), below(5000), 151_936][below(3)],
            inputs: [below(70), below(5000), 64 * below(80)][below(3)],
            norm: (below(3) == 0).then(|| DeferredNorm { partials: below(600), epsilon: 1e-5 }),
            own_norm: None,
            bias: below(2) == 0,
            each: (below(4) == 0).then_some(UnaryOp::Softcap(30.0)),
            epilogue: epilogues[below(if rows == Rows::One { 5 } else { 3 })],
            operand: [Operand::F32, Operand::F16][below(2)],
            chooses: false,
            knobs: Knobs {
                rows_per_simdgroup: [below(10), 8, 16, 32][below(4)],
                simdgroups: [below(34), 2, 4, 8][below(4)],
                split: [below(9), 1, 2][below(3)],
                packets: below(3),
                tile_rows: 16 * below(10),
                tile_outputs: 16 * below(10),
                codes: below(4) == 0,
            },
        };
        let (own_norm, norm) = match project.norm.filter(|_| rows == Rows::One) {
            Some(norm) if below(2) == 0 => {
                (Some(InlineNorm { gain: below(2) == 0, epsilon: norm.epsilon }), None)
            }
            norm => (None, norm),
        };
        let project = Linear { norm, own_norm, ..project };
        match render("layer_kernel", &Spec::Project(project.clone())) {
            Ok(instance) => {
                assert!(instance.decl.threadgroup_bytes <= KernelDecl::MOST_THREADGROUP_BYTES, "{project:?}");
                assert!(instance.decl.threads <= KernelDecl::MOST_THREADS, "{project:?}");
                rendered[rows as usize] += 1;
            }
            Err(KernelError::Template { source, .. }) => panic!("{project:?}: {source:#}"),
            Err(KernelError::Declaration { source, .. }) => panic!("{project:?}: {source}"),
            Err(_) => {}
        }
    }
    assert!(rendered.iter().all(|&count| count > 100), "{rendered:?}");
}

#[test]
fn refusals_of_latents() {
    let each = |change: fn(&mut PerHeadLinear)| {
        let mut each = PerHeadLinear {
            format: Format::Q4_0,
            heads: 4,
            rows: 16,
            columns: 24,
            turned: false,
            pitch: 96,
            together: 1,
            each: 4,
        };
        change(&mut each);
        refusal("a", Spec::EachHead(each))
    };
    let prepared = || {
        common::latents().into_iter().filter_map(|spec| match spec {
            Spec::LatentAttend(LatentAttend { prologue: Some(_), .. }) => Some(spec),
            _ => None,
        })
    };
    let attend = |change: fn(&mut LatentAttend)| {
        let Some(Spec::LatentAttend(mut attend)) = prepared().next() else { panic!("there is one") };
        change(&mut attend);
        refusal("a", Spec::LatentAttend(attend))
    };
    let append = |width, turned, cache| {
        refusal("a", Spec::LatentAppend(LatentAppend { width, turned, cache, prepare: None }))
    };
    let unfolded = |change: fn(&mut MlaAttentionExpanded)| {
        let mut attend = MlaAttentionExpanded {
            heads: 4,
            keys: 128,
            turned: 64,
            values: 128,
            queries_pitch: 512,
            scale: 0.1,
            operand: Operand::F32,
            tile: 16,
        };
        change(&mut attend);
        refusal("a", Spec::AttendUnfolded(attend))
    };
    let own_norm = Some(InlineNorm { gain: true, epsilon: 1e-6 });
    let normed = |rows, norm| {
        let plain = common::project(rows, Format::F32, 64, 64, Epilogue::Store);
        refusal("a", Spec::Project(Linear { norm, own_norm, ..plain }))
    };
    let cases = [
        each(|each| each.heads = 0),
        each(|each| each.rows = 0),
        each(|each| each.columns = 0),
        each(|each| each.pitch = 95),
        each(|each| (each.turned, each.pitch) = (true, 63)),
        each(|each| each.together = 9),
        each(|each| each.each = 3),
        each(|each| each.each = 8),
        append(0, 8, Format::F16),
        append(512, 0, Format::F16),
        append(512, 63, Format::F16),
        append(1000, 64, Format::F16),
        append(512, 64, Format::Q8_0),
        attend(|attend| attend.scale = f32::NAN),
        attend(|attend| attend.heads = 64),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.epsilon = f32::INFINITY)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.columns.turned_first += 1)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.columns.latent_first += 65)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.columns.key_first += 1)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.rotation.frequencies.clear())),
        refusal("a", Spec::LatentShare(MlaLoadLatents { width: 512, turned: 63, cache: Format::F16 })),
        unfolded(|attend| attend.values = 0),
        unfolded(|attend| attend.scale = f32::NAN),
        unfolded(|attend| attend.queries_pitch = 511),
        unfolded(|attend| attend.tile = 24),
        unfolded(|attend| attend.operand = Operand::F16),
        unfolded(|attend| (attend.values, attend.tile) = (256, 32)),
        refusal("a", Spec::AttendJoin(AttendJoin { query_heads: 4, width: 1025, gates: None })),
        normed(Rows::Few, None),
        normed(Rows::One, Some(DeferredNorm { partials: 4, epsilon: 1e-6 })),
    ];
    assert_eq!(MlaAttentionExpanded::tile_for(128, 64, 128), Some(16));
    assert_eq!(MlaAttentionExpanded::tile_for(400, 100, 128), None, "no tile has room for such keys");
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of heads is 0; leave the kernel out of the plan
    kernel `a`: the number of rows of a head's matrix is 0; leave the kernel out of the plan
    kernel `a`: the number of columns of a head's matrix is 0; leave the kernel out of the plan
    kernel `a`: a row of x is 95, and must be at least as wide as the parts of all heads, which are 96
    kernel `a`: a row of x is 63, and must be at least as wide as the parts of all heads, which are 64
    kernel `a`: the rows of x is 9, and must be 1 to 8 at once, whose sums are in registers
    kernel `a`: each is 3, and must be a power of two, at most 4
    kernel `a`: each is 8, and must be a power of two, at most 4
    kernel `a`: the width of a latent is 0; leave the kernel out of the plan
    kernel `a`: the width of a turned key is 0; leave the kernel out of the plan
    kernel `a`: the width of a turned key is 63, and must be even: channels turn in pairs
    kernel `a`: the width of a latent and a turned key is 1064, and must be at most 1024, which 32 lanes hold in registers
    kernel `a`: the width of a latent and a turned key is 576, and must be cached as f32 or f16, and not as q8_0
    kernel `a`: the scale is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: the number of heads that are prepared is 128, and must be that of the heads, which is 64
    kernel `a`: epsilon is inf, which no literal can say; mend the configuration it comes from
    kernel `a`: a row of queries is 8192, and must be at least 8193 wide, which is where those that turn end
    kernel `a`: a row of latents is 616, and must be at least 617 wide, which is where the latent ends
    kernel `a`: a row of keys is 616, and must be at least 617 wide, which is where the key ends
    kernel `a`: the number of rotated pairs is 0; leave the kernel out of the plan
    kernel `a`: the width of a turned key is 63, and must be even: channels turn in pairs
    kernel `a`: the width of a value is 0; leave the kernel out of the plan
    kernel `a`: the scale is NaN, which no literal can say; mend the configuration it comes from
    kernel `a`: a row of queries is 511, and must be at least as wide as the queries of all heads, which are 512
    kernel `a`: tile is 24, and must be 8, 16 or 32
    kernel `a`: tile is 16, and must be of singles, and not of halves
    kernel `a`: the threadgroup memory of a tile is 34688, and must be at most 16384 bytes
    kernel `a`: the head's width is 1025, and must be at most 1024: a thread has a channel
    kernel `a`: the number of rows of x is 2, and must be 1 where a norm is deferred, squares or candidates are left, factors are columns of a row, or x is taken as codes; give these kernels of their own
    kernel `a`: the number of norms of x is 2, and must be 1: its own, or one that is deferred
    ");
}
