//! Transposed access to weights: lanes are rows, and vectors are columns.

use crate::cpu::simd::vectors::Simd;

/// Block offsets of the outputs in a vector's lanes. Lanes past the last output repeat it, and their results
/// are unused.
#[inline(always)]
pub(crate) fn of_lanes(outputs: usize, blocks: usize) -> [usize; 16] {
    std::array::from_fn(|lane| lane.min(outputs - 1) * blocks)
}

/// A consumer of a block's columns, in order.
pub(crate) trait Columns<S: Simd> {
    /// Takes one element of each of `LANES` rows. Implementations must be `inline(always)`.
    unsafe fn take(&mut self, column: usize, numbers: S::V);
}

/// A 16×16 tile of f32 or 32-bit words.
#[repr(align(64))]
pub(crate) struct Tile16(pub(crate) [[f32; 16]; 16]);

impl Tile16 {
    pub(crate) const ZEROS: Tile16 = Tile16([[0.0; 16]; 16]);

    /// Pointers to the rows.
    #[inline(always)]
    pub(crate) fn rows(&self) -> [*const f32; 16] {
        self.0.each_ref().map(|row| row.as_ptr())
    }
}
