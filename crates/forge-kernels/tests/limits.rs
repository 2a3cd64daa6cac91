//! Unsupported specs are rejected with a message that names the value and a solution.

mod common;

use forge_kernels::spec::{
    CombineLayout, ExpertsLayout, ExpertsTileLayout, Kernel, Knobs, LinearLayout, MlaExpandedKernel,
    MlaExpandedLayout, Operand, PerHeadKernel, PerHeadLayout, Rows,
};
use forge_kernels::{KernelDecl, KernelError, Spec, prologue_fits, render};
use forge_ops::{
    Activation, Append, Argmax, Attend, AttendCombine, DeferredNorm, Elementwise, Embed, Epilogue,
    ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Format, Function, Gating, Groups,
    HeadNorm, InlineNorm, KvSource, Linear, LongContext, MlaAppend, MlaAttention, MlaAttentionExpanded,
    MlaLoadLatents, NormAdd, Pairing, PerHeadLinear, RmsNorm, Rope, RopeAppend, RopeParameters, Route,
    Sample, Scores, Squares, UnaryOp,
};

fn rejection(name: &str, spec: Spec) -> String {
    match render(name, &spec) {
        Ok(_) => format!("{spec:?} is rendered"),
        Err(error) => error.to_string(),
    }
}

fn attend(query_heads: usize, key_heads: usize, width: usize, cache: Format, scale: f32) -> Spec {
    Spec::AttendSplit(
        common::attend(query_heads, key_heads, width, cache).with_op(|op| Attend { scale, ..op }),
    )
}

/// A projection of 64 by 64 with other knobs.
fn knobs(rows: Rows, epilogue: Epilogue, change: impl FnOnce(&mut Knobs)) -> Spec {
    let mut linear = common::linear(rows, Format::F32, 64, 64, epilogue);
    change(&mut linear.layout.knobs);
    Spec::Linear(linear)
}

