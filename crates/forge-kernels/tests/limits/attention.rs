//! Limits of attention and the KV cache.

use crate::{common, rejection};
use forge_kernels::spec::{AttentionKnobs, AttentionLayout};
use forge_kernels::{Spec, prologue_fits};
use forge_ops::{
    Append, Attend, Elementwise, Format, Function, HeadNorm, KvSource, Pairing, RmsNorm, Rope, RopeAppend,
    UnaryOp,
};

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
fn rejects_impossible_tiles_of_attention() {
    let tiled = |lines, tile, width| {
        let attend = common::attend(2, 1, width, Format::F16);
        rejection(
            "a",
            Spec::AttendTiled(attend.with_layout(|layout| AttentionLayout {
                knobs: AttentionKnobs { lines, tile, ..layout.knobs },
                ..layout
            })),
        )
    };
    let cases = [tiled(24, 16, 64), tiled(32, 16, 64), tiled(32, 32, 512), tiled(64, 16, 256)];
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: lines is 24, and must be 8, 32 or 64
    kernel `a`: tile is 16, and must be 32 or 64
    kernel `a`: the head's width is 512, and must be at most 256: registers hold the sums of 8 query rows
    kernel `a`: the head's width is 256, and must be at most 128: registers hold the sums of 16 query rows
    ");
}
