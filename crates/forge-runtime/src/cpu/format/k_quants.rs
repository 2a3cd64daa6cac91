//! Formats of superblocks: 256 columns whose scales are bytes, multiples of a half that all share.
//!
//! Codes lie as those of affine formats of as many bits. `q4_k` and `q5_k`: value = code * (d * s) - dmin * m, where a superblock's
//! scales are halves d and dmin, and for each block two bytes, s and m. `q6_k`: value = (code - 32) * (d * s), where they are a
//! half d, and two signed bytes for each block, one for each half of it. Either way there are two bytes for each block, and
//! what they are multiplied by; products are exact.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::affine::{codes, lacking, signed_codes};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::simd::vectors::Simd;
use half::f16;

/// Blocks of a superblock.
const BLOCKS: usize = 8;
/// Its bytes for blocks.
const BYTES: usize = 2 * BLOCKS;
/// Bytes of a superblock's scales: two halves before those, or one.
const PAIRS: usize = 4 + BYTES;
const SIGNED: usize = 2 + BYTES;

/// Codes of `BITS` bits, whose blocks have a scale and an offset.
#[derive(Clone, Copy)]
pub struct KQuant<const BITS: usize> {
    codes: *const u8,
    scales: *const u8,
}

/// Codes of 5 bits.
pub type Q5K = KQuant<5>;
/// Codes of 4 bits.
pub type Q4K = KQuant<4>;

/// Codes of 6 bits, every 16 of which have a signed scale.
#[derive(Clone, Copy)]
pub struct Q6K {
    codes: *const u8,
    scales: *const u8,
}

/// A half of a superblock's scales.
#[inline(always)]
unsafe fn half(from: *const u8) -> f16 {
    // SAFETY: the caller's promise.
    unsafe { from.cast::<f16>().read_unaligned() }
}

/// The planes of codes of `bits` bits and of superblocks' scales.
fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize, bits: usize, scales: usize) -> [*const u8; 2] {
    [
        call.input::<u8>(&format!("{weight}_codes"), blocks * bits * BLOCK / 8).as_ptr(),
        call.input::<u8>(&format!("{weight}_scales"), blocks / BLOCKS * scales).as_ptr(),
    ]
}

impl<const BITS: usize> KQuant<BITS> {
    /// The halves of a block's superblock, the second negative, and the block's two bytes.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> ([f16; 2], *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * PAIRS);
            ([half(superblock), -half(superblock.add(2))], superblock.add(4 + block % BLOCKS * 2))
        }
    }

    /// The same of a strip: the first halves of its outputs, which the second follow, and the pairs of the block.
    #[inline(always)]
    unsafe fn strip_parts(self, block: usize) -> (*const f16, *const u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * PAIRS * OUTPUTS);
            (superblock.cast(), superblock.add((4 + block % BLOCKS * 2) * OUTPUTS))
        }
    }
}

/// The first byte, the third and so on of a strip's pairs.
#[inline(always)]
unsafe fn every_second(pairs: *const u8) -> [f32; OUTPUTS] {
    let mut numbers = [0.0; OUTPUTS];
    for (output, number) in numbers.iter_mut().enumerate() {
        // SAFETY: the caller promises a pair for each output.
        *number = f32::from(unsafe { pairs.add(2 * output).read() });
    }
    numbers
}

impl<const BITS: usize> Matrix for KQuant<BITS> {
    const SCALING: Scaling = Scaling::Offset;
    const WHOLE: usize = BLOCKS;
    const LACKING: Option<i32> = Some(lacking::<BITS>());
    const SMALL: bool = BITS <= 4;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let [codes, scales] = find(call, weight, rows * blocks, BITS, PAIRS);
        KQuant { codes, scales }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        KQuant { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { codes::<S, BITS>(self.codes, block, part) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's promise.
        unsafe { signed_codes::<BITS>(self.codes, block) }
    }

    const ROW: bool = BITS == 4;
    const STRIPS: bool = BITS == 4;

    #[inline(always)]
    fn nibbles(self) -> *const u8 {
        self.codes
    }

    #[inline(always)]
    unsafe fn strip_scale(self, block: usize, output: usize) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let (units, pairs) = self.strip_parts(block);
            let [scale, least] = [0, 1].map(|i| f32::from(pairs.add(2 * output + i).read()));
            let unit = |i: usize| units.add(i * OUTPUTS + output).read().to_f32();
            [unit(0) * scale, -unit(1) * least]
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let (units, pairs) = self.strip_parts(block);
            let scales = every_second(pairs);
            S::mul(S::load_f16(units.add(part * S::LANES)), S::load(&scales[part * S::LANES]))
        }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let (units, pairs) = self.strip_parts(block);
            let least = every_second(pairs.add(1));
            let unit = S::load_f16(units.add(OUTPUTS + part * S::LANES));
            S::mul(S::mul(S::splat(-1.0), unit), S::load(&least[part * S::LANES]))
        }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BITS * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let (halves, bytes) = self.parts(block);
            S::mul(S::splat_f16(&halves[0]), S::splat(f32::from(*bytes)))
        }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let (halves, bytes) = self.parts(block);
            S::mul(S::splat_f16(&halves[1]), S::splat(f32::from(*bytes.add(1))))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (index, to) in to.chunks_exact_mut(BYTES).take(count / BLOCKS).enumerate() {
            // SAFETY: the caller's promise; rows are whole superblocks, and so are what is asked for of them.
            unsafe {
                let ([d, least], bytes) = self.parts(group + index * BLOCKS);
                let units: [f16; BYTES] = std::array::from_fn(|at| if at % 2 == 0 { d } else { least });
                for i in (0..BYTES).step_by(S::LANES) {
                    let scales = S::mul(S::load_u8(bytes.add(i)), S::load_f16(units.as_ptr().add(i)));
                    S::store(to.as_mut_ptr().add(i), scales);
                }
            }
        }
    }
}

impl Q6K {
    /// The half of a block's superblock, and the block's two bytes.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> (f16, *const i8) {
        // SAFETY: the caller's promise.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * SIGNED);
            (half(superblock), superblock.add(2 + block % BLOCKS * 2).cast::<i8>())
        }
    }
}

impl Matrix for Q6K {
    const SCALING: Scaling = Scaling::Halves;
    const WHOLE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let [codes, scales] = find(call, weight, rows * blocks, 6, SIGNED);
        Q6K { codes, scales }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Q6K { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { S::sub(codes::<S, 6>(self.codes, block, part), S::splat(32.0)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's promise.
        unsafe { S::prefetch(self.codes.wrapping_add(block * 6 * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let (d, bytes) = self.parts(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*bytes.add(half))))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (index, to) in to.chunks_exact_mut(BYTES).take(count / BLOCKS).enumerate() {
            // SAFETY: as of the formats above.
            unsafe {
                let (d, bytes) = self.parts(group + index * BLOCKS);
                for i in (0..BYTES).step_by(S::LANES) {
                    let scales = S::mul(S::load_i8(bytes.add(i)), S::splat_f16(&d));
                    S::store(to.as_mut_ptr().add(i), scales);
                }
            }
        }
    }
}