#[test]
fn rejects_impossible_sizes() {
    let mut invalid_ropes =
        [16, 4, 4, 4].map(|pairs| common::rope_append(2, 1, 16, Format::F16, pairs, Pairing::Half));
    // RoPE is optional, but long-context frequencies need it.
    invalid_ropes[1].rope = RopeParameters {
        long: Some(LongContext::DynamicNtk { original_context: 16, factor: 2.0 }),
        ..RopeParameters::none()
    };
    invalid_ropes[2].rope.frequencies.to_mut()[1] = f32::INFINITY;
    invalid_ropes[3].rope.magnitude = f32::NAN;
    let cases = [
        rejection("2nd", Spec::Argmax(Argmax { vocabulary: 5 })),
        rejection("half", Spec::Argmax(Argmax { vocabulary: 5 })),
        rejection("a", Spec::Argmax(Argmax { vocabulary: 0 })),
        rejection("a", Spec::Sample(Sample { vocabulary: 0 })),
        rejection("a", Spec::Argmax(Argmax { vocabulary: 1 << 32 })),
        rejection(
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
        rejection(
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
        rejection(
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
        rejection(
            "a",
            Spec::NormAdd(NormAdd {
                width: 8,
                epsilon: 1e-6,
                gain: true,
                factor: false,
                squares: Some(Squares { partials: 0, gain: true }),
            }),
        ),
        rejection(
            "a",
            Spec::AttendCombine(Kernel {
                op: AttendCombine { query_heads: 0, width: 8, gates: None },
                layout: CombineLayout::default(),
            }),
        ),
        rejection("a", attend(4, 2, 7, Format::F16, 1.0)),
        rejection("a", attend(4, 2, 384, Format::F16, 1.0)),
        rejection("a", attend(5, 2, 64, Format::F16, 1.0)),
        rejection("a", attend(64, 1, 64, Format::F16, 1.0)),
        rejection("a", attend(4, 2, 64, Format::Q4_0, 1.0)),
        rejection("a", attend(4, 2, 80, Format::Q8_0, 1.0)),
        rejection("a", attend(4, 2, 64, Format::F16, f32::INFINITY)),
    ]
    .into_iter()
    .chain(invalid_ropes.map(|rope_append| rejection("a", Spec::RopeAppend(rope_append))));
    insta::assert_snapshot!(cases.collect::<Vec<_>>().join("\n"), @r"
    invalid kernel name `2nd`: use letters, digits and underscores, and no C++ keyword or support function
    invalid kernel name `half`: use letters, digits and underscores, and no C++ keyword or support function
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 0; leave the kernel out of the plan
    kernel `a`: the vocabulary is 4294967296, and must be below 2^32, the range of token ids
    kernel `a`: the vocabulary is 1073741824, and must be small enough that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: the width is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN: it has to be finite; check the configuration
    kernel `a`: the number of partial sums of squares is 0; leave the kernel out of the plan
    kernel `a`: the number of query heads is 0; leave the kernel out of the plan
    kernel `a`: the head's width is 7, and must be even, since RoPE rotates pairs of channels: pad the head with a zero channel
    kernel `a`: the head's width is 384, and must be at most 256, or 512
    kernel `a`: the number of query heads is 5, and must be a multiple of the number of KV heads, 2
    kernel `a`: the number of query heads per KV head is 64, and must be at most 32: repeat KV heads
    kernel `a`: unsupported KV cache format q4_0: use f32, f16 or q8_0
    kernel `a`: the head's width is 80, and must be a multiple of 32 for a q8_0 KV cache: use f16
    kernel `a`: the scale is inf: it has to be finite; check the configuration
    kernel `a`: the number of rotated pairs is 16, and must be at most half the head's width, which is 16
    kernel `a`: the number of rotated pairs is 0; leave the kernel out of the plan
    kernel `a`: a frequency is inf: it has to be finite; check the configuration
    kernel `a`: the magnitude of RoPE is NaN: it has to be finite; check the configuration
    ");
}

#[test]
fn rejects_impossible_attention() {
    let split = |query_heads, width| common::attend(query_heads, 1, width, Format::F16);
    let rope_append = |query_heads, width| {
        common::rope_append(query_heads, 1, width, Format::F16, width / 2, Pairing::Half)
    };
    let with_prologue = |rope_append: RopeAppend| {
        let prologue = Some(common::prologue(&rope_append));
        Spec::AttendSplit(
            split(rope_append.query_heads, rope_append.width).with_op(|op| Attend { prologue, ..op }),
        )
    };
    let norm = Some(HeadNorm { epsilon: f32::INFINITY, after_rope: false, values: false });
    let mut too_many = rope_append(1, 8).rope;
    too_many.frequencies.to_mut().push(1.0);
    assert!(prologue_fits(16, 1, 128) && prologue_fits(64, 8, 256));
    assert!(!prologue_fits(17, 1, 128) && !prologue_fits(9, 1, 250));
    let cases = [
        rejection("rope", Spec::RopeAppend(rope_append(2, 16))),
        rejection("a", with_prologue(rope_append(17, 128))),
        rejection("a", with_prologue(RopeAppend { norm, ..rope_append(2, 16) })),
        rejection("a", Spec::RopeAppend(RopeAppend { norm, ..rope_append(2, 16) })),
        rejection("a", Spec::RopeAppend(RopeAppend { kv_source: KvSource::Nothing, ..rope_append(2, 16) })),
        rejection("a", Spec::AttendSplit(split(2, 16).with_op(|op| Attend { window: Some(0), ..op }))),
        rejection("a", Spec::AttendSplit(split(2, 16).with_op(|op| Attend { window: Some(1 << 32), ..op }))),
        rejection("a", Spec::AttendTiled(split(2, 16).with_op(|op| Attend { softcap: Some(0.0), ..op }))),
        rejection(
            "a",
            Spec::AttendTiled(
                split(2, 16)
                    .with_op(|op| Attend { prologue: Some(common::prologue(&rope_append(2, 16))), ..op }),
            ),
        ),
        rejection(
            "a",
            Spec::Elementwise(Elementwise {
                function: Function::Unary(UnaryOp::Softcap(f32::NAN)),
                width: 8,
            }),
        ),
        rejection(
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
        rejection("a", Spec::Append(Append { key_heads: 2, width: 8, cache: Format::Bf16, ring: None })),
        rejection("a", Spec::Append(Append { key_heads: 2, width: 8, cache: Format::F16, ring: Some(0) })),
        rejection(
            "a",
            Spec::AttendSplit(split(2, 16).with_op(|op| Attend { window: Some(65), ring: Some(64), ..op })),
        ),
        rejection("a", Spec::AttendSplit(split(2, 16).with_op(|op| Attend { ring: Some(64), ..op }))),
        rejection("a", Spec::Rope(Rope { heads: 2, width: 8, rope: too_many })),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    invalid kernel name `rope`: use letters, digits and underscores, and no C++ keyword or support function
    kernel `a`: the number of query heads that are prepared at once is 17, and must be small enough to fit in 8 KiB: use rope_append
    kernel `a`: epsilon is inf: it has to be finite; check the configuration
    kernel `a`: epsilon is inf: it has to be finite; check the configuration
    kernel `a`: the number of KV heads of a row is 0, and must be that of the cache: use `rope` for queries only
    kernel `a`: the window is 0, and must be at least 1 and below 2^32, the range of positions: omit it for full attention
    kernel `a`: the window is 4294967296, and must be at least 1 and below 2^32, the range of positions: omit it for full attention
    kernel `a`: the cap is 0; leave the kernel out of the plan
    kernel `a`: the number of rows that are prepared at once is 8, and must be 1: use rope_append
    kernel `a`: the cap is NaN: it has to be finite; check the configuration
    kernel `a`: the number of parts is 0; leave the kernel out of the plan
    kernel `a`: unsupported KV cache format bf16: use f32, f16 or q8_0
    kernel `a`: the length of a ring is 0; leave the kernel out of the plan
    kernel `a`: the length of a ring is 64, and must be below 2^32 and at least the window: without a window the cache holds the whole context
    kernel `a`: the length of a ring is 64, and must be below 2^32 and at least the window: without a window the cache holds the whole context
    kernel `a`: the number of rotated pairs is 5, and must be at most half the head's width, which is 8
    ");
}

#[test]
fn rejects_impossible_projections() {
    let gate = Epilogue::Gate(Gating::Plain(Activation::Silu));
    let squares = |partials| Epilogue::AddSquares(Squares { partials, gain: true });
    let norm = |partials, epsilon| Some(DeferredNorm { partials, epsilon });
    let plain = |rows, outputs, inputs| common::linear(rows, Format::Q4_0, outputs, inputs, Epilogue::Store);
    let one = || plain(Rows::One, 64, 64);
    let rejected = |linear| rejection("a", Spec::Linear(linear));
    let rejected_knobs =
        |rows, epilogue, change: fn(&mut Knobs)| rejection("a", knobs(rows, epilogue, change));
    let cases = [
        rejected(plain(Rows::One, 0, 64)),
        rejected(plain(Rows::One, 64, 0)),
        rejected(plain(Rows::One, 1 << 30, 4096)),
        rejected(plain(Rows::One, 7, 64).with_op(|op| Linear { epilogue: gate, ..op })),
        rejected(one().with_op(|op| Linear { unary: Some(UnaryOp::Scale(f32::INFINITY)), ..op })),
        rejected(one().with_op(|op| Linear { norm: norm(0, 1e-5), ..op })),
        rejected(one().with_op(|op| Linear { norm: norm(4, f32::NAN), ..op })),
        rejected(plain(Rows::Few, 64, 64).with_op(|op| Linear { norm: norm(4, 1e-5), ..op })),
        rejected(plain(Rows::Many, 64, 64).with_op(|op| Linear { epilogue: squares(64), ..op })),
        rejected(
            plain(Rows::Few, 64, 64)
                .with_op(|op| Linear { epilogue: Epilogue::Best { candidates: 1 << 16 }, ..op }),
        ),
        rejected(
            plain(Rows::Few, 64, 64).with_op(|op| Linear { epilogue: Epilogue::Multiply { of: 64 }, ..op }),
        ),
        rejected(
            plain(Rows::One, 64, 64).with_op(|op| Linear { epilogue: Epilogue::Multiply { of: 63 }, ..op }),
        ),
        rejected(one().with_op(|op| Linear { epilogue: squares(3), ..op })),
        rejected_knobs(Rows::One, gate, |knobs| knobs.rows_per_simdgroup = 3),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 0),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 33),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.split = 3),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.split = 0),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.simdgroups = 64),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.packets = 2),
        rejected_knobs(Rows::One, Epilogue::Best { candidates: 1 << 16 }, |knobs| {
            (knobs.rows_per_simdgroup, knobs.simdgroups) = (8, 8)
        }),
        rejected_knobs(Rows::Few, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 4),
        rejected_knobs(Rows::Few, Epilogue::Store, |knobs| {
            (knobs.rows_per_simdgroup, knobs.simdgroups) = (32, 16)
        }),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_rows = 24),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_outputs = 0),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_outputs = 256),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.split = 4),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| (knobs.tile_rows, knobs.split) = (64, 2)),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of outputs is 0; leave the kernel out of the plan
    kernel `a`: the number of inputs is 0; leave the kernel out of the plan
    kernel `a`: the number of outputs is 1073741824, and must be small enough that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: the factor is inf: it has to be finite; check the configuration
    kernel `a`: the number of partial sums of squares is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN: it has to be finite; check the configuration
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or quantized activations
    kernel `a`: the number of rows of x is 17, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or quantized activations
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or quantized activations
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or quantized activations
    kernel `a`: the number of factors is 63, and must be at least the number of outputs, 64
    kernel `a`: the number of partial sums of squares is 3, and must be at least the number of threadgroups, 16
    kernel `a`: rows_per_simdgroup is 3, and must be even: a simdgroup computes pairs of gate and up
    kernel `a`: rows_per_simdgroup is 0; leave the kernel out of the plan
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32: each lane writes one row
    kernel `a`: split is 3, and must be a divisor of simdgroups, 2
    kernel `a`: split is 0; leave the kernel out of the plan
    kernel `a`: simdgroups is 64, and must be at most 32
    kernel `a`: packets is 2, and must be 1, or 2 if lanes have a second packet: a row has 16
    kernel `a`: the number of outputs of a threadgroup is 64, and must be at most 32, which one simdgroup writes: use fewer simdgroups
    kernel `a`: rows_per_simdgroup is 4, and must be 8, 16, 24 or 32: matrices are 8 by 8, and registers hold 4 rows of them
    kernel `a`: the threadgroup memory of rows_per_simdgroup and simdgroups is 32768, and must be at most 16384 bytes: reduce either
    kernel `a`: tile_rows is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: tile_outputs is 0; leave the kernel out of the plan
    kernel `a`: tile_outputs is 256, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: split is 4, and must be 1 or 2 groups of four simdgroups
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 36864, and must be at most 32768 bytes: use a smaller tile, or f16
    ");
}

