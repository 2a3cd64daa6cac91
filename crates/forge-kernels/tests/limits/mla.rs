//! Limits of multi-head latent attention.

use crate::{common, rejection};
use forge_kernels::Spec;
use forge_kernels::spec::{
    CombineLayout, Kernel, MlaExpandedKernel, MlaExpandedLayout, Operand, PerHeadKernel, PerHeadLayout, Rows,
};
use forge_ops::{
    AttendCombine, DeferredNorm, Epilogue, Format, InlineNorm, Linear, MlaAppend, MlaAttention,
    MlaAttentionExpanded, MlaLoadLatents, PerHeadLinear,
};

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
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or MMA
    kernel `a`: the number of norms of x is 2, and must be 1: inline or deferred
    ");
}
