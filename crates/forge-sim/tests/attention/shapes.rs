//! Shapes that cover the templates of attention.

use crate::shape::Shape;
use crate::{CONTEXT, long, rope_parameters, with_attention_factor};
use forge_kernels::spec::{AttentionKnobs, Rows};
use forge_ops::{Format, HeadNorm, KvSource, Pairing, RopeParameters};

/// The same shapes in layouts other than the rule's: a few for each shape, which together cover every knob.
pub(crate) fn other_layouts() -> Vec<Shape> {
    let of_shape = |(index, shape): (usize, Shape)| {
        let Shape { query_heads, key_heads, width, cache, .. } = shape;
        let by_rule = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
        let tried = |rows| AttentionKnobs::tried(rows, query_heads, key_heads, width, cache).into_iter();
        let few: Vec<_> = tried(Rows::Few).filter(|knobs| *knobs != by_rule).collect();
        let many: Vec<_> = tried(Rows::Many).collect();
        let picked = few.into_iter().skip(index % 4).step_by(4).enumerate();
        let knobs = picked.map(move |(place, few)| {
            let AttentionKnobs { tile, lines, .. } = many[place % many.len()];
            AttentionKnobs { tile, lines, ..few }
        });
        knobs.map(move |knobs| Shape { knobs: Some(knobs), ..shape.clone() }).collect::<Vec<_>>()
    };
    shapes().into_iter().enumerate().flat_map(of_shape).collect()
}

/// Shapes for tensor cores: fewer, as many and more heads than one tile has; with every option of their
/// template.
pub(crate) fn with_matrix_units() -> Vec<Shape> {
    let with_mma = |query_heads, key_heads, width, simdgroups| {
        let by_rule = AttentionKnobs::for_heads(query_heads, key_heads, width, Format::F16);
        let group = query_heads / key_heads;
        let knobs = AttentionKnobs { heads_each: group.min(8), mma: true, loads: 1, simdgroups, ..by_rule };
        let knobs = Some(knobs);
        Shape { knobs, ..plain(query_heads, key_heads, width, Format::F16) }
    };
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    vec![
        Shape { norm, ..with_mma(4, 2, 128, 8) },
        with_mma(8, 1, 64, 4),
        Shape { sinks: true, ..with_mma(3, 3, 64, 8) },
        Shape { window: Some(40), ring: Some(97), softcap: Some(2.0), sinks: true, ..with_mma(5, 1, 128, 8) },
        Shape { window: Some(19), softcap: Some(1.0), ..with_mma(10, 1, 64, 4) },
        Shape { gated: true, kv_source: KvSource::KeysValuesAndGates, norm, ..with_mma(16, 1, 128, 8) },
        Shape {
            norm: norm.map(|norm| HeadNorm { values: true, ..norm }),
            kv_source: KvSource::Keys,
            ..with_mma(6, 3, 64, 8)
        },
        Shape { norm, kv_source: KvSource::Nothing, rope: RopeParameters::none(), ..with_mma(7, 1, 64, 16) },
    ]
}

