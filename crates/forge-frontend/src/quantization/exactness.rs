//! What the scales and zero points of matrices have in common: whether a smaller type holds them exactly.
//!
//! All matrices of a checkpoint with the same encoding are judged together, so that they get the same format.

use crate::quantization::module::Module;
use forge_ir::{
    Element, Encoding, Format, ScaleElement, ScaleFactor, ZeroPacking, Zeros, factor_of_divisor, from_f16,
};

/// Properties of scales, biases and zero points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exactness {
    /// Whether f16 holds every scale and bias.
    pub(crate) f16: bool,
    /// Whether bf16 holds every scale and bias.
    pub(crate) bf16: bool,
    /// Whether every zero point is the middle of the codes.
    pub(crate) centered: bool,
    /// Whether E4M3 scales times the inverse of their divisor equal the quotients.
    pub(crate) inverse: bool,
    /// Largest magnitude of a scale.
    pub(crate) largest: f32,
    /// Significant bits of the scale that has most.
    pub(crate) significant: u32,
    /// Exponent of the smallest bit of a scale.
    pub(crate) lowest: i32,
}

impl Exactness {
    /// Of no scales.
    pub(crate) const NONE: Exactness = Exactness {
        f16: true,
        bf16: true,
        centered: true,
        inverse: true,
        largest: 0.0,
        significant: 0,
        lowest: i32::MAX,
    };

    /// Of both.
    pub(crate) fn and(self, other: Exactness) -> Exactness {
        Exactness {
            f16: self.f16 && other.f16,
            bf16: self.bf16 && other.bf16,
            centered: self.centered && other.centered,
            inverse: self.inverse && other.inverse,
            largest: self.largest.max(other.largest),
            significant: self.significant.max(other.significant),
            lowest: self.lowest.min(other.lowest),
        }
    }

    /// Adds a scale or bias.
    fn with(self, number: f32) -> Exactness {
        let (significant, lowest) = precision(number);
        Exactness {
            f16: self.f16 && is_f16(number),
            bf16: self.bf16 && number.to_bits().trailing_zeros() >= 16,
            largest: self.largest.max(number.abs()),
            significant: self.significant.max(significant),
            lowest: self.lowest.min(lowest),
            ..self
        }
    }

    /// Reads scales, biases and zero points of a module, or returns why it cannot.
    pub(crate) fn of(module: &Module<'_>, encoding: &Encoding) -> Result<Exactness, String> {
        let scales = encoding.scales;
        if let (ScaleElement::Nested(_), _) | (_, Element::Table(_)) = (scales.element, encoding.element) {
            return Ok(Exactness { f16: false, bf16: false, significant: u32::MAX, ..Exactness::NONE });
        }
        let factor: Box<dyn Fn(f32) -> f32> = match scales.factor {
            ScaleFactor::One => Box::new(|scale| scale),
            ScaleFactor::Times(name) => {
                let factor = module.scalar(name)?;
                Box::new(move |scale| scale * factor)
            }
            ScaleFactor::Over(name) => {
                let divisor = module.scalar(name)?;
                Box::new(move |scale| scale / divisor)
            }
            ScaleFactor::OverConstant(divisor) => Box::new(move |scale| scale / divisor as f32),
        };
        let mut found = Exactness::NONE;
        if let ScaleFactor::Over(name) = scales.factor {
            found.inverse = factor_of_divisor(module.scalar(name)?).1;
        }
        let biases = if let Zeros::Biases(name) = encoding.zeros { Some(name) } else { None };
        for name in std::iter::once(scales.tensor).chain(biases) {
            let size = scales.element.bytes();
            let numbers = match scales.element {
                // There are many, and all numbers of 8 bits together are hardly less exact.
                ScaleElement::E4m3 => (0..=u8::MAX).collect(),
                _ => distinct(module.bytes(module.require(name)?)?, size),
            };
            for bytes in numbers.chunks_exact(size) {
                let scale = factor(scales.element.value(bytes));
                if scale.is_finite() {
                    found = found.with(scale);
                } else if scales.element != ScaleElement::E4m3 {
                    return Err(format!("{}.{name} has a scale that is infinite or NaN", module.name));
                }
            }
        }
        found.centered = is_centered(module, encoding)?;
        Ok(found)
    }

