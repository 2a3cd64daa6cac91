//! K-quants: superblocks of 256 columns, whose block scales are bytes relative to an f16 scale of the
//! superblock.
//!
//! Quants are stored as in affine formats of the same width.
//! - `q4_k`, `q5_k`: value = quant * (d * s) - dmin * m. A superblock's scales are f16 d and dmin, then the
//!   bytes s and m of each block.
//! - `q6_k`: value = (quant - 32) * (d * s). A superblock's scales are f16 d, then two signed bytes per
//!   block, one for each half. `q3_k`: the same with quant - 4.
//! - `q2_k`: value = quant * (d * s) - dmin * m. A superblock's scales are f16 d and dmin, then two bytes per
//!   block, one for each half, with s in the low and m in the high nibble.
//!
//! The products d * s and dmin * m are exact in f32.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::affine::{codes, quant_offset, signed_codes};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::simd::vectors::Simd;
use half::f16;

/// Blocks per superblock.
const BLOCKS: usize = 8;
/// Bytes of block scales per superblock.
const BYTES: usize = 2 * BLOCKS;
/// Bytes of a superblock's scales, with two f16 values (`q4_k`, `q5_k`, `q2_k`) or one (`q6_k`, `q3_k`).
const PAIRS: usize = 4 + BYTES;
const SIGNED: usize = 2 + BYTES;

/// A K-quant with `BITS` bits per weight and a scale and an offset per block.
#[derive(Clone, Copy)]
pub struct KQuant<const BITS: usize> {
    codes: *const u8,
    scales: *const u8,
}

/// 5-bit K-quant.
pub type Q5K = KQuant<5>;
/// 4-bit K-quant.
pub type Q4K = KQuant<4>;

/// A K-quant with `BITS` bits per weight and a signed scale per 16 columns.
#[derive(Clone, Copy)]
pub struct SignedKQuant<const BITS: usize> {
    codes: *const u8,
    scales: *const u8,
}

/// 6-bit K-quant.
pub type Q6K = SignedKQuant<6>;
/// 3-bit K-quant.
pub type Q3K = SignedKQuant<3>;

/// 2-bit K-quant with a scale and an offset per 16 columns.
#[derive(Clone, Copy)]
pub struct Q2K {
    codes: *const u8,
    scales: *const u8,
}

/// Reads an f16 value of a superblock's scales.
#[inline(always)]
unsafe fn half(from: *const u8) -> f16 {
    // SAFETY: the caller's contract.
    unsafe { from.cast::<f16>().read_unaligned() }
}

/// Looks up the planes of `bits`-bit quants and of superblock scales.
fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize, bits: usize, scales: usize) -> [*const u8; 2] {
    [
        call.input::<u8>(&format!("{weight}_codes"), blocks * bits * BLOCK / 8).as_ptr(),
        call.input::<u8>(&format!("{weight}_scales"), blocks / BLOCKS * scales).as_ptr(),
    ]
}

impl<const BITS: usize> KQuant<BITS> {
    /// The superblock's d and -dmin, and the address of the block's two scale bytes.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> ([f16; 2], *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * PAIRS);
            ([half(superblock), -half(superblock.add(2))], superblock.add(4 + block % BLOCKS * 2))
        }
    }

    /// The same in a repacked strip: the address of d of all outputs, followed by dmin of all outputs, and
    /// that of the block's byte pairs.
    #[inline(always)]
    unsafe fn strip_parts(self, block: usize) -> (*const f16, *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * PAIRS * OUTPUTS);
            (superblock.cast(), superblock.add((4 + block % BLOCKS * 2) * OUTPUTS))
        }
    }
}

/// The first byte of each of a strip's byte pairs, as f32.
#[inline(always)]
unsafe fn every_second(pairs: *const u8) -> [f32; OUTPUTS] {
    let mut numbers = [0.0; OUTPUTS];
    for (output, number) in numbers.iter_mut().enumerate() {
        // SAFETY: the caller passes one pair per output.
        *number = f32::from(unsafe { pairs.add(2 * output).read() });
    }
    numbers
}

