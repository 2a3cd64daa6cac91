//! Values of floats of 8 and 16 bits.

/// The value of a float of 8 bits in OCP E4M3: bias 7, no infinity, NaN for all bits of exponent and fraction
/// set.
pub fn from_e4m3(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * power(-9),
        _ => (8.0 + fraction) * power(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The power of two of an exponent of 8 bits (OCP E8M0): bias 127, 255 is NaN.
pub fn from_e8m0(bits: u8) -> f32 {
    match bits {
        255 => f32::NAN,
        // 2^-127 is subnormal: the highest bit of the fraction.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}

/// The value of a bfloat16.
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The value of an IEEE half.
pub fn from_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match (exponent, bits & 1023) {
        (31, 0) => f32::INFINITY,
        (31, _) => f32::NAN,
        (0, _) => fraction * power(-24),
        _ => (1024.0 + fraction) * power(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// 2 to a power in the normal range of f32.
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_matches_the_specification() {
        // OCP 8-bit floating point, table 3.
        let cases = [
            (0x00, 0.0),
            (0x01, 2.0_f32.powi(-9)),
            (0x07, 0.875 * 2.0_f32.powi(-6)),
            (0x08, 2.0_f32.powi(-6)),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ];
        for (bits, value) in cases {
            assert_eq!(from_e4m3(bits), value, "{bits:#x}");
        }
        assert!(from_e4m3(0x7f).is_nan() && from_e4m3(0xff).is_nan());
    }

    #[test]
    fn halves_match_their_definitions() {
        let cases = [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2.0_f32.powi(-24)),
            (0x3555, 0.333_251_95),
        ];
        for (bits, value) in cases {
            assert_eq!(from_f16(bits), value, "{bits:#x}");
        }
        assert!(from_f16(0x7c01).is_nan() && from_f16(0xfc00) == f32::NEG_INFINITY);
        assert_eq!([0x3f80, 0xc040].map(from_bf16), [1.0, -3.0]);
        assert_eq!([0, 127, 130].map(from_e8m0), [2.0_f32.powi(-127), 1.0, 8.0]);
    }
}
