//! [`Matrix`]: access to weights of one storage format as vectors, integer quants and group scales.
//!
//! `codes` in names means quants: the integers of a quantized format, before scale and offset.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::transpose::{Columns, Tile16};
use crate::cpu::simd::vectors::Simd;

/// Columns of a block, the unit of decoding. Groups are whole blocks.
pub(crate) const BLOCK: usize = 32;
/// Maximum number of groups whose scales are converted at once.
pub(crate) const AT_ONCE: usize = 16;

/// How the elements of [`Matrix::vector`] become values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// Elements are values.
    Done,
    /// Multiply by the group's scale.
    Scale,
    /// Multiply by the group's scale and add its offset.
    Offset,
    /// Each half of a block has its own scale. A group is one block.
    HalfBlockScale,
    /// Each half of a block has its own scale and offset. A group is one block.
    HalfBlockOffset,
}

impl Scaling {
    /// Whether offsets are added.
    pub(crate) const fn has_offsets(self) -> bool {
        matches!(self, Scaling::Offset | Scaling::HalfBlockOffset)
    }

    /// Whether each half of a block has its own scale.
    pub(crate) const fn has_half_blocks(self) -> bool {
        matches!(self, Scaling::HalfBlockScale | Scaling::HalfBlockOffset)
    }

    /// Sums of the quantized activations that each scale of a block applies to, given the sums of its two half blocks.
    #[inline(always)]
    pub(crate) fn sums_per_scale(self, half_block_sums: [i16; 2]) -> [i32; 2] {
        let [first, second] = half_block_sums.map(i32::from);
        if self.has_half_blocks() { [first, second] } else { [first + second, 0] }
    }
}

/// A matrix whose rows are `blocks` blocks long, in whole groups.
pub(crate) trait Matrix: Copy {
    /// How elements become values.
    const SCALING: Scaling;
    /// Blocks per group.
    const GROUP: usize = 1;
    /// The number of blocks in a row is a multiple of this.
    const WHOLE: usize = Self::GROUP;
    /// Maximum number of groups of one call of [`scales`](Matrix::scales).
    const SCALES_AT_ONCE: usize = AT_ONCE;
    /// Number of bf16 terms that represent each value exactly.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    const BF16_TERMS: usize = 3;

    /// Looks up the planes `<weight>_values`, or `<weight>_codes` and `<weight>_scales`.
    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self;

    /// The matrix whose planes are `bytes` bytes after this one's.
    fn after(self, bytes: usize) -> Self;

    /// Elements `part * LANES ..` of a block. `block` counts from the start of the matrix.
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V;

    /// Prefetches a block to L1; the block need not exist.
    unsafe fn prefetch<S: Simd>(self, block: usize);

    /// Bytes of a block, for formats with long-distance prefetch
    /// ([`Isa::prefetch_distance`](crate::cpu::simd::isa::Isa::prefetch_distance)); else 0.
    const OF_BLOCK: usize = 0;

    /// Address of a block of such a format; the block need not exist.
    fn place(self, _block: usize) -> *const u8 {
        std::ptr::null()
    }

    /// Prefetches such a block non-temporally; the block need not exist.
    #[inline(always)]
    unsafe fn prefetch_once<S: Simd>(self, _block: usize) {}

    /// Prefetches such a block to L2; the block need not exist.
    #[inline(always)]
    unsafe fn prefetch_far<S: Simd>(self, _block: usize) {}

