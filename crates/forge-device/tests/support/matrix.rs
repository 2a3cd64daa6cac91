//! Random stored matrices, and their tensors in a weight file.

use crate::support::Random;
use crate::support::bytes_of;
use forge_device::ops::{Affine, Bits, Format, Plane, PlaneElement, Scales};
use half::{bf16, f16};

/// A stored matrix: its planes as bytes, and its values `[rows, columns]`.
#[derive(Clone)]
pub struct Matrix {
    pub format: Format,
    pub rows: usize,
    pub columns: usize,
    pub planes: Vec<Vec<u8>>,
    pub values: Vec<f32>,
}

pub fn padded(columns: usize) -> usize {
    columns.next_multiple_of(32)
}

/// An affine format.
pub const fn affine(bits: usize, group: usize, scales: Scales) -> Format {
    Format::Affine(Affine::of(bits, group, scales).unwrap())
}

/// Rows and stored columns of a matrix.
#[allow(dead_code)]
pub fn repacked(matrix: &Matrix) -> [usize; 2] {
    let bits = matrix.format.bits().map_or(8, Bits::count);
    [matrix.rows, matrix.planes[0].len() / matrix.rows * 8 / bits]
}

/// A matrix of random quants, padded like the compiler. Values are at most about `size`.
pub fn matrix(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
    if let Format::Affine { .. } = format {
        return affine_matrix(random, format, rows, columns, size);
    }
    if let Format::Q6K | Format::Q5K | Format::Q4K | Format::Q3K | Format::Q2K = format {
        return superblocks(random, format, rows, columns, size);
    }
    if format == Format::Fp8 {
        return fp8_matrix(random, rows, columns, size);
    }
    if format == Format::Nvfp4 {
        return nvfp4_matrix(random, rows, columns, size);
    }
    if format == Format::Iq4Xs {
        return iq4_xs_matrix(random, rows, columns, size);
    }
    let width = padded(columns);
    let mut values = Vec::with_capacity(rows * columns);
    let (mut first, mut scales) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        for block in 0..width / 32 {
            let scale = f16::from_f32(size * (0.25 + 0.75 * random.number().abs()) / 127.0 * 16.0);
            let wide = f16::from_f32(scale.to_f32() / 16.0);
            // Rounded to a power of two.
            let exponent = (scale.to_f32().to_bits() >> 23) as u8;
            let power = f32::from_bits(u32::from(exponent) << 23);
            let (mut nibbles, mut quants) = ([0_u8; 16], [0_u8; 32]);
            for i in 0..32 {
                let inside = block * 32 + i < columns;
                let x = if inside { random.number() * size } else { 0.0 };
                let value = match format {
                    Format::F32 => {
                        first.extend(x.to_ne_bytes());
                        x
                    }
                    Format::F16 => {
                        first.extend(f16::from_f32(x).to_ne_bytes());
                        f16::from_f32(x).to_f32()
                    }
                    Format::Bf16 => {
                        first.extend(bf16::from_f32(x).to_ne_bytes());
                        bf16::from_f32(x).to_f32()
                    }
                    Format::Q8_0 => {
                        let code = if inside { random.below(255) as i32 - 127 } else { 0 };
                        first.push(code as i8 as u8);
                        code as f32 * wide.to_f32()
                    }
                    Format::Q5_0 => {
                        let code = if inside { random.below(32) as u8 } else { 16 };
                        quants[i] = code;
                        (f32::from(code) - 16.0) * scale.to_f32()
                    }
                    Format::Mxfp4 => {
                        let code = if inside { random.below(16) as u8 } else { 0 };
                        nibbles[i % 16] |= code << (i / 16 * 4);
                        float4(code) * power
                    }
                    Format::Iq4Nl => {
                        // Padding has an entry like any other.
                        let code = random.below(16) as u8;
                        nibbles[i % 16] |= code << (i / 16 * 4);
                        entry(code) * wide.to_f32()
                    }
                    Format::Q4_0 => {
                        let code = if inside { random.below(16) as u8 } else { 8 };
                        nibbles[i % 16] |= code << (i / 16 * 4);
                        (f32::from(code) - 8.0) * scale.to_f32()
                    }
                    _ => unreachable!(),
                };
                if inside {
                    values.push(value);
                }
            }
            match format {
                Format::Q4_0 => {
                    first.extend(nibbles);
                    scales.extend(scale.to_ne_bytes());
                }
                Format::Q5_0 => {
                    first.extend(packed(5, &quants));
                    scales.extend(scale.to_ne_bytes());
                }
                Format::Mxfp4 => {
                    first.extend(nibbles);
                    scales.push(exponent);
                }
                Format::Iq4Nl => {
                    first.extend(nibbles);
                    scales.extend(wide.to_ne_bytes());
                }
                Format::Q8_0 => scales.extend(wide.to_ne_bytes()),
                _ => {}
            }
        }
    }
    let planes = if scales.is_empty() { vec![first] } else { vec![first, scales] };
    Matrix { format, rows, columns, planes, values }
}

