//! Why a value cannot be stored in a format.

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
