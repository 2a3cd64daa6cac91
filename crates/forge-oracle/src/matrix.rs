//! Stored matrices with known values, in every number format.

use crate::compare::Expected;
use crate::random::Random;
use forge_ops::{Affine, BLOCK, Bits, Format, IQ4_ENTRIES, Scales};
use half::{bf16, f16};

/// A stored matrix: its planes as bytes, and its values.
#[derive(Clone)]
pub struct Matrix {
    /// Number format.
    pub format: Format,
    /// Rows.
    pub rows: usize,
    /// Columns; stored rows are longer.
    pub columns: usize,
    /// The format's planes.
    pub planes: Vec<Vec<u8>>,
    /// The values, `[rows, columns]`.
    pub values: Vec<f32>,
    /// Magnitudes of the values. With an offset it is that of the quantized value plus that of the offset,
    /// which partly cancel.
    pub magnitudes: Vec<f32>,
}

/// An affine format.
pub const fn affine(bits: usize, group: usize, scales: Scales) -> Format {
    Format::Affine(Affine::of(bits, group, scales).unwrap())
}

impl Matrix {
    /// Random quantized values and scales; values are at most about `size`. The padding of rows is arbitrary,
    /// because kernels must not use it.
    pub fn random(random: &mut Random, format: Format, rows: usize, columns: usize, size: f32) -> Matrix {
        let mut matrix = Matrix {
            format,
            rows,
            columns,
            planes: vec![Vec::new(); format.planes().len()],
            values: Vec::with_capacity(rows * columns),
            magnitudes: Vec::with_capacity(rows * columns),
        };
        for _ in 0..rows {
            let mut row = Vec::new();
            for _ in 0..columns.div_ceil(format.group()) {
                let mut planes = [Vec::new(), Vec::new()];
                row.extend(stored_group(random, format, size, &mut planes));
                matrix.planes.iter_mut().zip(planes).for_each(|(plane, bytes)| plane.extend(bytes));
            }
            matrix.values.extend(row[..columns].iter().map(|(value, _)| value));
            matrix.magnitudes.extend(row[..columns].iter().map(|(_, magnitude)| magnitude));
        }
        if format == Format::Mxfp4 {
            matrix.clear_first_block();
        }
        matrix
    }

    /// Makes the first block of mxfp4 zeros, which may have any exponent, even one that no f16 scale has.
    fn clear_first_block(&mut self) {
        self.planes[0][..BLOCK / 2].fill(0);
        self.planes[1][0] = 241;
        let columns = ..self.columns.min(BLOCK);
        self.values[columns].fill(0.0);
        self.magnitudes[columns].fill(0.0);
    }

    /// The bytes of the plane in a kernel's buffer of this name: `<weight>_values`, `<weight>_codes` or
    /// `<weight>_scales`.
    pub fn plane(&self, buffer: &str) -> &[u8] {
        &self.planes[usize::from(buffer.ends_with("_scales"))]
    }

    /// The values of a row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// A row times x. The magnitude of an element of x may exceed its absolute value by the error it has.
    pub fn row_product(&self, row: usize, x: &[Expected]) -> Expected {
        let magnitudes = &self.magnitudes[row * self.columns..][..self.columns];
        weighted(self.row(row).iter().zip(magnitudes), x)
    }

    /// A part of a column times x, which has an element for each of these rows.
    pub fn column_product(&self, rows: std::ops::Range<usize>, column: usize, x: &[Expected]) -> Expected {
        let places = rows.map(|row| row * self.columns + column);
        weighted(places.map(|at| (&self.values[at], &self.magnitudes[at])), x)
    }
}

fn weighted<'a>(weights: impl Iterator<Item = (&'a f32, &'a f32)>, x: &[Expected]) -> Expected {
    weights.zip(x).fold((0.0, 0.0), |(sum, magnitude), ((&w, &of_w), &(x, of_x))| {
        let (w, of_w) = (f64::from(w), f64::from(of_w));
        (sum + w * x, magnitude + of_w * x.abs() + w.abs() * (of_x - x.abs()))
    })
}