#[test]
fn rejects_impossible_experts() {
    let route = || Route {
        experts: 12,
        chosen: 3,
        scores: Scores::Softmax,
        correction: false,
        groups: None,
        renormalize: true,
        factor: 1.0,
        scale: false,
        shared: 0,
        gated: false,
    };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let inner = || Kernel {
        op: ExpertsInner {
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
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let sum = || Kernel {
        op: ExpertsSum {
            format: Format::Q4_0,
            experts: 12,
            chosen: 3,
            shared: 0,
            outputs: 64,
            inputs: 64,
            record: 4096,
            bias: false,
            epilogue: Epilogue::Add,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let tiles = || Kernel {
        op: ExpertsTiles {
            format: Format::Q4_0,
            experts: 12,
            chosen: 3,
            shared: 0,
            outputs: 64,
            inputs: 64,
            record: 4096,
            bias: false,
            gating: Some(Gating::Plain(Activation::Silu)),
            tile_rows: 16,
        },
        layout: ExpertsTileLayout { operand: Operand::F16, tile_outputs: 64 },
    };
    let squares = |partials| Epilogue::AddSquares(Squares { partials, gain: true });
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
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { outputs: 7, ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { inputs: 1 << 24, outputs: 1 << 13, ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { record: 2048, ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { record: 4096 + 32, ..op })),
        Spec::ExpertsInner(inner().with_layout(|layout| ExpertsLayout { rows_per_simdgroup: 3, ..layout })),
        Spec::ExpertsInner(inner().with_layout(|layout| ExpertsLayout { simdgroups: 33, ..layout })),
        Spec::ExpertsInner(
            inner().with_op(|op| ExpertsInner { route: Some(Route { experts: 11, ..route() }), ..op }),
        ),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { shared: 4, ..op })),
        Spec::ExpertsInner(
            inner().with_op(|op| ExpertsInner { route: Some(Route { shared: 1, ..route() }), ..op }),
        ),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { gating: clamped(f32::NAN, 1.0), ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { gating: clamped(7.0, f32::INFINITY), ..op })),
        Spec::ExpertsSum(sum().with_op(|op| ExpertsSum {
            inputs: 1 << 31,
            experts: 3,
            outputs: 1,
            record: 1 << 31,
            ..op
        })),
        Spec::ExpertsSum(sum().with_layout(|layout| ExpertsLayout { rows_per_simdgroup: 33, ..layout })),
        Spec::ExpertsSum(
            sum()
                .with_op(|op| ExpertsSum { epilogue: squares(64), ..op })
                .with_layout(|layout| ExpertsLayout { simdgroups: 16, ..layout }),
        ),
        Spec::ExpertsSum(sum().with_op(|op| ExpertsSum { epilogue: squares(3), ..op })),
        Spec::ExpertsGroup(ExpertsGroup { experts: 1025, chosen: 3, tile_rows: 16 }),
        Spec::ExpertsGroup(ExpertsGroup { experts: 12, chosen: 3, tile_rows: 24 }),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { outputs: 63, ..op })),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { gating: Some(clamped(f32::NAN, 1.0)), ..op })),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { inputs: 1 << 24, outputs: 1 << 13, ..op })),
        Spec::ExpertsTiles(tiles().with_layout(|layout| ExpertsTileLayout { tile_outputs: 24, ..layout })),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { tile_rows: 64, ..op })),
        Spec::ExpertsCombine(ExpertsCombine { chosen: 33, width: 64, adds: false }),
        Spec::ExpertsCombine(ExpertsCombine { chosen: 16, width: 1 << 30, adds: false }),
    ];
    let cases: Vec<String> = cases.into_iter().map(|spec| rejection("a", spec)).collect();
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of experts is 0; leave the kernel out of the plan
    kernel `a`: the number of experts is 1025, and must be at most 1024, 32 per lane
    kernel `a`: the number of experts per row is 13, and must be at most 12, one per lane
    kernel `a`: the number of experts per row is 33, and must be at most 32, one per lane
    kernel `a`: the factor is NaN: it has to be finite; check the configuration
    kernel `a`: the number of groups of experts is 5, and must be a divisor of the number of experts, 12, and at most 32, one per lane
    kernel `a`: the number of kept groups is 1, and must be at most 6, with at least 3 experts in them
    kernel `a`: the number of experts that score a group is 3, and must be 1 or 2, and at most the group's size, 3
    kernel `a`: the number of experts is 1025, and must be at most 1024, 32 per lane
    kernel `a`: the number of experts per row is 33, and must be at most 32, one per lane
    kernel `a`: the number of shared experts is 0, and must be at least 1, since a logit weights them
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: the number of outputs is 8192, and must be small enough that a matrix of 16777216 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: the stride of expert matrices in bytes is 2048, and must be a multiple of 64, and at least the size of a matrix, 2304
    kernel `a`: the stride of expert matrices in bytes is 4128, and must be a multiple of 64, and at least the size of a matrix, 2304
    kernel `a`: rows_per_simdgroup is 3, and must be even: gate and up rows alternate
    kernel `a`: simdgroups is 33, and must be at most 32
    kernel `a`: the number of routed experts is 11, and must be 12, with 3 experts per row of which 0 are shared
    kernel `a`: the number of shared experts is 4, and must be at most the number of experts per row, 3
    kernel `a`: the number of routed experts is 12, and must be 12, with 3 experts per row of which 0 are shared
    kernel `a`: the clamp limit of gate and up is NaN: it has to be finite; check the configuration
    kernel `a`: the sharpness of gates is inf: it has to be finite; check the configuration
    kernel `a`: the number of inputs is 2147483648, and must be small enough that the inputs of all experts of a row are indexed in 32 bits
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32: each lane writes one row
    kernel `a`: the number of outputs of a threadgroup is 64, and must be at most 32, which one simdgroup writes: use fewer simdgroups
    kernel `a`: the number of partial sums of squares is 3, and must be at least the number of threadgroups, 8
    kernel `a`: the number of experts is 1025, and must be at most 1024, 32 per lane
    kernel `a`: tile_rows is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the number of outputs is 63, and must be even: gate and up rows alternate
    kernel `a`: the clamp limit of gate and up is NaN: it has to be finite; check the configuration
    kernel `a`: the number of outputs is 8192, and must be small enough that a matrix of 16777216 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: tile_outputs is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 17408, and must be at most 16384 bytes: use a smaller tile
    kernel `a`: the number of experts per row is 33, and must be at most 32, one per lane
    kernel `a`: the width is 1073741824, and must be small enough that the elements of all experts of a row are indexed in 32 bits
    ");
}

