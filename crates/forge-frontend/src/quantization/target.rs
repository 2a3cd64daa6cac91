//! The format that a matrix's values are kept in.
//!
//! A format with the same bits is kept. Integers are repacked if one of forge's formats has the same values:
//! differences of a code and its zero point are integers of one more bit, unless all zero points are in the
//! middle. Everything else is dequantized.

use crate::quantization::exactness::Exactness;
use forge_ir::{
    Affine, BLOCK, Bits, Element, Encoding, Format, Group, ScaleElement, ScaleFactor, Scales, Zeros,
};

/// What happens to the values of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// The same codes and scales in another order.
    Kept,
    /// The same codes and scales, which are multiplied by the inverse of a divisor: some differ from the
    /// quotients in the last bit of f32.
    KeptByInverse,
    /// Other codes or scales with the same values.
    Repacked,
    /// Floats with the same values.
    Dequantized,
    /// Floats, rounded.
    Rounded,
}

/// Largest f16.
const LARGEST_HALF: f32 = 65504.0;

/// The format of a matrix of this many columns, whose model computes in `float`.
pub(crate) fn format(encoding: &Encoding, of: &Exactness, columns: usize, float: Format) -> (Format, Change) {
    if let Some(format) = same_bits(encoding, columns) {
        // Other scales are stored after the division.
        let is_rounded = format == Format::Nvfp4 && !of.inverse;
        return (format, if is_rounded { Change::KeptByInverse } else { Change::Kept });
    }
    if let Some(format) = affine(encoding, of, columns) {
        return (format, Change::Kept);
    }
    if let Some(format) = integers(encoding, of, columns) {
        return (format, Change::Repacked);
    }
    let exact = of.is_exact_in(float, encoding);
    (float, if exact { Change::Dequantized } else { Change::Rounded })
}

/// The format with the same codes and scales.
fn same_bits(encoding: &Encoding, columns: usize) -> Option<Format> {
    let scales = encoding.scales;
    let is_mxfp4 = encoding.element == Element::E2m1
        && scales.element == ScaleElement::E8m0
        && (scales.rows, scales.columns, scales.factor) == (Some(1), Some(BLOCK), ScaleFactor::One)
        && columns.is_multiple_of(BLOCK);
    // A scale for more rows or columns is repeated, and its product with a factor is rounded to f32 as before.
    let is_fp8 = encoding.element == Element::E4m3
        && encoding.zeros == Zeros::Constant(0)
        && scales.columns.is_none_or(|group| group.is_multiple_of(Format::Fp8.group()));
    let is_nvfp4 = encoding.element == Element::E2m1
        && scales.element == ScaleElement::E4m3
        && (scales.rows, scales.columns, scales.transposed) == (Some(1), Some(16), false)
        && columns.is_multiple_of(16);
    match (is_mxfp4, is_fp8, is_nvfp4) {
        (true, ..) => Some(Format::Mxfp4),
        (_, true, _) => Some(Format::Fp8),
        (.., true) => Some(Format::Nvfp4),
        _ => None,
    }
}

/// Scales of 16 bits that hold every scale and bias, f16 first.
fn scales(of: &Exactness) -> Option<Scales> {
    match (of.f16, of.bf16) {
        (true, _) => Some(Scales::F16),
        (false, true) => Some(Scales::Bf16),
        (false, false) => None,
    }
}

/// The affine format of codes with biases.
fn affine(encoding: &Encoding, of: &Exactness, columns: usize) -> Option<Format> {
    let (Zeros::Biases(_), Element::Unsigned(bits)) = (encoding.zeros, encoding.element) else { return None };
    let group = encoding.scales.columns.filter(|group| columns.is_multiple_of(*group))?;
    Affine::of(bits as usize, group, scales(of)?).map(Format::Affine)
}