fn plain(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> Shape {
    Shape {
        query_heads,
        key_heads,
        width,
        cache,
        ring: None,
        window: None,
        softcap: None,
        sinks: false,
        gated: false,
        kv_source: KvSource::KeysAndValues,
        norm: None,
        rope: rope_parameters(width / 2, Pairing::Half, 1.0),
        knobs: None,
    }
}

/// Sizes and options that cover every branch of the templates.
pub(crate) fn shapes() -> Vec<Shape> {
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    let norm_after_rope = Some(HeadNorm { epsilon: 1e-6, after_rope: true, values: false });
    let of_values = Some(HeadNorm { epsilon: 1e-2, after_rope: false, values: true });
    vec![
        Shape { norm, ..plain(4, 2, 128, Format::F16) },
        Shape { norm, rope: rope_parameters(7, Pairing::Half, 1.25), ..plain(9, 3, 20, Format::F32) },
        Shape {
            norm,
            window: Some(19),
            softcap: Some(2.0),
            sinks: true,
            rope: rope_parameters(20, Pairing::Interleaved, 1.0),
            ..plain(10, 2, 80, Format::F16)
        },
        Shape { window: Some(1000), softcap: Some(1.0), norm, ..plain(2, 2, 256, Format::F32) },
        Shape { sinks: true, ..plain(13, 1, 6, Format::F16) },
        Shape { window: Some(1), sinks: true, ..plain(3, 3, 64, Format::F32) },
        plain(2, 2, 96, Format::F16),
        // QK norm after RoPE, full and partial.
        Shape { norm: norm_after_rope, ..plain(4, 2, 16, Format::F32) },
        Shape {
            norm: norm_after_rope,
            rope: rope_parameters(5, Pairing::Interleaved, 1.0),
            ..plain(3, 1, 20, Format::F16)
        },
        // Long-context frequencies, for a context just beyond their limit and for one at it; and dynamic
        // scaling, likewise.
        Shape { rope: long(CONTEXT - 1), ..plain(4, 2, 16, Format::F32) },
        Shape { norm, rope: long(CONTEXT), ..plain(4, 2, 16, Format::F32) },
        Shape { norm, rope: with_attention_factor(CONTEXT / 3), ..plain(4, 2, 16, Format::F32) },
        Shape { rope: with_attention_factor(CONTEXT), ..plain(4, 2, 16, Format::F32) },
        // Rings: of exactly the positions that a pass of 58 rows needs, and of more than the context.
        Shape {
            norm,
            window: Some(19),
            ring: Some(76),
            softcap: Some(2.0),
            sinks: true,
            rope: rope_parameters(20, Pairing::Interleaved, 1.0),
            ..plain(10, 2, 80, Format::F16)
        },
        Shape { window: Some(7), ring: Some(67), ..plain(4, 2, 18, Format::F32) },
        Shape { window: Some(40), ring: Some(1000), rope: long(CONTEXT - 1), ..plain(4, 2, 16, Format::F32) },
        // The RoPE frequencies depend on the context length, not on the size of the ring.
        Shape {
            window: Some(12),
            ring: Some(72),
            rope: with_attention_factor(CONTEXT / 3),
            ..plain(4, 2, 16, Format::F16)
        },
        // q8_0 caches: every alignment of records, heads of one scale and of several, rings.
        Shape { norm, ..plain(4, 2, 128, Format::Q8_0) },
        Shape { rope: rope_parameters(20, Pairing::Interleaved, 1.0), ..plain(6, 2, 64, Format::Q8_0) },
        Shape { sinks: true, rope: rope_parameters(11, Pairing::Half, 1.0), ..plain(3, 1, 32, Format::Q8_0) },
        Shape {
            norm: norm_after_rope,
            window: Some(19),
            ring: Some(76),
            softcap: Some(2.0),
            ..plain(5, 1, 96, Format::Q8_0)
        },
        Shape { window: Some(40), ..plain(2, 2, 256, Format::Q8_0) },
        // Values with a norm, computed from the key heads; and queries only.
        Shape {
            norm: of_values,
            rope: rope_parameters(5, Pairing::Half, 1.0),
            ..plain(4, 2, 20, Format::F32)
        },
        Shape {
            norm: of_values.map(|norm| HeadNorm { after_rope: true, ..norm }),
            kv_source: KvSource::Keys,
            ..plain(6, 3, 64, Format::Q8_0)
        },
        Shape {
            kv_source: KvSource::Keys,
            rope: rope_parameters(3, Pairing::Half, 1.0),
            ..plain(5, 1, 18, Format::F16)
        },
        Shape {
            norm: of_values,
            kv_source: KvSource::Keys,
            window: Some(19),
            ring: Some(76),
            ..plain(4, 2, 96, Format::F16)
        },
        Shape {
            norm,
            kv_source: KvSource::Nothing,
            rope: rope_parameters(5, Pairing::Half, 1.0),
            ..plain(4, 2, 20, Format::F32)
        },
        Shape {
            norm: norm_after_rope,
            kv_source: KvSource::Nothing,
            window: Some(19),
            ring: Some(76),
            sinks: true,
            ..plain(5, 1, 96, Format::Q8_0)
        },
        Shape { kv_source: KvSource::Nothing, ..plain(3, 3, 64, Format::F16) },
        // Heads without RoPE.
        Shape { rope: RopeParameters::none(), ..plain(4, 2, 20, Format::F32) },
        Shape { norm, rope: RopeParameters::none(), ..plain(5, 1, 96, Format::Q8_0) },
        Shape {
            norm: of_values,
            kv_source: KvSource::Keys,
            rope: RopeParameters::none(),
            ..plain(6, 3, 18, Format::F16)
        },
        Shape {
            norm,
            kv_source: KvSource::Nothing,
            rope: RopeParameters::none(),
            ..plain(3, 3, 64, Format::F16)
        },
        // Gates: with and without a prologue, and with heads that do not fit in threadgroup memory.
        Shape {
            gated: true,
            kv_source: KvSource::KeysValuesAndGates,
            norm,
            rope: rope_parameters(5, Pairing::Half, 1.0),
            ..plain(4, 2, 20, Format::F32)
        },
        Shape {
            gated: true,
            kv_source: KvSource::KeysValuesAndGates,
            window: Some(19),
            ring: Some(76),
            sinks: true,
            ..plain(5, 1, 96, Format::Q8_0)
        },
        Shape { gated: true, kv_source: KvSource::KeysValuesAndGates, ..plain(9, 1, 256, Format::F16) },
        // Heads of two packets per lane: with prepared queries, with queries in threadgroup memory, and with
        // values computed from keys.
        Shape {
            norm: of_values,
            kv_source: KvSource::Keys,
            rope: rope_parameters(64, Pairing::Half, 1.0),
            ..plain(4, 1, 512, Format::F16)
        },
        Shape { norm, softcap: Some(2.0), ..plain(3, 1, 512, Format::F32) },
        Shape { sinks: true, ..plain(8, 1, 512, Format::F16) },
        Shape { window: Some(40), norm: of_values, ..plain(2, 2, 512, Format::Q8_0) },
        // Queries that do not fit in threadgroup memory, and therefore have no prologue.
        Shape { sinks: true, ..plain(9, 1, 256, Format::F16) },
        Shape { softcap: Some(1.0), ..plain(18, 1, 126, Format::F32) },
    ]
}
