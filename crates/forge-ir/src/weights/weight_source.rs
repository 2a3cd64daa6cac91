//! Access to dequantized weights, from the checkpoint or from the packed weight file.
//!
//! The weight writer and the reference read weights through this trait, whichever the source.

use crate::diagnostic::Diagnostic;
use crate::graph::draft::WeightId;
use std::ops::Range;

/// Dequantized rows of a graph's weights. Methods are called from many threads, for a few rows at a time.
pub trait WeightRows: Sync {
    /// Fills `out` with rows of a weight in f32, row by row without padding. A vector is one row. Values
    /// include the 1 of [`crate::Weight::plus_one`].
    ///
    /// # Errors
    /// If the bytes cannot be read, or `rows` and `out` do not fit the weight.
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic>;

    /// Fills `out` with rows of a weight in its quantized format: for each row the quantized values, then the
    /// scales, as in the format's planes.
    ///
    /// # Errors
    /// As for [`WeightRows::rows`], and if the weight is not stored in that format.
    fn stored(&self, weight: WeightId, rows: Range<usize>, out: &mut [u8]) -> Result<(), Diagnostic> {
        let (WeightId(weight), length) = (weight, out.len());
        let message = format!("rows {rows:?} of weight {weight} are not available as {length} bytes");
        Err(Diagnostic::new("F0108", message))
    }
}