/// A matrix of random 8-bit floats without NaN, with arbitrary padding.
fn fp8_matrix(random: &mut Random, rows: usize, columns: usize, size: f32) -> Matrix {
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(128) {
            let scale = size * (0.5 + random.number().abs()) / 448.0;
            scales.extend(scale.to_ne_bytes());
            let some: Vec<u8> =
                (0..128).map(|_| random.below(127) as u8 | (random.below(2) as u8) << 7).collect();
            row.extend(some.iter().map(|code| float8(*code) * scale));
            codes.extend(some);
        }
        values.extend(&row[..columns]);
    }
    Matrix { format: Format::Fp8, rows, columns, planes: vec![codes, scales], values }
}

/// A matrix of random 4-bit floats with scales of 8 bits, with arbitrary padding.
fn nvfp4_matrix(random: &mut Random, rows: usize, columns: usize, size: f32) -> Matrix {
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(128) {
            let factor = size * (0.5 + random.number().abs()) / (6.0 * 480.0);
            // The scale 127 is 480.
            let bytes: Vec<u8> = (0..8).map(|_| random.below(128) as u8).collect();
            scales.extend(factor.to_ne_bytes());
            scales.extend(&bytes);
            let some: Vec<u8> = (0..128).map(|_| random.below(16) as u8).collect();
            let value = |(column, code): (usize, &u8)| float4(*code) * (float8(bytes[column / 16]) * factor);
            row.extend(some.iter().enumerate().map(value));
            codes.extend(some.chunks(32).flat_map(|block| packed(4, block)));
        }
        values.extend(&row[..columns]);
    }
    Matrix { format: Format::Nvfp4, rows, columns, planes: vec![codes, scales], values }
}

/// A matrix of random nibbles that are indices, in superblocks, with arbitrary padding.
fn iq4_xs_matrix(random: &mut Random, rows: usize, columns: usize, size: f32) -> Matrix {
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(256) {
            let d = f16::from_f32(size * (0.5 + random.number().abs()) / (128.0 * 127.0));
            let bytes: Vec<u8> = (0..8).map(|_| random.bits() as u8).collect();
            scales.extend(d.to_ne_bytes());
            scales.extend(&bytes);
            let some: Vec<u8> = (0..256).map(|_| random.below(16) as u8).collect();
            let scale = |column: usize| d.to_f32() * f32::from(bytes[column / 32] as i8);
            row.extend(some.iter().enumerate().map(|(column, code)| entry(*code) * scale(column)));
            codes.extend(some.chunks(32).flat_map(|block| packed(4, block)));
        }
        values.extend(&row[..columns]);
    }
    Matrix { format: Format::Iq4Xs, rows, columns, planes: vec![codes, scales], values }
}

/// The entry of a nibble of iq4_nl and iq4_xs.
fn entry(code: u8) -> f32 {
    const ENTRIES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f32::from(ENTRIES[usize::from(code)])
}

/// The value of a 4-bit float: a sign, 2 bits of exponent and 1 of fraction.
fn float4(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code < 8 { magnitude } else { -magnitude }
}

/// The value of an 8-bit float: a sign, 4 bits of exponent and 3 of fraction.
fn float8(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => fraction * 2_f32.powi(-9),
        _ => (8.0 + fraction) * 2_f32.powi(exponent - 10),
    };
    if code < 128 { magnitude } else { -magnitude }
}

/// A random quantized matrix with offsets. The padding of rows is arbitrary, because kernels must not use it.
fn affine_matrix(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
    let Format::Affine(parameters) = format else { panic!("{format:?} has no offsets") };
    let (bits, group) = (parameters.bits.count(), parameters.group.columns());
    let bf16 = parameters.scales == Scales::Bf16;
    let rounded = |x: f32| if bf16 { bf16::from_f32(x).to_f32() } else { f16::from_f32(x).to_f32() };
    let bytes = |x: f32| if bf16 { bf16::from_f32(x).to_ne_bytes() } else { f16::from_f32(x).to_ne_bytes() };
    let most = ((1 << bits) - 1) as f32;
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(group) {
            let scale = rounded(size * (0.5 + random.number().abs()) / most);
            let offset = rounded(-size * random.number().abs());
            scales.extend([scale, offset].into_iter().flat_map(bytes));
            let of_group: Vec<u8> = (0..group).map(|_| random.below(1 << bits) as u8).collect();
            row.extend(of_group.iter().map(|&code| f32::from(code) * scale + offset));
            codes.extend(of_group.chunks(32).flat_map(|block| packed(bits, block)));
        }
        values.extend(&row[..columns]);
    }
    Matrix { format, rows, columns, planes: vec![codes, scales], values }
}

