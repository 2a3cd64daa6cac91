//! Rotary position embedding.

use forge_ops::{LongContext, Pairing, RopeParameters};

/// RoPE of base 10,000.
pub fn rope_parameters(pairs: usize, pairing: Pairing, magnitude: f32) -> RopeParameters {
    let frequencies = (0..pairs).map(|k| 10_000_f32.powf(-(k as f32) / pairs as f32)).collect();
    RopeParameters { frequencies, pairing, magnitude, long: None }
}

/// RoPE whose frequencies are divided by seven for contexts beyond this length.
pub fn long_rope(rope: RopeParameters, original_context: usize) -> RopeParameters {
    let frequencies = rope.frequencies.iter().map(|frequency| frequency / 7.0).collect();
    RopeParameters { long: Some(LongContext::LongRope { original_context, frequencies }), ..rope }
}

/// RoPE with dynamic NTK scaling for contexts beyond this length.
pub fn dynamic_ntk(rope: RopeParameters, original_context: usize, factor: f32) -> RopeParameters {
    RopeParameters { long: Some(LongContext::DynamicNtk { original_context, factor }), ..rope }
}

/// A head after RoPE, in a slot of this context length.
pub fn rotated(head: &[f64], rope: &RopeParameters, context: usize, position: u32) -> Vec<f64> {
    let pairs = rope.frequencies.len();
    let mut rotated = head.to_vec();
    for (k, frequency) in rope.within(context).iter().enumerate() {
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
