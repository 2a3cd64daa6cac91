//! Why a value cannot be stored in a format.

use half::f16;

/// Why a row cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangeError {
    /// It contains an infinity or a NaN.
    NotFinite {
        /// Column of the value.
        column: usize,
    },
    /// It contains a value beyond the format's range, or the scale or offset of a group is.
    TooLarge {
        /// The value.
        value: f32,
    },
}

impl RangeError {
    /// An error if a finite value exceeds the range of f16, in which kernels for many rows multiply.
    pub(crate) fn check_f16(row: &[f32]) -> Result<(), RangeError> {
        match row.iter().find(|x| x.abs() > f16::MAX.to_f32()) {
            Some(x) => Err(RangeError::TooLarge { value: *x }),
            None => Ok(()),
        }
    }
}
