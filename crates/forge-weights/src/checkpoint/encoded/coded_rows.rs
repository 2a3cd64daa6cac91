//! Codes of rows, with the scales and offsets of their groups.

/// Codes, scales and offsets of some rows.
pub(super) struct CodedRows {
    /// One byte per code.
    pub(super) codes: Vec<u8>,
    /// Scales of every row's groups.
    pub(super) scales: Vec<f32>,
    /// Offsets of every row's groups.
    pub(super) offsets: Offsets,
}

/// What the values of codes are relative to, for every row's groups.
pub(super) enum Offsets {
    /// Subtracted from the value of a code.
    Zeros(Vec<f32>),
    /// Added to the product of a code and its scale.
    Biases(Vec<f32>),
}
