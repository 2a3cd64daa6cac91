//! CPU kernels of norms, RoPE, attention and elementwise functions against plain f64, for every ISA level of
//! this machine and different numbers of threads.
//!
//! Shapes are those of real models and edge cases: odd widths, one row, more rows than a block, sliding
//! windows shorter and longer than the context. NaN around each buffer reveals out-of-bounds reads.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod append;
mod attend;
mod norms;
mod quantized;
mod ring;
mod rope;

use forge_device::ops::Format;
use forge_oracle::attention_layers::{AttentionLayer, samples};

/// The samples of attention. Rings are multiples of a step of attention.
pub(crate) fn layers() -> impl Iterator<Item = AttentionLayer> {
    samples()
        .into_iter()
        .map(|layer| AttentionLayer { ring: layer.ring.map(|ring| ring.next_multiple_of(64)), ..layer })
}

/// The scalars of a layer's kernels.
pub(crate) fn scalars(layer: &AttentionLayer, rows: usize) -> Vec<usize> {
    let capacity = layer.ring.map(|_| layer.kv_cache().capacity());
    [rows, layer.context].into_iter().chain(capacity).collect()
}

/// The error of a cached value of at most about 2: f16 has a relative rounding error of 2^-11, and q8_0 one of
/// half a step of 127.
pub(crate) fn cache_error(cache: Format) -> f64 {
    match cache {
        Format::F32 => 2e-6,
        Format::Q8_0 => 1.5e-2,
        _ => 6e-4,
    }
}
