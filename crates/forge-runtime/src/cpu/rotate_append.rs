//! Rotates queries and keys by their positions, and appends keys and values to the cache.
//!
//! Scalars: rows, context. Buffers: qkv, slots, positions, q, keys, values. A row of qkv is query heads, then key
//! heads, then value heads; keys and values are `[slot, head, context, width]`.

use super::call::{Call, Output};
use super::formats::{Cached, Format};
use half::f16;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct RotateAppend {
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values in the cache: `F32` or `F16`.
    pub cache: Format,
    /// Of queries and keys.
    pub rotation: Rotation,
}

/// How channels are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Radians a position for each rotated pair. Channels past twice their number are left alone.
    pub frequencies: &'static [f32],
    /// Which two channels make a pair.
    pub pairing: Pairing,
    /// What sine and cosine are multiplied by.
    pub magnitude: f32,
}

/// Which two channels of a head make pair k, of n pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// k and k + n.
    Half,
    /// 2k and 2k + 1.
    Interleaved,
}

/// Runs this thread's share.
pub fn rotate_append(call: &Call<'_>, shape: &RotateAppend) {
    match shape.cache {
        Format::F32 => append::<f32>(call, shape),
        Format::F16 => append::<f16>(call, shape),
        other => panic!("a cache in {other:?} has no CPU kernel"),
    }
}

fn append<C: Cached>(call: &Call<'_>, shape: &RotateAppend) {
    let RotateAppend { query_heads, key_heads, width, .. } = *shape;
    let (rows, context) = (call.scalar(0), call.scalar(1));
    let (queries, keys_and_values) = (query_heads * width, key_heads * width);
    let qkv = call.input::<f32>("qkv", rows * (queries + 2 * keys_and_values));
    let slots = call.input::<u32>("slots", rows);
    let positions = call.input::<u32>("positions", rows);
    let q = call.output::<f32>("q", rows * queries);
    let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
    let keys = call.output::<C>("keys", last * key_heads * context * width);
    let values = call.output::<C>("values", last * key_heads * context * width);
    let mut turns = Vec::new();
    for row in call.share(rows, 1).flatten() {
        let (slot, position) = (slots[row] as usize, positions[row] as usize);
        assert!(position < context, "row {row} is at position {position} of a context of {context}");
        let row_of_qkv = &qkv[row * (queries + 2 * keys_and_values)..][..queries + 2 * keys_and_values];
        let (queries_in, rest) = row_of_qkv.split_at(queries);
        let (keys_in, values_in) = rest.split_at(keys_and_values);
        shape.rotation.turns(position, &mut turns);
        // SAFETY: this thread alone has this row, and no other row has its slot and position.
        unsafe {
            let q = q.part(row * queries..(row + 1) * queries);
            q.copy_from_slice(queries_in);
            for head in q.chunks_exact_mut(width) {
                shape.rotation.rotate(head, &turns);
            }
            let mut rotated = [0.0_f32; 256];
            for head in 0..key_heads {
                let at = ((slot * key_heads + head) * context + position) * width;
                let rotated = &mut rotated[..width];
                rotated.copy_from_slice(&keys_in[head * width..(head + 1) * width]);
                shape.rotation.rotate(rotated, &turns);
                store(keys, at, rotated);
                store(values, at, &values_in[head * width..(head + 1) * width]);
            }
        }
    }
}

/// # Safety
/// No other thread touches these elements of `to`.
unsafe fn store<C: Cached>(to: Output<'_, C>, at: usize, from: &[f32]) {
    // SAFETY: the caller's promise.
    let to = unsafe { to.part(at..at + from.len()) };
    for (to, &from) in to.iter_mut().zip(from) {
        *to = C::narrow(from);
    }
}

impl Rotation {
    /// Cosine and sine of each pair at `position`. The angle is an f32 product, as in the models' own code: at long
    /// contexts its rounding is part of what the model computes.
    fn turns(&self, position: usize, turns: &mut Vec<(f32, f32)>) {
        turns.clear();
        turns.extend(self.frequencies.iter().map(|frequency| {
            let (sine, cosine) = (position as f32 * frequency).sin_cos();
            (cosine * self.magnitude, sine * self.magnitude)
        }));
    }

    fn rotate(&self, head: &mut [f32], turns: &[(f32, f32)]) {
        let pairs = turns.len();
        for (k, &(cosine, sine)) in turns.iter().enumerate() {
            let (a, b) = match self.pairing {
                Pairing::Half => (k, k + pairs),
                Pairing::Interleaved => (2 * k, 2 * k + 1),
            };
            let (x, y) = (head[a], head[b]);
            head[a] = x * cosine - y * sine;
            head[b] = y * cosine + x * sine;
        }
    }
}
