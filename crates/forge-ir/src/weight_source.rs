//! Where the numbers of a graph's weights come from: the checkpoint, or the weight file that was packed from it.
//!
//! The weight writer and the reference read weights through this and so need not know which of the two it is.

use crate::diagnostic::Diagnostic;
use crate::graph::WeightId;
use std::ops::Range;

/// The numbers of a graph's weights, decoded. Asked from many threads, for a few rows at a time.
pub trait WeightRows: Sync {
    /// Fills `out` with these rows of a weight, row by row without padding. A vector is one row. What the weight adds to
    /// its tensor's numbers is in them.
    ///
    /// # Errors
    /// When the bytes cannot be read, or `rows` and `out` do not fit the weight.
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic>;

    /// Fills `out` with these rows of a weight as it is stored in a quantised format: each row its codes and then its scales,
    /// as the planes of the format have them.
    ///
    /// # Errors
    /// As above, and where the weight is not stored so.
    fn stored(&self, weight: WeightId, rows: Range<usize>, out: &mut [u8]) -> Result<(), Diagnostic> {
        let (WeightId(weight), length) = (weight, out.len());
        let message = format!("rows {rows:?} of weight {weight} are not to be had as {length} bytes");
        Err(Diagnostic::new("F0108", message))
    }
}
