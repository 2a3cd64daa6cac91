//! How a matrix is read: one type per number format, each giving vectors of numbers or codes and the scales of groups.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::transpose::{Columns, Tile16};
use crate::cpu::simd::vectors::Simd;

/// Columns of a block: what is decoded at once. Groups of columns are whole blocks.
pub(crate) const BLOCK: usize = 32;
/// Groups whose scales are widened at once.
pub(crate) const AT_ONCE: usize = 16;

/// How the numbers of a weight or of a cache are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Singles.
    F32,
    /// Halves.
    F16,
    /// The upper halves of singles.
    Bf16,
    /// Signed bytes, 32 to a scale.
    Q8_0,
    /// Nibbles, 32 to a scale.
    Q4_0,
    /// Codes of 6 bits, 16 to a scale that is a multiple of its superblock's.
    Q6K,
    /// Codes of 5 bits, 32 to a scale and an offset that are multiples of their superblock's.
    Q5K,
    /// The same with codes of 4 bits.
    Q4K,
    /// Floats of 4 bits, 32 to a power of two.
    Mxfp4,
    /// Unsigned codes, so many columns to a scale and an offset.
    Affine {
        /// Of a code.
        bits: usize,
        /// Columns of a group.
        group: usize,
        /// Whether scales and offsets are bfloats, not halves.
        bf16: bool,
    },
}

/// What makes numbers of vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// They are numbers.
    Done,
    /// They are codes, which have to be multiplied by their group's scale.
    Scale,
    /// To what has been multiplied the group's offset is added.
    Offset,
    /// A group is a block, and each half of it has a scale.
    Halves,
}

/// A matrix whose rows are `blocks` blocks long, in whole groups.
pub(crate) trait Matrix: Copy {
    /// What makes numbers of its vectors.
    const SCALING: Scaling;
    /// Blocks of a group.
    const GROUP: usize = 1;
    /// Blocks that a row is a multiple of.
    const WHOLE: usize = Self::GROUP;
    /// Bfloats that each of its numbers is a sum of.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    const PARTS: usize = 3;
    /// What has to be added to its [`codes`](Matrix::codes), if it has any.
    const LACKING: Option<i32> = None;
    /// Whether these are from 0 to 15.
    const SMALL: bool = false;

    /// The planes named `<weight>_values`, or `<weight>_codes` and `<weight>_scales`.
    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self;

    /// The matrix whose planes lie so many bytes after this one's.
    fn after(self, bytes: usize) -> Self;

    /// Lanes `part * LANES ..` of a block; `block` counts from the matrix's first.
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V;

    /// Asks for a block to be brought near; it need not exist.
    unsafe fn prefetch<S: Simd>(self, block: usize);

    /// Bytes of a block, where rows are read far ahead ([`Isa::asking`](crate::cpu::simd::isa::Isa::asking)); else 0.
    const OF_BLOCK: usize = 0;

    /// Where such a block lies, which need not exist.
    fn place(self, _block: usize) -> *const u8 {
        std::ptr::null()
    }

    /// Asks for such a block to be brought near as what is read once; it need not exist.
    #[inline(always)]
    unsafe fn prefetch_once<S: Simd>(self, _block: usize) {}

    /// Asks for such a block to be brought as near as what is far ahead should be; it need not exist.
    #[inline(always)]
    unsafe fn prefetch_far<S: Simd>(self, _block: usize) {}

