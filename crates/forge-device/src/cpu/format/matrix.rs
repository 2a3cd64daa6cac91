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
    /// Added to each result of [`codes`](Matrix::codes) gives the quant; `None` without integer quants.
    const QUANT_OFFSET: Option<i32> = None;
    /// Whether the quants are in 0..=15.
    const SMALL: bool = false;

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

    /// The quants of a block as signed bytes, minus [`QUANT_OFFSET`](Matrix::QUANT_OFFSET).
    #[inline(always)]
    unsafe fn codes(self, _block: usize) -> [i8; BLOCK] {
        [0; BLOCK]
    }

    /// Whether the int8 GEMV is available: `row_codes` then loads the same quants as `codes`, `LANES / 8`
    /// blocks at a time.
    const ROW: bool = false;

    /// The bias of `row_codes` relative to `codes`.
    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        0
    }

    /// Address of the 4-bit quants, for formats whose quants are nibbles only.
    #[inline(always)]
    fn nibbles(self) -> *const u8 {
        unreachable!("the quants of this format are not nibbles")
    }

    /// The quants of one or two blocks.
    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe { S::load_nibble_codes(self.nibbles().add(block * (BLOCK / 2))) }
    }

    /// Whether the matrix can be repacked ([`crate::cpu::format::repacked`]). The items below describe a
    /// repacked matrix.
    const STRIPS: bool = false;

    /// Whether repacked quants are whole bytes.
    const BYTES: bool = false;

    /// Two words of quants for `LANES` outputs of a strip, from output `part * LANES` on, biased as in
    /// `row_codes`. Pairs are in memory order and hold the columns given by `columns`. `block` counts from
    /// the start of the matrix, strip after strip.
    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        let place = (block * 4 + pair) * 4 * OUTPUTS + part * 4 * S::LANES;
        // SAFETY: the caller's contract.
        unsafe { S::load_nibble_pairs(self.nibbles().add(place)) }
    }

    /// The first column of each word of a pair.
    #[inline(always)]
    fn columns(pair: usize) -> [usize; 2] {
        match Self::BYTES {
            true => [8 * pair, 8 * pair + 4],
            false => [4 * pair, BLOCK / 2 + 4 * pair],
        }
    }

    /// Bytes of a block's quants in a strip.
    const OF_STRIP: usize = if Self::BYTES { BLOCK * OUTPUTS } else { BLOCK / 2 * OUTPUTS };

    /// Address of a block's quants in a strip; the block need not exist.
    #[inline(always)]
    fn strip(self, block: usize) -> *const u8 {
        self.nibbles().wrapping_add(block * Self::OF_STRIP)
    }

    /// Prefetches a pair of words of all outputs, non-temporally if `once`; they need not exist.
    #[inline(always)]
    unsafe fn strip_prefetch<S: Simd>(self, block: usize, pair: usize, once: bool) {
        let of_pair = Self::OF_STRIP / 4;
        for line in (0..of_pair).step_by(64) {
            let line = self.strip(block).wrapping_add(pair * of_pair + line);
            // SAFETY: the caller's contract.
            unsafe { if once { S::prefetch_once(line) } else { S::prefetch(line) } }
        }
    }

    /// Words `word` and `word + 4` of all outputs, with quants as in `codes`.
    #[inline(always)]
    unsafe fn strip_words(self, block: usize, word: usize) -> [[u32; OUTPUTS]; 2] {
        let words = self.nibbles().cast::<[u32; OUTPUTS]>().wrapping_add(block * 4 + word);
        // SAFETY: the caller's contract.
        let mut near = unsafe { words.read_unaligned() };
        let mut far = near;
        for (near, far) in near.iter_mut().zip(&mut far) {
            (*near, *far) = (*near & 0x0f0f_0f0f, *far >> 4 & 0x0f0f_0f0f);
        }
        [near, far]
    }

    /// The scale and offset of one output of a strip.
    #[inline(always)]
    unsafe fn strip_scale(self, _block: usize, _output: usize) -> [f32; 2] {
        unreachable!("this format cannot be repacked")
    }

    /// Scales of `LANES` outputs of a strip.
    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, _block: usize, _part: usize) -> S::V {
        unreachable!("this format cannot be repacked")
    }

    /// Offsets of `LANES` outputs of a strip, 0 if the format has none.
    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, _block: usize, _part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(0.0) }
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
