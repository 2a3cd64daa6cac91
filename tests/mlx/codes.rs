//! Quantization of matrices, and the values of quantized matrices.

use super::{Array, Tensors};
use half::f16;
use safetensors::Dtype;
use serde_json::{Value, json};

/// The quantization parameters of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Codes {
    /// Affine: quant * scale + bias.
    Affine {
        /// Bits of a quant.
        bits: usize,
        /// Columns that share a scale and a bias.
        group: usize,
    },
    /// mxfp4: 4-bit floats, 32 of which share an exponent.
    Mxfp4,
}

impl Codes {
    /// The entry in the configuration.
    pub(crate) fn section(self) -> Value {
        match self {
            Codes::Affine { bits, group } => json!({"group_size": group, "bits": bits}),
            Codes::Mxfp4 => json!({"group_size": 32, "bits": 4, "mode": "mxfp4"}),
        }
    }
}

/// The tensors of a quantized module, and its dequantized values in f32.
pub(super) fn encode(module: &str, array: &Array, codes: Codes) -> (Tensors, Array) {
    let f32_values = f32_values(array);
    let (columns, rows) = array.shape.split_last().expect("it is a matrix");
    let (per_code, group) = match codes {
        Codes::Affine { bits, group } => (bits, group),
        Codes::Mxfp4 => (4, 32),
    };
    assert!(columns.is_multiple_of(group), "{module} has {columns} columns");
    let mut stream = Stream { bytes: vec![0; f32_values.len() * per_code / 8], place: 0, bits: per_code };
    let mut plain = Vec::new();
    let beside = match codes {
        Codes::Affine { bits, group } => affine(&f32_values, (bits, group), &mut stream, &mut plain),
        Codes::Mxfp4 => microscaled(&f32_values, &mut stream, &mut plain),
    };
    let with = |last: usize| [rows, &[last]].concat();
    let words = Array { dtype: Dtype::U32, shape: with(columns * per_code / 32), bytes: stream.bytes };
    let mut parts = Tensors::from([(format!("{module}.weight"), words)]);
    for (name, dtype, bytes) in beside {
        parts.insert(format!("{module}.{name}"), Array { dtype, shape: with(columns / group), bytes });
    }
    let bytes = plain.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    (parts, Array { dtype: Dtype::F32, shape: array.shape.clone(), bytes })
}

/// The dequantized values.
pub(super) fn f32_values(array: &Array) -> Vec<f32> {
    match array.dtype {
        Dtype::BF16 => array
            .bytes
            .chunks_exact(2)
            .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16))
            .collect(),
        Dtype::F16 => array
            .bytes
            .chunks_exact(2)
            .map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32())
            .collect(),
        Dtype::F32 => array.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        other => panic!("{other:?} is no plain number"),
    }
}

/// Packs quants contiguously, the lowest bit first.
struct Stream {
    bytes: Vec<u8>,
    place: usize,
    bits: usize,
}

impl Stream {
    fn push(&mut self, code: u8) {
        for bit in 0..self.bits {
            self.bytes[self.place / 8] |= (code >> bit & 1) << (self.place % 8);
            self.place += 1;
        }
    }
}

/// Scales and biases, in f16.
fn affine(
    f32_values: &[f32],
    (bits, group): (usize, usize),
    stream: &mut Stream,
    plain: &mut Vec<f32>,
) -> Vec<(&'static str, Dtype, Vec<u8>)> {
    let levels = ((1 << bits) - 1) as f32;
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for group in f32_values.chunks_exact(group) {
        let low = group.iter().copied().fold(f32::MAX, f32::min);
        let high = group.iter().copied().fold(f32::MIN, f32::max);
        // Every other group has a negative scale, as MLX writes it if the value of largest magnitude is the
        // minimum.
        let (from, to) = if scales.len() % 4 == 0 { (low, high) } else { (high, low) };
        let (scale, bias) = (f16::from_f32((to - from) / levels), f16::from_f32(from));
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
        for x in group {
            let code = ((x - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, levels);
            plain.push(code * scale.to_f32() + bias.to_f32());
            stream.push(code as u8);
        }
    }
    vec![("scales", Dtype::F16, scales), ("biases", Dtype::F16, biases)]
}

/// The exponents, one byte each.
fn microscaled(
    f32_values: &[f32],
    stream: &mut Stream,
    plain: &mut Vec<f32>,
) -> Vec<(&'static str, Dtype, Vec<u8>)> {
    const FLOATS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mut exponents = Vec::new();
    for block in f32_values.chunks_exact(32) {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let exponent = (largest / 6.0).log2().ceil().clamp(-100.0, 100.0);
        exponents.push((exponent + 127.0) as u8);
        let scale = exponent.exp2();
        for x in block {
            let distance = |code: usize| (FLOATS[code] * scale - x.abs()).abs();
            let code = (0..8).min_by(|a, b| distance(*a).total_cmp(&distance(*b))).unwrap_or(0);
            let sign = if *x < 0.0 { -1.0 } else { 1.0 };
            plain.push(sign * FLOATS[code] * scale);
            stream.push(code as u8 | if *x < 0.0 { 8 } else { 0 });
        }
    }
    vec![("scales", Dtype::U8, exponents)]
}
