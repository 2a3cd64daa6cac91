//! Loads and stores of prefill attention as the kernel checker counts them, compared with those of predictions.

use crate::shape::Shape;
use crate::{Input, Kernels};
use forge_kernels::Family;
use forge_kernels::spec::{AttentionKnobs, Rows};
use forge_ops::Format;
use forge_oracle::attention_layers::AttentionLayer;
use forge_oracle::{Batch, Random};
use forge_sim::Counters;

/// A layer whose context is much longer than a tile.
fn plain(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> AttentionLayer {
    AttentionLayer { context: 512, ..AttentionLayer::plain(query_heads, key_heads, width, cache) }
}

/// A shape with the layout of a GPU family, or with tiles of 8 rows of one head.
fn shape(layer: &AttentionLayer, family: Option<Family>) -> Shape {
    let AttentionLayer { query_heads, key_heads, width, cache, .. } = *layer;
    let of = |family| AttentionKnobs::for_chip(family, Rows::Many, query_heads, key_heads, width, cache);
    Shape { layer: layer.clone(), knobs: family.map(of) }
}

/// Counters of a prompt's last rows, and the predicted bytes.
fn counted(shape: &Shape) -> (Counters, u64) {
    let spec = shape.tiled();
    let (rows, last) = (64, shape.layer.context as u32 - 1);
    let batch = Batch::of(&(0..rows).map(|row| (1, last + 1 - rows + row)).collect::<Vec<_>>());
    let mut random = Random(3);
    let cache = shape.layer.kv_cache();
    let [(keys, _), (values, _)] = [0; 2].map(|_| cache.random(&mut random, |slot| batch.reach(slot)));
    let q = random.floats(batch.rows() * shape.layer.query_width());
    let (_, counters) =
        Kernels::of([spec.clone()]).run_counted(0, &shape.scalars(batch.rows(), 1), |buffer| match buffer {
            "q" => Input::F32(&q),
            "keys" => Input::Bytes(&keys),
            "values" => Input::Bytes(&values),
            "slots" => Input::U32(&batch.slots),
            "positions" => Input::U32(&batch.positions),
            _ => Input::Uninitialized(4 * q.len()),
        });
    let attended = batch.positions.iter().map(|position| u64::from(*position) + 1).sum();
    (counters, spec.on_core_bytes(u64::from(rows), attended).expect("they are known"))
}

#[test]
#[cfg_attr(feature = "gpu", ignore = "a GPU does not count accesses")]
fn predicted_bytes_of_attention_are_those_that_the_checker_counts() {
    for layer in [
        plain(8, 2, 128, Format::F16),
        plain(4, 1, 64, Format::Q8_0),
        plain(3, 3, 80, Format::F32),
        plain(4, 2, 256, Format::F16),
    ] {
        let AttentionLayer { width, cache, .. } = layer;
        for family in [None, Some(Family::Nvidia), Some(Family::Apple9)] {
            let (counters, predicted) = counted(&shape(&layer, family));
            let found = counters.loaded + counters.stored + counters.threadgroup;
            let over = found as f64 / predicted as f64;
            // Queries, results and the parts of tiles past a row's position are not predicted.
            assert!((1.0..1.25).contains(&over), "{width} {cache} {family:?}: {over}");
        }
    }
}

/// Keys and values are factors as they are loaded: 16 bytes of a lane are four matrices of a product each.
#[test]
#[cfg_attr(feature = "gpu", ignore = "a GPU does not count accesses")]
fn attention_on_apple_gpus_has_no_barriers_and_no_threadgroup_memory() {
    let layer = plain(8, 2, 128, Format::F16);
    let [tiled, direct] = [None, Some(Family::Apple9)].map(|family| counted(&shape(&layer, family)).0);
    assert_eq!((direct.barriers, direct.threadgroup), (0, 0));
    assert!(tiled.barriers > 0 && tiled.threadgroup > 0);
    assert!(3 * (direct.loaded + direct.stored) < tiled.loaded + tiled.stored + tiled.threadgroup);
}