/// A matrix of random superblocks, with arbitrary padding.
fn superblocks(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
    let bits = match format {
        Format::Q6K => 6,
        Format::Q5K => 5,
        Format::Q3K => 3,
        Format::Q2K => 2,
        _ => 4,
    };
    let (mut codes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut row = Vec::new();
        for _ in 0..columns.div_ceil(256) {
            let some: Vec<u8> = (0..256).map(|_| random.below(1 << bits) as u8).collect();
            codes.extend(some.chunks(32).flat_map(|block| packed(bits, block)));
            let bytes: Vec<u8> = (0..16).map(|_| random.bits() as u8).collect();
            let mut unit = |most: f32| f16::from_f32(size * (0.5 + random.number().abs()) / most);
            if matches!(format, Format::Q6K | Format::Q3K) {
                let middle = (1 << (bits - 1)) as f32;
                let d = unit(128.0 * middle);
                scales.extend(d.to_ne_bytes());
                scales.extend(&bytes);
                let scale = |column: usize| d.to_f32() * f32::from(bytes[column / 16] as i8);
                row.extend(some.iter().enumerate().map(|(c, code)| (f32::from(*code) - middle) * scale(c)));
            } else {
                let units = if format == Format::Q2K { 15.0 } else { 63.0 };
                let [d, least] = [unit(units * ((1 << bits) - 1) as f32), unit(units)];
                scales.extend([d, least].into_iter().flat_map(f16::to_ne_bytes));
                let bytes: Vec<u8> = match format {
                    Format::Q2K => bytes,
                    _ => bytes.iter().map(|byte| byte & 63).collect(),
                };
                scales.extend(&bytes);
                let counts = |c: usize| match format {
                    Format::Q2K => [bytes[c / 16] & 15, bytes[c / 16] >> 4],
                    _ => [bytes[c / 32 * 2], bytes[c / 32 * 2 + 1]],
                };
                let value = |(c, code): (usize, &u8)| {
                    let [scale, offset] = counts(c).map(f32::from);
                    f32::from(*code) * (d.to_f32() * scale) - least.to_f32() * offset
                };
                row.extend(some.iter().enumerate().map(value));
            }
        }
        values.extend(&row[..columns]);
    }
    Matrix { format, rows, columns, planes: vec![codes, scales], values }
}

/// Packs 32 quants in the documented order of affine formats: column by column, and part by part.
fn packed(bits: usize, codes: &[u8]) -> Vec<u8> {
    if bits == 8 {
        return codes.to_vec();
    }
    let mut bytes = vec![0; 4 * bits];
    for (column, code) in codes.iter().enumerate() {
        let (half, word, byte) = (column / 16, column % 16 / 4, column % 4);
        let nibble = (4, 4 * word + byte, 4 * half);
        let pair = (2, word / 2 * 4 + byte, 4 * (word % 2) + 2 * half);
        let single = (1, byte, 2 * word + half);
        let (mut first, mut taken) = (0, 0);
        for (part, at, place) in [nibble, pair, single].into_iter().filter(|(part, ..)| bits & part != 0) {
            bytes[first + at] |= (code >> taken & ((1 << part) - 1)) << place;
            (first, taken) = (first + 4 * part, taken + part);
        }
    }
    bytes
}

/// Tensors for a weight file: name, safetensors' element type, shape, bytes.
pub type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// The tensors of a matrix.
pub fn tensors(name: &str, matrix: &Matrix) -> Vec<Tensor> {
    let tensor = |(plane, bytes): (&Plane, &Vec<u8>)| {
        let (element, name) = match (plane.element, plane.name) {
            (element, "values") => (element, name.to_owned()),
            (element, plane) => (element, format!("{name}.{plane}")),
        };
        let dtype = match element {
            PlaneElement::F32 => "F32",
            PlaneElement::F16 => "F16",
            PlaneElement::Bf16 => "BF16",
            PlaneElement::I8 => "I8",
            PlaneElement::U8 => "U8",
        };
        (name, dtype, vec![matrix.rows, bytes.len() / matrix.rows / element.bytes()], bytes.clone())
    };
    matrix.format.planes().iter().zip(&matrix.planes).map(tensor).collect()
}

pub fn vector(name: &str, values: &[f32]) -> Tensor {
    (name.into(), "F32", vec![values.len()], bytes_of(values))
}