/// Appends a group of columns to its planes and returns its values with their magnitudes.
fn stored_group(
    random: &mut Random,
    format: Format,
    size: f32,
    [first, scales]: &mut [Vec<u8>; 2],
) -> Vec<(f32, f32)> {
    let count = format.group();
    // Scales that make values of at most about `size` of quantized values of at most `most`.
    let step = |random: &mut Random, most: f32| size * (0.25 + 0.75 * random.number().abs()) / most;
    let half_step = |random: &mut Random, most: f32| f16::from_f32(step(random, most));
    let codes: Vec<u8> = match format.bits() {
        Some(bits) => (0..count).map(|_| random.below(1 << bits.count()) as u8).collect(),
        None => Vec::new(),
    };
    first.extend(codes.chunks(32).flat_map(|block| packed(format.bits().unwrap_or(Bits::Eight), block)));
    let plain = |value: f32| (value, value.abs());
    // Values without an offset.
    let times = |value: &dyn Fn(u8) -> f32, scale: &dyn Fn(usize) -> f32| {
        codes.iter().enumerate().map(|(column, code)| plain(value(*code) * scale(column))).collect()
    };
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => {
            let numbers = random.floats(count).into_iter().map(|number| number * size);
            let stored = |number: f32| match format {
                Format::F32 => (number.to_le_bytes().to_vec(), number),
                Format::F16 => {
                    let number = f16::from_f32(number);
                    (number.to_le_bytes().to_vec(), number.to_f32())
                }
                _ => {
                    let number = bf16::from_f32(number);
                    (number.to_le_bytes().to_vec(), number.to_f32())
                }
            };
            let (bytes, values): (Vec<_>, Vec<_>) = numbers.map(stored).unzip();
            first.extend(bytes.concat());
            values.into_iter().map(plain).collect()
        }
        Format::Q8_0 => {
            // The compiler does not write -128, but a checkpoint may have it.
            let scale = half_step(random, 128.0);
            let codes: Vec<i8> = (0..count).map(|_| random.bits() as i8).collect();
            scales.extend(scale.to_le_bytes());
            first.extend(codes.iter().map(|code| code.cast_unsigned()));
            codes.iter().map(|&code| plain(f32::from(code) * scale.to_f32())).collect()
        }
        Format::Fp8 => {
            let scale = step(random, 448.0);
            // No NaN.
            let codes: Vec<u8> =
                (0..count).map(|_| random.below(127) as u8 | (random.below(2) as u8) << 7).collect();
            scales.extend(scale.to_le_bytes());
            let values = codes.iter().map(|&code| plain(float8(code) * scale)).collect();
            first.extend(codes);
            values
        }
        Format::Q4_0 | Format::Q5_0 => {
            let middle = if format == Format::Q4_0 { 8.0 } else { 16.0 };
            let scale = half_step(random, middle);
            scales.extend(scale.to_le_bytes());
            times(&|code| f32::from(code) - middle, &|_| scale.to_f32())
        }
        Format::Iq4Nl => {
            let scale = half_step(random, 127.0);
            scales.extend(scale.to_le_bytes());
            times(&entry, &|_| scale.to_f32())
        }
        Format::Mxfp4 => {
            // A power of two.
            let exponent = (step(random, 6.0).to_bits() >> 23) as u8;
            scales.push(exponent);
            times(&float4, &|_| f32::from_bits(u32::from(exponent) << 23))
        }
        Format::Nvfp4 => {
            // The scale 127 is 480.
            let (factor, bytes) = (step(random, 6.0 * 480.0), bytes(random, 8, 127));
            scales.extend(factor.to_le_bytes());
            scales.extend(&bytes);
            times(&float4, &|column| float8(bytes[column / 16]) * factor)
        }
        Format::Iq4Xs => {
            let (d, bytes) = (half_step(random, 128.0 * 127.0), bytes(random, 8, 255));
            scales.extend(d.to_le_bytes());
            scales.extend(&bytes);
            times(&entry, &|column| d.to_f32() * f32::from(bytes[column / 32].cast_signed()))
        }
        Format::Q6K | Format::Q3K => {
            let middle = if format == Format::Q6K { 32.0 } else { 4.0 };
            let d = half_step(random, 128.0 * middle);
            let d = if random.below(2) == 0 { d } else { -d };
            let bytes = bytes(random, 16, 255);
            scales.extend(d.to_le_bytes());
            scales.extend(&bytes);
            let scale = |column: usize| d.to_f32() * f32::from(bytes[column / 16].cast_signed());
            times(&|code| f32::from(code) - middle, &scale)
        }
        Format::Q5K | Format::Q4K | Format::Q2K => {
            let (units, codes_below) = match format {
                Format::Q2K => (15.0, 4.0),
                Format::Q4K => (63.0, 16.0),
                _ => (63.0, 32.0),
            };
            let d = half_step(random, units * (codes_below - 1.0));
            // At most about half of `size`.
            let least = f16::from_f32(step(random, units) / 3.0);
            let bytes = bytes(random, 16, if format == Format::Q2K { 255 } else { 63 });
            scales.extend([d, least].into_iter().flat_map(f16::to_le_bytes));
            scales.extend(&bytes);
            let pair = |column: usize| match format {
                Format::Q2K => [bytes[column / 16] & 15, bytes[column / 16] >> 4],
                _ => [bytes[column / 32 * 2], bytes[column / 32 * 2 + 1]],
            };
            let value = |(column, code): (usize, &u8)| {
                let [scale, offset] = pair(column).map(f32::from);
                with_offset(f32::from(*code) * (d.to_f32() * scale), -(least.to_f32() * offset))
            };
            codes.iter().enumerate().map(value).collect()
        }
        Format::Affine(Affine { bits, scales: element, .. }) => {
            let rounded = |x: f32| match element {
                Scales::Bf16 => (bf16::from_f32(x).to_le_bytes(), bf16::from_f32(x).to_f32()),
                Scales::F16 => (f16::from_f32(x).to_le_bytes(), f16::from_f32(x).to_f32()),
            };
            let (scale_bytes, scale) = rounded(step(random, ((1 << bits.count()) - 1) as f32));
            let (offset_bytes, offset) = rounded(-size * random.number().abs() / 2.0);
            scales.extend([scale_bytes, offset_bytes].concat());
            codes.iter().map(|code| with_offset(f32::from(*code) * scale, offset)).collect()
        }
    }
}

/// A value with an offset.
fn with_offset(value: f32, offset: f32) -> (f32, f32) {
    (value + offset, value.abs() + offset.abs())
}

fn bytes(random: &mut Random, count: usize, mask: u8) -> Vec<u8> {
    (0..count).map(|_| random.bits() as u8 & mask).collect()
}

/// The entry of a nibble of iq4_nl and iq4_xs.
fn entry(code: u8) -> f32 {
    f32::from(IQ4_ENTRIES[usize::from(code)])
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

/// Packs 32 quantized values in the documented order of affine formats: column by column, and part by part.
fn packed(bits: Bits, codes: &[u8]) -> Vec<u8> {
    let bits = bits.count();
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