/// Every spec within the limits renders, within the hardware's limits.
#[test]
fn specs_within_the_limits_render() {
    let mut seed = 1_u32;
    let mut below = |end: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % end
    };
    let mut rendered = [0; 7];
    for _ in 0..25_000 {
        let batches = [Rows::Two, Rows::Four, Rows::Eight, Rows::Sixteen];
        let rows = [Rows::One, batches[below(4)], batches[below(4)], Rows::Few, Rows::Many][below(5)];
        let is_decoded = !matches!(rows, Rows::Few | Rows::Many);
        let squares = Squares { partials: below(600), gain: below(2) == 0 };
        let gate = Epilogue::Gate(Gating::Plain(Activation::Silu));
        let epilogues = [
            Epilogue::Store,
            Epilogue::Add,
            gate,
            Epilogue::AddSquares(squares),
            Epilogue::Best { candidates: below(600) },
        ];
        let linear = Kernel {
            op: Linear {
                format: match rows {
                    Rows::Eight | Rows::Sixteen => [Format::Q4_0, Format::Q8_0, Format::Q4K][below(3)],
                    _ => Format::ALL[below(Format::ALL.len())],
                },
                outputs: [below(70), below(5000), 151_936][below(3)],
                inputs: [below(70), below(5000), 64 * below(80)][below(3)],
                norm: (below(3) == 0).then(|| DeferredNorm { partials: below(600), epsilon: 1e-5 }),
                own_norm: None,
                bias: below(2) == 0,
                unary: (below(4) == 0).then_some(UnaryOp::Softcap(30.0)),
                epilogue: epilogues[below(if is_decoded { 5 } else { 3 })],
                chooses: false,
            },
            layout: LinearLayout {
                rows,
                operand: [Operand::F32, Operand::F16][below(2)],
                knobs: Knobs {
                    rows_per_simdgroup: [below(10), 8, 16, 32][below(4)],
                    simdgroups: [below(34), 2, 4, 8][below(4)],
                    split: [below(9), 1, 2][below(3)],
                    packets: below(3),
                    tile_rows: 16 * below(10),
                    tile_outputs: 16 * below(10),
                    codes: matches!(rows, Rows::Eight | Rows::Sixteen) || below(4) == 0,
                },
                quantizes: below(8) == 0,
            },
        };
        let (own_norm, norm) = match linear.op.norm.filter(|_| is_decoded) {
            Some(norm) if below(2) == 0 => {
                (Some(InlineNorm { gain: below(2) == 0, epsilon: norm.epsilon, pitch: None }), None)
            }
            norm => (None, norm),
        };
        let linear = linear.with_op(|op| Linear { norm, own_norm, ..op });
        match render("layer_kernel", &Spec::Linear(linear)) {
            Ok(instance) => {
                assert!(instance.decl.threadgroup_bytes <= KernelDecl::MOST_THREADGROUP_BYTES, "{linear:?}");
                assert!(instance.decl.threads <= KernelDecl::MOST_THREADS, "{linear:?}");
                rendered[rows as usize] += 1;
            }
            Err(KernelError::Template { source, .. }) => panic!("{linear:?}: {source:#}"),
            Err(KernelError::Declaration { source, .. }) => panic!("{linear:?}: {source}"),
            Err(_) => {}
        }
    }
    assert!(rendered.iter().all(|&count| count > 100), "{rendered:?}");
}