/// The format of integers relative to a zero point.
fn integers(encoding: &Encoding, of: &Exactness, columns: usize) -> Option<Format> {
    let is_plain = encoding.element.is_integer() && encoding.groups.is_none();
    if !is_plain || matches!(encoding.zeros, Zeros::Biases(_)) {
        return None;
    }
    let bits = encoding.element.bits() + usize::from(!of.centered);
    let group = encoding.group(columns);
    let fits = |size: &usize| group.is_multiple_of(*size) && columns.is_multiple_of(*size);
    let size = [Group::Of128, Group::Of64, Group::Of32].map(Group::columns).into_iter().find(fits)?;
    let scales = scales(of)?;
    match (scales, bits, size) {
        (Scales::F16, 8, _) => return Some(Format::Q8_0),
        (Scales::F16, 5, BLOCK) => return Some(Format::Q5_0),
        (Scales::F16, 4, BLOCK) => return Some(Format::Q4_0),
        _ => {}
    }
    // The offset of an affine format is the scale times the middle of the codes.
    let affine = Affine::of(bits, size, scales)?;
    let middle = (1_u32 << (affine.bits.count() - 1)) as f32;
    let is_in_range = scales == Scales::Bf16 || of.largest * middle <= LARGEST_HALF;
    (is_in_range && affine.bits >= Bits::Eight).then_some(Format::Affine(affine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_ir::{Packing, ScaleTensor};

    fn encoding(element: Element, group: Option<usize>, zeros: Zeros) -> Encoding {
        let scales = ScaleTensor {
            tensor: "scales",
            element: ScaleElement::F16,
            rows: Some(1),
            columns: group,
            transposed: false,
            factor: ScaleFactor::One,
        };
        Encoding {
            name: "test",
            element,
            packing: Packing::Rows,
            codes: "codes",
            scales,
            zeros,
            groups: None,
        }
    }

    #[test]
    fn integers_take_the_smallest_format_with_the_same_values() {
        let name = |bits, group, columns, of: Exactness| {
            let zeros = Zeros::Constant(1_u32 << (bits - 1));
            format(&encoding(Element::Unsigned(bits), group, zeros), &of, columns, Format::Bf16).0.name()
        };
        let half = Exactness::NONE;
        let uncentered = Exactness { centered: false, ..half };
        let brain = Exactness { f16: false, ..half };
        let neither = Exactness { bf16: false, ..brain };
        assert_eq!(name(4, Some(128), 256, half), "affine4_128");
        assert_eq!(name(4, Some(128), 256, uncentered), "affine5_128");
        assert_eq!(name(4, Some(32), 256, half), "q4_0");
        assert_eq!(name(4, Some(32), 256, uncentered), "q5_0");
        assert_eq!(name(4, Some(32), 256, brain), "affine4_32_bf16");
        assert_eq!(name(4, None, 192, half), "affine4", "the largest group that divides the columns");
        assert_eq!(name(4, Some(16), 256, half), "bf16");
        assert_eq!(name(8, Some(128), 256, half), "q8_0");
        assert_eq!(name(8, Some(128), 256, brain), "affine8_128_bf16");
        assert_eq!(name(8, Some(128), 256, uncentered), "bf16", "9 bits");
        assert_eq!(name(2, Some(64), 256, uncentered), "affine3");
        assert_eq!(name(4, Some(128), 256, neither), "bf16");
        assert_eq!(
            name(4, Some(128), 256, Exactness { largest: 8189.0, ..half }),
            "bf16",
            "8 * 8189 > 65504"
        );
    }

    #[test]
    fn codes_with_biases_are_kept_if_16_bits_hold_their_scales() {
        let stored = encoding(Element::Unsigned(6), Some(64), Zeros::Biases("biases"));
        let named = |of: Exactness| format(&stored, &of, 128, Format::Bf16);
        let affine = |name| Format::from_name(name).unwrap();
        let half = Exactness::NONE;
        assert_eq!(named(half), (affine("affine6"), Change::Kept));
        assert_eq!(named(Exactness { f16: false, ..half }), (affine("affine6_bf16"), Change::Kept));
        let neither = Exactness { f16: false, bf16: false, ..half };
        assert_eq!(named(neither), (Format::Bf16, Change::Rounded));
    }

    #[test]
    fn floats_are_exact_if_all_their_bits_fit() {
        let stored = encoding(Element::E4m3, Some(64), Zeros::Constant(0));
        let change = |significant, lowest, float| {
            format(&stored, &Exactness { significant, lowest, ..Exactness::NONE }, 128, float).1
        };
        // E4M3 has 4 significant bits, the smallest 2^-9.
        assert_eq!(change(4, -20, Format::Bf16), Change::Dequantized);
        assert_eq!(change(5, -20, Format::Bf16), Change::Rounded);
        assert_eq!(change(7, -15, Format::F16), Change::Dequantized);
        assert_eq!(change(1, -16, Format::F16), Change::Rounded);
        assert_eq!(change(20, -90, Format::F32), Change::Dequantized);
        assert_eq!(change(24, -90, Format::F32), Change::Rounded);
    }
}
