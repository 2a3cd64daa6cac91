//! Rounds f32 values to integers, vectorized.

/// 1.5 * 2^23. Adding it rounds a small value to an integer, ties to even, which is then in the low bits of
/// the sum.
pub(crate) const WHOLE: f32 = 12_582_912.0;

/// The nearest integer, ties away from zero.
pub(super) fn round(x: f32) -> f32 {
    let even = (x + WHOLE) - WHOLE;
    let rest = x - even;
    even + if x > 0.0 && rest == 0.5 { 1.0 } else { 0.0 } - if x < 0.0 && rest == -0.5 { 1.0 } else { 0.0 }
}

/// The unsigned integer of a value in `-zero..=zero`: floor(value + zero + 0.5), less than 2 * zero.
pub(super) fn unsigned(x: f32, zero: f32) -> f32 {
    let above = x + zero + 0.5;
    let near = (above + WHOLE) - WHOLE;
    let whole = if near > above { near - 1.0 } else { near };
    whole.min(2.0 * zero - 1.0)
}

/// The low byte of a value offset by [`WHOLE`].
pub(crate) fn code_of(whole: f32) -> u8 {
    (whole + WHOLE).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounds_half_away_from_zero() {
        let cases = [
            (0.5, 1.0),
            (-0.5, -1.0),
            (1.5, 2.0),
            (2.5, 3.0),
            (-2.5, -3.0),
            (126.5, 127.0),
            (0.49999997, 0.0),
        ];
        for (x, expected) in cases {
            assert_eq!(round(x), expected, "{x}");
        }
    }

    proptest! {
        #[test]
        fn rounding_matches_the_standard_library(x in -127.01_f32..127.01, half in -127_i8..127) {
            for x in [x, f32::from(half) + 0.5, (f32::from(half) + 0.5).next_up(), (f32::from(half) + 0.5).next_down()] {
                prop_assert_eq!(round(x), x.round(), "{}", x);
                prop_assert_eq!(code_of(round(x)).cast_signed(), x.round() as i8);
            }
        }

        #[test]
        fn nibble_codes_truncate(x in -8.001_f32..8.001, half in -8_i8..8) {
            for x in [x, f32::from(half) + 0.5, (f32::from(half) + 0.5).next_down()] {
                prop_assert_eq!(code_of(unsigned(x, 8.0)), ((x + 8.5) as u8).min(15), "{}", x);
            }
        }
    }
}
