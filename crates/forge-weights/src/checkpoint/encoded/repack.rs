//! Repacks rows in one of forge's quantized formats, without changing a value.

use crate::checkpoint::encoded::coded_rows::{CodedRows, Offsets};
use crate::codec::codes::{block_bytes, pack};
use forge_ir::{Affine, BLOCK, Bits, Encoding, Format, Scales};
use half::{bf16, f16};

/// The matrix that rows belong to.
pub(super) struct Source<'a> {
    pub(super) encoding: &'a Encoding,
    /// The value of every code.
    pub(super) values: &'a [f32],
    pub(super) columns: usize,
    /// Columns that share a scale.
    pub(super) group: usize,
}

/// Fills `out` with rows in this format, each quantized values first and then scales; or returns why it cannot
/// represent them.
pub(super) fn rows(
    source: &Source<'_>,
    coded: &CodedRows,
    format: Format,
    out: &mut [u8],
) -> Result<(), String> {
    let [of_codes, of_scales] = format.plane_bytes(source.columns);
    let groups = source.encoding.groups_of(source.columns);
    let rows = coded.codes.chunks_exact(source.columns).zip(out.chunks_exact_mut(of_codes + of_scales));
    for (row, (codes, out)) in rows.enumerate() {
        let (stored_codes, stored_scales) = out.split_at_mut(of_codes);
        let of_row = row * groups..(row + 1) * groups;
        let scales = &coded.scales[of_row.clone()];
        let offsets = match &coded.offsets {
            Offsets::Zeros(zeros) => RowOffsets::Zeros(&zeros[of_row]),
            Offsets::Biases(biases) => RowOffsets::Biases(&biases[of_row]),
        };
        let row = Row { source, codes, scales, offsets };
        row.store_codes(format, stored_codes)?;
        row.store_scales(format, stored_scales)?;
    }
    Ok(())
}

enum RowOffsets<'a> {
    Zeros(&'a [f32]),
    Biases(&'a [f32]),
}

struct Row<'a> {
    source: &'a Source<'a>,
    codes: &'a [u8],
    scales: &'a [f32],
    offsets: RowOffsets<'a>,
}

/// The code of 0 in a format of integers without biases of their own.
fn center(format: Format) -> Option<f32> {
    match format {
        Format::Q8_0 => Some(0.0),
        Format::Q4_0 => Some(8.0),
        Format::Q5_0 => Some(16.0),
        Format::Affine(affine) => Some((1_u32 << (affine.bits.count() - 1)) as f32),
        _ => None,
    }
}

