//! Blocks of rows of weights that are turned as they are decoded: lanes are rows then, and vectors columns.

use crate::cpu::simd::vectors::Simd;

/// How many blocks after an output's the blocks of the others of a vector lie. Past the last output that one is decoded again, and nobody
/// looks at what comes of it.
#[inline(always)]
pub(crate) fn of_lanes(outputs: usize, blocks: usize) -> [usize; 16] {
    std::array::from_fn(|lane| lane.min(outputs - 1) * blocks)
}

/// What columns of a block are handed over to, one after the other.
pub(crate) trait Columns<S: Simd> {
    /// A number of each of `LANES` rows. To be marked `inline(always)`.
    unsafe fn take(&mut self, column: usize, numbers: S::V);
}

/// Words of as many rows and columns as a vector has lanes.
#[repr(align(64))]
pub(crate) struct Tile16(pub(crate) [[f32; 16]; 16]);

impl Tile16 {
    pub(crate) const ZEROS: Tile16 = Tile16([[0.0; 16]; 16]);

    /// Where each row is.
    #[inline(always)]
    pub(crate) fn rows(&self) -> [*const f32; 16] {
        self.0.each_ref().map(|row| row.as_ptr())
    }
}
