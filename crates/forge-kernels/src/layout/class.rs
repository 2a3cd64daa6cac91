//! Classes of formats.

use crate::context::packet_columns;
use forge_ops::Format;

/// Formats with the same access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Floats of 2 or 4 bytes.
    Plain,
    /// 8-bit quantized weights.
    Bytes,
    /// Quantized weights of fewer bits.
    Nibbles,
}

impl Class {
    pub(super) fn of(format: Format) -> Class {
        match packet_columns(format) {
            32 => Class::Nibbles,
            16 => Class::Bytes,
            _ => Class::Plain,
        }
    }
}