impl Row<'_> {
    /// The group of a column.
    fn group(&self, column: usize) -> usize {
        column / self.source.group
    }

    fn store_codes(&self, format: Format, out: &mut [u8]) -> Result<(), String> {
        let bits = match format {
            Format::Q8_0 | Format::Fp8 => Bits::Eight,
            _ => format.bits().ok_or("it has no codes")?,
        };
        let (lowest, highest) = match format {
            Format::Q8_0 => (-128.0, 127.0),
            _ => (0.0, ((1_u32 << bits.count()) - 1) as f32),
        };
        let center = center(format);
        for (block, out) in out.chunks_exact_mut(block_bytes(bits)).enumerate() {
            let mut block_codes = [0; BLOCK];
            let columns = block * BLOCK..self.codes.len().min((block + 1) * BLOCK);
            for (place, column) in block_codes.iter_mut().zip(columns) {
                let code = self.codes[column];
                // Floats and codes with biases keep their codes.
                let RowOffsets::Zeros(zeros) = self.offsets else {
                    *place = code;
                    continue;
                };
                let Some(center) = center else {
                    *place = code;
                    continue;
                };
                let value = self.source.values[usize::from(code)] - zeros[self.group(column)] + center;
                if value < lowest || value > highest {
                    return Err(format!("the integer {} is out of range", value - center));
                }
                *place = if value < 0.0 { (value as i8).cast_unsigned() } else { value as u8 };
            }
            pack(bits, &block_codes, out);
        }
        Ok(())
    }

    fn store_scales(&self, format: Format, out: &mut [u8]) -> Result<(), String> {
        let columns = (0..self.codes.len()).step_by(format.group());
        match format {
            Format::Mxfp4 => {
                for (byte, column) in out.iter_mut().zip(columns) {
                    *byte = exponent(self.scales[self.group(column)])?;
                }
            }
            Format::Fp8 => {
                for (bytes, column) in out.as_chunks_mut::<4>().0.iter_mut().zip(columns) {
                    *bytes = fp8_scale(self.scales[self.group(column)])?.to_le_bytes();
                }
            }
            Format::Affine(Affine { scales, .. }) => {
                for (pair, column) in out.as_chunks_mut::<4>().0.iter_mut().zip(columns) {
                    let group = self.group(column);
                    let scale = self.scales[group];
                    let bias = match (&self.offsets, center(format)) {
                        (RowOffsets::Biases(biases), _) => biases[group],
                        (RowOffsets::Zeros(_), center) => -scale * center.unwrap_or(0.0),
                    };
                    let ([a, b], [c, d]) = (half(scales, scale)?, half(scales, bias)?);
                    *pair = [a, b, c, d];
                }
            }
            _ => {
                for (bytes, column) in out.as_chunks_mut::<2>().0.iter_mut().zip(columns) {
                    *bytes = half(Scales::F16, self.scales[self.group(column)])?;
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a number that the type represents exactly.
fn half(scales: Scales, number: f32) -> Result<[u8; 2], String> {
    let (bytes, value) = match scales {
        Scales::F16 => (f16::from_f32(number).to_le_bytes(), f16::from_f32(number).to_f32()),
        Scales::Bf16 => (bf16::from_f32(number).to_le_bytes(), bf16::from_f32(number).to_f32()),
    };
    if value == number { Ok(bytes) } else { Err(format!("the scale or offset {number:e} is not exact")) }
}

/// The scale, if its product with 256 is finite: kernels load a 256th of a float.
fn fp8_scale(scale: f32) -> Result<f32, String> {
    if scale.abs() <= f32::MAX / 256.0 { Ok(scale) } else { Err(format!("the scale {scale:e} is too large")) }
}

/// The exponent byte of a power of two.
fn exponent(scale: f32) -> Result<u8, String> {
    let byte = (scale.to_bits() >> 23) as u8;
    let exact = scale.is_nan() || forge_ir::from_e8m0(byte) == scale;
    if exact { Ok(byte) } else { Err(format!("the scale {scale:e} is no power of two")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::row::decode_row;
    use forge_ir::{Element, Packing, ScaleElement, ScaleFactor, ScaleTensor, Zeros};

    const COLUMNS: usize = 64;

    /// A row of integers from 0 to 15 in groups of 32, stored in a format and decoded.
    fn repacked(format: Format, scale: f32, zero: f32) -> Result<Vec<f32>, String> {
        let scales = ScaleTensor {
            tensor: "scales",
            element: ScaleElement::F32,
            rows: Some(1),
            columns: Some(32),
            transposed: false,
            factor: ScaleFactor::One,
        };
        let (element, zeros) = (Element::Unsigned(4), Zeros::Constant(8));
        let encoding = Encoding {
            name: "test",
            element,
            packing: Packing::Rows,
            codes: "codes",
            scales,
            zeros,
            groups: None,
        };
        let values: Vec<f32> = (0..=u8::MAX).map(f32::from).collect();
        let source = Source { encoding: &encoding, values: &values, columns: COLUMNS, group: 32 };
        let codes = (0..COLUMNS).map(|column| (column * 7 % 16) as u8).collect();
        let coded = CodedRows { codes, scales: vec![scale, -scale], offsets: Offsets::Zeros(vec![zero; 2]) };
        let [of_codes, of_scales] = format.plane_bytes(COLUMNS);
        let mut out = vec![0; of_codes + of_scales];
        rows(&source, &coded, format, &mut out)?;
        let mut decoded = vec![0.0; COLUMNS];
        decode_row(format, out.split_at(of_codes).into(), &mut decoded);
        Ok(decoded)
    }

    #[test]
    fn values_are_kept_in_every_format_that_has_them() {
        for (name, zero) in [
            ("q4_0", 8.0),
            ("q5_0", 15.0),
            ("q5_0", 0.0),
            ("q8_0", 3.0),
            ("affine4_32", 8.0),
            ("affine5_32_bf16", 1.0),
            ("affine6_32", 13.0),
            ("affine8_32", 7.0),
        ] {
            let values = repacked(Format::from_name(name).unwrap(), 0.375, zero).unwrap();
            for (column, value) in values.into_iter().enumerate() {
                let scale = if column < 32 { 0.375 } else { -0.375 };
                assert_eq!(value, ((column * 7 % 16) as f32 - zero) * scale, "{name} {zero} {column}");
            }
        }
    }

    #[test]
    fn a_value_is_never_changed() {
        let fails = |name, scale, zero| repacked(Format::from_name(name).unwrap(), scale, zero).unwrap_err();
        assert!(fails("q4_0", 0.1, 8.0).contains("1e-1 is not exact"));
        assert!(fails("q4_0", 0.5, 7.0).contains("8 is out of range"));
        assert!(fails("affine4_32", 16384.0, 8.0).contains("is not exact"), "8 * 16384 is beyond f16");
        assert!(fails("mxfp4", 0.75, 8.0).contains("no power of two"));
        assert!(fails("fp8", 2.0e36, 0.0).contains("too large"));
    }
}