#[test]
fn rejects_impossible_mla() {
    let each = |change: fn(&mut PerHeadKernel)| {
        let mut each = Kernel {
            op: PerHeadLinear {
                format: Format::Q4_0,
                heads: 4,
                rows: 16,
                columns: 24,
                transposed: false,
                pitch: 96,
            },
            layout: PerHeadLayout { together: 1, each: 4 },
        };
        change(&mut each);
        rejection("a", Spec::PerHeadLinear(each))
    };
    let prepared = || {
        common::latents().into_iter().filter_map(|spec| match spec {
            Spec::MlaAttention(MlaAttention { prologue: Some(_), .. }) => Some(spec),
            _ => None,
        })
    };
    let attend = |change: fn(&mut MlaAttention)| {
        let Some(Spec::MlaAttention(mut attend)) = prepared().next() else { panic!("there is one") };
        change(&mut attend);
        rejection("a", Spec::MlaAttention(attend))
    };
    let append = |width, rope_width, cache| {
        rejection("a", Spec::MlaAppend(MlaAppend { width, rope_width, cache, prepare: None }))
    };
    let expanded = |change: fn(&mut MlaExpandedKernel)| {
        let mut attend = Kernel {
            op: MlaAttentionExpanded {
                heads: 4,
                keys: 128,
                rope_width: 64,
                values: 128,
                queries_pitch: 512,
                scale: 0.1,
            },
            layout: MlaExpandedLayout { operand: Operand::F32, tile: 16 },
        };
        change(&mut attend);
        rejection("a", Spec::MlaAttentionExpanded(attend))
    };
    let own_norm = Some(InlineNorm { gain: true, epsilon: 1e-6, pitch: None });
    let normed = |rows, norm| {
        let plain = common::linear(rows, Format::F32, 64, 64, Epilogue::Store);
        rejection("a", Spec::Linear(plain.with_op(|op| Linear { norm, own_norm, ..op })))
    };
    let cases = [
        each(|each| each.op.heads = 0),
        each(|each| each.op.rows = 0),
        each(|each| each.op.columns = 0),
        each(|each| each.op.pitch = 95),
        each(|each| (each.op.transposed, each.op.pitch) = (true, 63)),
        each(|each| each.layout.together = 9),
        each(|each| each.layout.each = 3),
        each(|each| each.layout.each = 8),
        append(0, 8, Format::F16),
        append(512, 0, Format::F16),
        append(512, 63, Format::F16),
        append(1000, 64, Format::F16),
        append(512, 64, Format::Q8_0),
        attend(|attend| attend.scale = f32::NAN),
        attend(|attend| attend.heads = 64),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.epsilon = f32::INFINITY)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.columns.q_rope_first += 1)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.columns.latent_first += 65)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.columns.key_first += 1)),
        attend(|attend| attend.prologue.iter_mut().for_each(|it| it.rope.frequencies.to_mut().clear())),
        rejection(
            "a",
            Spec::MlaLoadLatents(MlaLoadLatents { width: 512, rope_width: 63, cache: Format::F16 }),
        ),
        expanded(|attend| attend.op.values = 0),
        expanded(|attend| attend.op.scale = f32::NAN),
        expanded(|attend| attend.op.queries_pitch = 511),
        expanded(|attend| attend.layout.tile = 24),
        expanded(|attend| attend.layout.operand = Operand::F16),
        expanded(|attend| (attend.op.values, attend.layout.tile) = (256, 32)),
        rejection(
            "a",
            Spec::AttendCombine(Kernel {
                op: AttendCombine { query_heads: 4, width: 1025, gates: None },
                layout: CombineLayout::default(),
            }),
        ),
        normed(Rows::Few, None),
        normed(Rows::One, Some(DeferredNorm { partials: 4, epsilon: 1e-6 })),
    ];
    assert_eq!(MlaExpandedLayout::tile_for(128, 64, 128), Some(16));
    assert_eq!(MlaExpandedLayout::tile_for(400, 100, 128), None, "no tile fits such keys");
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of heads is 0; leave the kernel out of the plan
    kernel `a`: the number of rows of a head's matrix is 0; leave the kernel out of the plan
    kernel `a`: the number of columns of a head's matrix is 0; leave the kernel out of the plan
    kernel `a`: a row of x is 95, and must be at least as wide as the inputs of all heads, 96
    kernel `a`: a row of x is 63, and must be at least as wide as the inputs of all heads, 64
    kernel `a`: the rows of x is 9, and must be 1 to 8 at once, limited by registers
    kernel `a`: each is 3, and must be a power of two, at most 4
    kernel `a`: each is 8, and must be a power of two, at most 4
    kernel `a`: the width of a latent is 0; leave the kernel out of the plan
    kernel `a`: the width of a RoPE key is 0; leave the kernel out of the plan
    kernel `a`: the width of a RoPE key is 63, and must be even, since RoPE rotates pairs of channels
    kernel `a`: the width of a latent and a RoPE key is 1064, and must be at most 1024, limited by registers
    kernel `a`: the width of a latent and a RoPE key is 576, and must be cached as f32 or f16, not q8_0
    kernel `a`: the scale is NaN: it has to be finite; check the configuration
    kernel `a`: the number of heads that are prepared is 128, and must be the number of heads, 64
    kernel `a`: epsilon is inf: it has to be finite; check the configuration
    kernel `a`: a row of queries is 8192, and must be at least 8193, the end of the RoPE queries
    kernel `a`: a row of latents is 616, and must be at least 617, the end of the latent
    kernel `a`: a row of keys is 616, and must be at least 617, the end of the key
    kernel `a`: the number of rotated pairs is 0; leave the kernel out of the plan
    kernel `a`: the width of a RoPE key is 63, and must be even, since RoPE rotates pairs of channels
    kernel `a`: the width of a value is 0; leave the kernel out of the plan
    kernel `a`: the scale is NaN: it has to be finite; check the configuration
    kernel `a`: a row of queries is 511, and must be at least as wide as the queries of all heads, 512
    kernel `a`: tile is 24, and must be 8, 16 or 32
    kernel `a`: tile is 16, and must be f32, not f16
    kernel `a`: the threadgroup memory of a tile is 34688, and must be at most 16384 bytes
    kernel `a`: the head's width is 1025, and must be at most 1024: one thread per channel
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or quantized activations
    kernel `a`: the number of norms of x is 2, and must be 1: inline or deferred
    ");
}
