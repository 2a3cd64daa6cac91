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

use forge_device::ops::{Format, LongContext, Pairing, RopeParameters};
use half::f16;
use std::borrow::Cow;
use support::{Random, bytes_of, to_f32};

/// Frequencies of base 10,000.
pub(crate) fn rope_parameters(pairs: usize, pairing: Pairing, magnitude: f32) -> RopeParameters {
    let frequencies: Vec<f32> = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
    RopeParameters { frequencies: frequencies.into(), pairing, magnitude, long: None }
}

pub(crate) fn normed(x: &[f64], gain: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().enumerate().map(|(i, v)| v * factor * gain.map_or(1.0, |gain| f64::from(gain[i]))).collect()
}

pub(crate) fn rotated(head: &[f64], rope: &RopeParameters, position: u32) -> Vec<f64> {
    let pairs = rope.frequencies.len();
    let mut rotated = head.to_vec();
    for (k, frequency) in rope.frequencies.iter().enumerate() {
        let (one, other) = match rope.pairing {
            Pairing::Half => (k, k + pairs),
            Pairing::Interleaved => (2 * k, 2 * k + 1),
        };
        let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
        let magnitude = f64::from(rope.magnitude);
        rotated[one] = (head[one] * cosine - head[other] * sine) * magnitude;
        rotated[other] = (head[other] * cosine + head[one] * sine) * magnitude;
    }
    rotated
}

pub(crate) fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// Each value with a magnitude. A tolerance of one unit is a millionth of it.
pub(crate) fn of_size(numbers: impl IntoIterator<Item = f64>, size: f64) -> Vec<(f64, f64)> {
    numbers.into_iter().map(|v| (v, size)).collect()
}

/// Rows of two slots, at positions that are not necessarily consecutive.
pub(crate) fn rows_of_a_batch(rows: usize, context: usize, random: &mut Random) -> (Vec<u32>, Vec<u32>) {
    if rows == 1 {
        return (vec![1], vec![context as u32 - 1]);
    }
    let first = rows.div_ceil(2);
    let start = random.below(context - first + 1) as u32;
    let slots = (0..rows).map(|row| u32::from(row < first)).collect();
    let positions = (0..rows).map(|row| if row < first { start + row as u32 } else { (row - first) as u32 });
    (slots, positions.collect())
}

pub(crate) fn cache_bytes(values: &[f32], cache: Format) -> Vec<u8> {
    match cache {
        Format::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
        _ => bytes_of(values),
    }
}

pub(crate) fn cache_values(bytes: &[u8], cache: Format) -> Vec<f32> {
    match cache {
        Format::F16 => {
            bytes.chunks_exact(2).map(|v| f16::from_ne_bytes(v.try_into().unwrap()).to_f32()).collect()
        }
        _ => to_f32(bytes),
    }
}

/// The tolerance of a cached value: f16 has a relative rounding error of 2^-11.
pub(crate) fn cache_unit(cache: Format) -> f64 {
    if cache == Format::F16 { 600.0 } else { 2.0 }
}

/// RoPE whose frequencies are divided by seven for contexts beyond this length.
pub(crate) fn long(rope: RopeParameters, original_context: usize) -> RopeParameters {
    RopeParameters {
        long: Some(LongContext::LongRope { original_context, frequencies: seventh(&rope) }),
        ..rope
    }
}

/// The frequencies divided by seven.
pub(crate) fn seventh(rope: &RopeParameters) -> Cow<'static, [f32]> {
    rope.frequencies.iter().map(|frequency| frequency / 7.0).collect()
}
