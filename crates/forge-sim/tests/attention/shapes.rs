//! Layouts that cover the templates of attention.

use crate::shape::{Shape, shapes};
use forge_kernels::spec::{AttentionKnobs, Rows};
use forge_ops::{Format, HeadNorm, KvSource, RopeParameters};
use forge_oracle::attention_layers::{AttentionLayer as Layer, CONTEXT};

/// The same shapes in layouts other than the rule's: a few for each shape, which together cover every knob.
pub(crate) fn other_layouts() -> Vec<Shape> {
    let of_shape = |(index, shape): (usize, Shape)| {
        let Layer { query_heads, key_heads, width, cache, .. } = shape.layer;
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
    // No layout depends on the context.
    let shapes = shapes().into_iter().filter(|shape| shape.layer.context == CONTEXT);
    shapes.enumerate().flat_map(of_shape).collect()
}

/// The same shapes in the layouts of prefill for Apple GPUs, with tiles of 32 and of 64 positions.
pub(crate) fn on_apple_gpus() -> Vec<Shape> {
    let of_shape = |(index, shape): (usize, Shape)| {
        let Shape { layer, knobs } = shape.for_apple_gpus();
        let is_wide = |knobs: &AttentionKnobs| index % 2 == 1 && knobs.tile == 32;
        let knobs =
            knobs.map(|knobs| if is_wide(&knobs) { AttentionKnobs { tile: 64, ..knobs } } else { knobs });
        Shape { layer, knobs }
    };
    shapes().into_iter().enumerate().map(of_shape).collect()
}

/// Shapes for tensor cores: fewer, as many and more heads than one tile has; with every option of their
/// template.
pub(crate) fn with_matrix_units() -> Vec<Shape> {
    let plain = |query_heads, key_heads, width| Layer::plain(query_heads, key_heads, width, Format::F16);
    let with_mma = |layer: Layer, simdgroups| {
        let Layer { query_heads, key_heads, width, cache, .. } = layer;
        let by_rule = AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
        let heads_each = layer.group().min(8);
        let knobs = Some(AttentionKnobs { heads_each, mma: true, loads: 1, simdgroups, ..by_rule });
        Shape { layer, knobs }
    };
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    let of_values = norm.map(|norm| HeadNorm { values: true, ..norm });
    let gated = |layer| Layer { gated: true, kv_source: KvSource::KeysValuesAndGates, ..layer };
    let ring = |layer| Layer { window: Some(40), ring: Some(97), ..layer };
    let without_rope = |layer| Layer { rope: RopeParameters::none(), ..layer };
    vec![
        with_mma(Layer { norm, ..plain(4, 2, 128) }, 8),
        with_mma(plain(8, 1, 64), 4),
        with_mma(Layer { sinks: true, ..plain(3, 3, 64) }, 8),
        with_mma(Layer { softcap: Some(2.0), sinks: true, ..ring(plain(5, 1, 128)) }, 8),
        with_mma(Layer { window: Some(19), softcap: Some(1.0), ..plain(10, 1, 64) }, 4),
        with_mma(Layer { norm, ..gated(plain(16, 1, 128)) }, 8),
        with_mma(Layer { norm: of_values, kv_source: KvSource::Keys, ..plain(6, 3, 64) }, 8),
        with_mma(Layer { norm, kv_source: KvSource::Nothing, ..without_rope(plain(7, 1, 64)) }, 16),
    ]
}