    /// The scale of a block's group in all lanes, or that of its half where halves have scales.
    #[inline(always)]
    unsafe fn scale<S: Simd>(self, _block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::splat(1.0) }
    }

    /// The offset of a block's group in all lanes.
    #[inline(always)]
    unsafe fn offset<S: Simd>(self, _block: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::splat(0.0) }
    }

    /// The scales of `count <= AT_ONCE` groups; where there are offsets, or scales of halves, each with its second after it.
    #[inline(always)]
    unsafe fn scales<S: Simd>(self, _group: usize, _count: usize, _to: &mut [f32; 2 * AT_ONCE]) {}

    /// The codes of a block whose numbers are codes times a scale, and plus an offset if there is one: see `LACKING`.
    #[inline(always)]
    unsafe fn codes(self, _block: usize) -> [i8; BLOCK] {
        [0; BLOCK]
    }

    /// Whether a row alone is encoded, too: `row_codes` gives what `codes` does, `LANES / 8` blocks at once.
    const ROW: bool = false;

    /// By how much `row_codes` are larger.
    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        0
    }

    /// Where codes of half a byte lie, of a format that has such: its codes, in rows and in strips, are made of nothing else.
    #[inline(always)]
    fn nibbles(self) -> *const u8 {
        unreachable!("codes of this format are not half a byte")
    }

    /// Codes of a block, or of two.
    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's promise.
        unsafe { S::load_nibble_codes(self.nibbles().add(block * (BLOCK / 2))) }
    }

    /// Whether it can lie in strips ([`crate::cpu::format::repacked`]), of which what follows tells.
    const STRIPS: bool = false;

    /// Whether a strip's codes are whole bytes, each word of them by itself.
    const BYTES: bool = false;

    /// Two words of `LANES` outputs of a strip, from output `part * LANES` on: codes as `row_codes` gives them. Pairs of words are in the
    /// order of memory, and have the columns that `columns` says. `block` counts from the matrix's first, strip after strip.
    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        let place = (block * 4 + pair) * 4 * OUTPUTS + part * 4 * S::LANES;
        // SAFETY: the caller's promise.
        unsafe { S::load_nibble_pairs(self.nibbles().add(place)) }
    }

    /// Of which columns of a block these words are, the first of each.
    #[inline(always)]
    fn columns(pair: usize) -> [usize; 2] {
        match Self::BYTES {
            true => [8 * pair, 8 * pair + 4],
            false => [4 * pair, BLOCK / 2 + 4 * pair],
        }
    }

    /// Bytes of a block's codes in a strip.
    const OF_STRIP: usize = if Self::BYTES { BLOCK * OUTPUTS } else { BLOCK / 2 * OUTPUTS };

    /// Where a block's codes lie in a strip. It need not exist.
    #[inline(always)]
    fn strip(self, block: usize) -> *const u8 {
        self.nibbles().wrapping_add(block * Self::OF_STRIP)
    }

    /// Asks for these words of all outputs to be brought near, as what is read once if that is said; they need not exist.
    #[inline(always)]
    unsafe fn strip_prefetch<S: Simd>(self, block: usize, pair: usize, once: bool) {
        let of_pair = Self::OF_STRIP / 4;
        for line in (0..of_pair).step_by(64) {
            let line = self.strip(block).wrapping_add(pair * of_pair + line);
            // SAFETY: the caller's promise.
            unsafe { if once { S::prefetch_once(line) } else { S::prefetch(line) } }
        }
    }

    /// Words `word` and `word + 4` of all outputs, as `codes` gives them.
    #[inline(always)]
    unsafe fn strip_words(self, block: usize, word: usize) -> [[u32; OUTPUTS]; 2] {
        let words = self.nibbles().cast::<[u32; OUTPUTS]>().wrapping_add(block * 4 + word);
        // SAFETY: the caller's promise.
        let mut near = unsafe { words.read_unaligned() };
        let mut far = near;
        for (near, far) in near.iter_mut().zip(&mut far) {
            (*near, *far) = (*near & 0x0f0f_0f0f, *far >> 4 & 0x0f0f_0f0f);
        }
        [near, far]
    }

    /// The scale of an output of a strip, and its offset.
    #[inline(always)]
    unsafe fn strip_scale(self, _block: usize, _output: usize) -> [f32; 2] {
        unreachable!("there are no strips of this format")
    }

    /// Scales of `LANES` outputs of a strip.
    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, _block: usize, _part: usize) -> S::V {
        unreachable!("there are no strips of this format")
    }

    /// Their offsets, if there are any.
    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, _block: usize, _part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::splat(0.0) }
    }

    /// Lanes `part * LANES ..` of a block: the numbers themselves.
    #[inline(always)]
    unsafe fn widened<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let v = self.vector::<S>(block, part);
            match Self::SCALING {
                Scaling::Done => v,
                Scaling::Scale | Scaling::Halves => S::mul(v, self.scale::<S>(block, of_half::<S>(part))),
                Scaling::Offset => S::fma(v, self.scale::<S>(block, 0), self.offset::<S>(block)),
            }
        }
    }

    /// Decodes a block of each of `LANES` rows, and hands its columns over. The first row's is `block`, those of the others lie as many blocks
    /// after it as `rows` says.
    #[inline(always)]
    unsafe fn turned<S: Simd>(self, block: usize, rows: &[usize; 16], to: &mut impl Columns<S>) {
        for part in 0..BLOCK / S::LANES {
            let (mut of_rows, mut of_columns) = (Tile16::ZEROS, Tile16::ZEROS);
            // SAFETY: the caller promises that the matrix has these blocks; no level has more than sixteen lanes.
            unsafe {
                for (row, numbers) in rows.iter().zip(&mut of_rows.0).take(S::LANES) {
                    S::store(numbers.as_mut_ptr(), self.widened::<S>(block + row, part));
                }
                S::turn(of_rows.rows(), of_columns.0.as_mut_ptr().cast(), 16);
                for (lane, column) in of_columns.0.iter().enumerate().take(S::LANES) {
                    to.take(part * S::LANES + lane, S::load(column.as_ptr()));
                }
            }
        }
    }
}

/// The half of a block that a part of it is in.
#[inline(always)]
pub(crate) fn of_half<S: Simd>(part: usize) -> usize {
    part * S::LANES / (BLOCK / 2)
}