impl<const BITS: usize> Matrix for KQuant<BITS> {
    const SCALING: Scaling = Scaling::Offset;
    const WHOLE: usize = BLOCKS;
    const QUANT_OFFSET: Option<i32> = Some(quant_offset::<BITS>());
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
        // SAFETY: the caller's contract.
        unsafe { codes::<S, BITS>(self.codes, block, part) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
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
        // SAFETY: the caller's contract.
        unsafe {
            let (units, pairs) = self.strip_parts(block);
            let [scale, min] = [0, 1].map(|i| f32::from(pairs.add(2 * output + i).read()));
            let unit = |i: usize| units.add(i * OUTPUTS + output).read().to_f32();
            [unit(0) * scale, -unit(1) * min]
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (units, pairs) = self.strip_parts(block);
            let scales = every_second(pairs);
            S::mul(S::load_f16(units.add(part * S::LANES)), S::load(&scales[part * S::LANES]))
        }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (units, pairs) = self.strip_parts(block);
            let min = every_second(pairs.add(1));
            let unit = S::load_f16(units.add(OUTPUTS + part * S::LANES));
            S::mul(S::mul(S::splat(-1.0), unit), S::load(&min[part * S::LANES]))
        }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BITS * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([d, _], bytes) = self.parts(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*bytes)))
        }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([_, min], bytes) = self.parts(block);
            S::mul(S::splat_f16(&min), S::splat(f32::from(*bytes.add(1))))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (index, to) in to.chunks_exact_mut(BYTES).take(count / BLOCKS).enumerate() {
            // SAFETY: the caller's contract; rows and requested ranges are whole superblocks.
            unsafe {
                let ([d, min], bytes) = self.parts(group + index * BLOCKS);
                let units: [f16; BYTES] = std::array::from_fn(|at| if at % 2 == 0 { d } else { min });
                for i in (0..BYTES).step_by(S::LANES) {
                    let scales = S::mul(S::load_u8(bytes.add(i)), S::load_f16(units.as_ptr().add(i)));
                    S::store(to.as_mut_ptr().add(i), scales);
                }
            }
        }
    }
}

impl<const BITS: usize> SignedKQuant<BITS> {
    /// The superblock's d, and the address of the block's two scale bytes.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> (f16, *const i8) {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * SIGNED);
            (half(superblock), superblock.add(2 + block % BLOCKS * 2).cast::<i8>())
        }
    }
}

impl<const BITS: usize> Matrix for SignedKQuant<BITS> {
    const SCALING: Scaling = Scaling::HalfBlockScale;
    const WHOLE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let [codes, scales] = find(call, weight, rows * blocks, BITS, SIGNED);
        SignedKQuant { codes, scales }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        SignedKQuant { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::sub(codes::<S, BITS>(self.codes, block, part), S::splat((1 << (BITS - 1)) as f32)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BITS * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (d, bytes) = self.parts(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*bytes.add(half))))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (index, to) in to.chunks_exact_mut(BYTES).take(count / BLOCKS).enumerate() {
            // SAFETY: as for the formats above.
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

impl Q2K {
    /// The superblock's d and -dmin, and the address of the block's two scale bytes.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> ([f16; 2], *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.scales.add(block / BLOCKS * PAIRS);
            ([half(superblock), -half(superblock.add(2))], superblock.add(4 + block % BLOCKS * 2))
        }
    }
}

impl Matrix for Q2K {
    const SCALING: Scaling = Scaling::HalfBlockOffset;
    const WHOLE: usize = BLOCKS;
    const SCALES_AT_ONCE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        let [codes, scales] = find(call, weight, rows * blocks, 2, PAIRS);
        Q2K { codes, scales }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Q2K { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { codes::<S, 2>(self.codes, block, part) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * 2 * BLOCK / 8)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([d, _], bytes) = self.parts(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*bytes.add(half) & 15)))
        }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([_, min], bytes) = self.parts(block);
            S::mul(S::splat_f16(&min), S::splat(f32::from(*bytes.add(half) >> 4)))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, _count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract; rows and requested ranges are whole superblocks, so this is one.
        unsafe {
            let ([d, min], bytes) = self.parts(group);
            let (d, min) = (S::splat_f16(&d), S::splat_f16(&min));
            for i in (0..BYTES).step_by(S::LANES) {
                S::store(&mut to[i], S::mul(S::load_u4(bytes.add(i), false), d));
                S::store(&mut to[BYTES + i], S::mul(S::load_u4(bytes.add(i), true), min));
            }
        }
    }
}