    /// The scale of a block's group, or of one half of the block, in all lanes.
    #[inline(always)]
    unsafe fn scale<S: Simd>(self, _block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(1.0) }
    }

    /// The offset of a block's group, or of one half of the block, in all lanes.
    #[inline(always)]
    unsafe fn offset<S: Simd>(self, _block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(0.0) }
    }

    /// The scales of `count <= SCALES_AT_ONCE` groups. With offsets or half-block scales, each is followed by its
    /// second value. With half-block offsets, these follow from element `AT_ONCE` on in the same order.
    #[inline(always)]
    unsafe fn scales<S: Simd>(self, _group: usize, _count: usize, _to: &mut [f32; 2 * AT_ONCE]) {}

    /// Bits per quant, 0 without integer quants. The items below describe integer quants. Such a matrix can be repacked
    /// ([`crate::cpu::format::repacked`]).
    const BITS: usize = 0;
    /// Whether there are none.
    const IS_PLAIN: bool = Self::BITS == 0;
    /// Added to each result of [`codes`](Matrix::codes) gives the quant.
    const QUANT_OFFSET: i32 = 0;
    /// Whether results of `codes` are in 0..=15.
    const SMALL: bool = false;

    /// The quants of a block as signed bytes, minus [`QUANT_OFFSET`](Matrix::QUANT_OFFSET).
    #[inline(always)]
    unsafe fn codes(self, _block: usize) -> [i8; BLOCK] {
        unreachable!("this format has no integer quants")
    }

    /// The bias of `row_codes` and `strip_codes` relative to `codes`.
    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        0
    }

    /// The quants of `LANES / 8` blocks.
    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, _block: usize) -> S::Codes {
        unreachable!("this format has no integer quants")
    }

    /// Address of a block's quants; the block need not exist.
    #[inline(always)]
    fn codes_at(self, _block: usize) -> *const u8 {
        unreachable!("this format has no integer quants")
    }

    /// Two words of quants for `LANES` outputs of a strip, from output `part * LANES` on, biased as in
    /// `row_codes`. They hold the columns given by [`columns`](crate::cpu::format::quant_plane::columns). `block` counts
    /// from the start of the matrix, strip after strip.
    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, _block: usize, _pair: usize, _part: usize) -> [S::Codes; 2] {
        unreachable!("this format has no integer quants")
    }

    /// Scales of `LANES` outputs of a strip: of the block's group, or of each half of the block.
    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, _block: usize, _part: usize) -> [S::V; 2] {
        unreachable!("this format has no integer quants")
    }

    /// Offsets in the same order, 0 if the format has none.
    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, _block: usize, _part: usize) -> [S::V; 2] {
        unreachable!("this format has no integer quants")
    }

    /// Prefetches a pair of words of all outputs of a strip, non-temporally if `once`; they need not exist.
    #[inline(always)]
    unsafe fn strip_prefetch<S: Simd>(self, block: usize, pair: usize, once: bool) {
        let of_pair = Self::BITS * OUTPUTS;
        for line in (0..of_pair).step_by(64) {
            let line = self.codes_at(block * OUTPUTS).wrapping_add(pair * of_pair + line);
            // SAFETY: the caller's contract.
            unsafe { if once { S::prefetch_once(line) } else { S::prefetch(line) } }
        }
    }

    /// Values `part * LANES ..` of a block, dequantized.
    #[inline(always)]
    unsafe fn load_f32<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let v = self.vector::<S>(block, part);
            match Self::SCALING {
                Scaling::Done => v,
                Scaling::Scale | Scaling::HalfBlockScale => {
                    S::mul(v, self.scale::<S>(block, of_half::<S>(part)))
                }
                Scaling::Offset => S::fma(v, self.scale::<S>(block, 0), self.offset::<S>(block, 0)),
                Scaling::HalfBlockOffset => {
                    let half = of_half::<S>(part);
                    S::fma(v, self.scale::<S>(block, half), self.offset::<S>(block, half))
                }
            }
        }
    }

    /// Transposed load: dequantizes a block of each of `LANES` rows and passes the columns to `to`. `rows`
    /// are block offsets relative to `block`, the first row's.
    #[inline(always)]
    unsafe fn load_transposed<S: Simd>(self, block: usize, rows: &[usize; 16], to: &mut impl Columns<S>) {
        for part in 0..BLOCK / S::LANES {
            let (mut of_rows, mut of_columns) = (Tile16::ZEROS, Tile16::ZEROS);
            // SAFETY: the caller ensures that the matrix has these blocks; no instruction set has more than
            // 16 lanes.
            unsafe {
                for (row, numbers) in rows.iter().zip(&mut of_rows.0).take(S::LANES) {
                    S::store(numbers.as_mut_ptr(), self.load_f32::<S>(block + row, part));
                }
                S::transpose(of_rows.rows(), of_columns.0.as_mut_ptr().cast(), 16);
                for (lane, column) in of_columns.0.iter().enumerate().take(S::LANES) {
                    to.take(part * S::LANES + lane, S::load(column.as_ptr()));
                }
            }
        }
    }
}

/// The half of a block that contains a part.
#[inline(always)]
pub(crate) fn of_half<S: Simd>(part: usize) -> usize {
    part * S::LANES / (BLOCK / 2)
}