    /// Whether a float format holds every value exactly.
    pub(crate) fn is_exact_in(&self, format: Format, encoding: &Encoding) -> bool {
        let (bits, smallest) = match format {
            Format::F32 => (24, -149),
            Format::Bf16 => (8, -133),
            Format::F16 => (11, -24),
            _ => return false,
        };
        let (significant, lowest) = encoding.element.precision();
        let more = match encoding.zeros {
            Zeros::Constant(_) => 0,
            // The difference of two codes.
            Zeros::Tensor { .. } => 1,
            Zeros::Biases(_) => return false,
        };
        self.significant.saturating_add(significant + more) <= bits
            && self.lowest.saturating_add(lowest) >= smallest
    }
}

/// Whether all zero points of a module are the middle of the codes.
fn is_centered(module: &Module<'_>, encoding: &Encoding) -> Result<bool, String> {
    let bits = encoding.element.bits();
    let middle = if encoding.element == Element::Signed8 { 0 } else { 1_u32 << (bits - 1) };
    let (tensor, packing, plus) = match encoding.zeros {
        Zeros::Constant(zero) => return Ok(zero == middle),
        Zeros::Biases(_) => return Ok(false),
        Zeros::Tensor { tensor, packing, plus } => (tensor, packing, plus),
    };
    let bytes = module.bytes(module.require(tensor)?)?;
    if packing == ZeroPacking::SignedBytes {
        return Ok(bytes.iter().all(|byte| *byte == 0));
    }
    let largest = (1_u32 << bits) - 1;
    let mut centered = true;
    for byte in distinct(bytes, 1) {
        for place in 0..8 / bits {
            let zero = u32::from(byte) >> (place * bits) & largest;
            if plus > 0 && zero == largest {
                return Err(format!(
                    "{}.{tensor} has a zero point of {largest} plus {plus}, which readers of this format treat differently; convert it to gptq_v2",
                    module.name
                ));
            }
            centered &= zero + plus == middle;
        }
    }
    Ok(centered)
}

/// The elements of a tensor, which take this many bytes; each once if they take 1 or 2.
fn distinct(bytes: Vec<u8>, size: usize) -> Vec<u8> {
    if size > 2 {
        return bytes;
    }
    let mut seen = vec![false; 1 << (8 * size)];
    let bits = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, byte| bits << 8 | usize::from(*byte));
    bytes.chunks_exact(size).for_each(|bytes| seen[bits(bytes)] = true);
    let found = seen.iter().enumerate().filter(|(_, seen)| **seen);
    found.flat_map(|(bits, _)| bits.to_le_bytes().into_iter().take(size)).collect()
}

/// Whether f16 holds a number.
fn is_f16(number: f32) -> bool {
    let (significant, lowest) = precision(number);
    significant <= 11 && lowest >= -24 && number.abs() <= from_f16(0x7bff)
}

/// Significant bits of a finite number, and the exponent of its smallest bit.
fn precision(number: f32) -> (u32, i32) {
    let magnitude = number.to_bits() & 0x7fff_ffff;
    if magnitude == 0 {
        return (0, i32::MAX);
    }
    let (exponent, fraction) = ((magnitude >> 23) as i32, magnitude & 0x7f_ffff);
    let (whole, scale) = if exponent == 0 { (fraction, -149) } else { (fraction | 1 << 23, exponent - 150) };
    let zeros = whole.trailing_zeros();
    (u32::BITS - whole.leading_zeros() - zeros, scale + zeros as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_ir::from_bf16;

    #[test]
    fn finds_the_types_that_hold_a_number() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (from_f16(bits), from_bf16(bits));
            if half.is_finite() {
                assert!(is_f16(half) && !is_f16(f32::from_bits(half.to_bits() | 1)), "{half:e}");
            }
            if brain.is_finite() {
                assert!(Exactness::NONE.with(brain).bf16, "{brain:e}");
            }
        }
        assert!(!is_f16(65536.0) && !is_f16(2.0_f32.powi(-25)) && is_f16(0.0));
        assert!(!Exactness::NONE.with(1.0 + 2.0_f32.powi(-9)).bf16);
    }

    #[test]
    fn counts_significant_bits() {
        let cases = [(1.0, (1, 0)), (6.0, (2, 1)), (0.75, (2, -2)), (-5.0, (3, 0)), (0.1, (24, -27))];
        for (number, expected) in cases {
            assert_eq!(precision(number), expected, "{number}");
        }
        assert_eq!(precision(f32::from_bits(3)), (2, -149));
    }
}
