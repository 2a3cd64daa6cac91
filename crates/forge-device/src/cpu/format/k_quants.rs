//! Scales of K-quants and of IQ4_XS: superblocks of 256 columns, whose block scales are bytes relative to an f16 scale of
//! the superblock.
//!
//! - `q4_k`, `q5_k`: value = quant * (d * s) - dmin * m. A superblock's scales are f16 d and dmin, then the bytes s and m
//!   of each block.
//! - `q6_k`, `q3_k`: value = quant * (d * s). A superblock's scales are f16 d, then two signed bytes per block, one for
//!   each half.
//! - `q2_k`: value = quant * (d * s) - dmin * m. A superblock's scales are f16 d and dmin, then two bytes per block, one
//!   for each half, with s in the low and m in the high nibble.
//! - `iq4_xs`: value = entry * (d * s). A superblock's scales are f16 d, then a signed byte per block.
//!
//! The products d * s and dmin * m are exact in f32.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::scale_plane::ScalePlane;
use crate::cpu::simd::vectors::Simd;
use half::f16;

/// Blocks per superblock.
const BLOCKS: usize = 8;
/// Bytes of block scales per superblock, if there are two per block.
const BYTES: usize = 2 * BLOCKS;

/// `UNITS` f16 scales per superblock, then `BYTES` bytes.
#[derive(Clone, Copy)]
struct Superblocks<const UNITS: usize, const BYTES: usize>(*const u8);

impl<const UNITS: usize, const BYTES: usize> Superblocks<UNITS, BYTES> {
    const SIZE: usize = 2 * UNITS + BYTES;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        let bytes = blocks / BLOCKS * Self::SIZE;
        Superblocks(call.input::<u8>(&format!("{weight}_scales"), bytes).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        Superblocks(self.0.wrapping_byte_add(bytes))
    }

    /// The f16 scales of a block's superblock, and the address of the block's bytes.
    #[inline(always)]
    unsafe fn of(self, block: usize) -> ([f16; UNITS], *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.0.add(block / BLOCKS * Self::SIZE);
            let bytes = superblock.add(2 * UNITS + block % BLOCKS * (BYTES / BLOCKS));
            (superblock.cast::<[f16; UNITS]>().read_unaligned(), bytes)
        }
    }

    /// f16 scale `unit` of `LANES` outputs of a strip.
    #[inline(always)]
    unsafe fn strip_units<S: Simd>(self, block: usize, unit: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.0.add(block / BLOCKS * Self::SIZE * OUTPUTS).cast::<f16>();
            S::load_f16(superblock.add(unit * OUTPUTS + part * S::LANES))
        }
    }

    /// Address of the pair of bytes that contains a block's first byte, for each of `LANES` outputs of a strip.
    #[inline(always)]
    unsafe fn strip_pairs<S: Simd>(self, block: usize, part: usize) -> *const u16 {
        let pair = block % BLOCKS * (BYTES / BLOCKS) / 2;
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.0.add(block / BLOCKS * Self::SIZE * OUTPUTS);
            superblock.cast::<u16>().add((UNITS + pair) * OUTPUTS + part * S::LANES)
        }
    }
}

/// Scales and offsets of `q4_k` and `q5_k`.
#[derive(Clone, Copy)]
pub struct BlockScalesAndMins(Superblocks<2, BYTES>);

impl ScalePlane for BlockScalesAndMins {
    const SCALING: Scaling = Scaling::Offset;
    const WHOLE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        BlockScalesAndMins(Superblocks::find(call, weight, blocks))
    }

    fn after(self, bytes: usize) -> Self {
        BlockScalesAndMins(self.0.after(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([d, _], bytes) = self.0.of(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*bytes)))
        }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([_, min], bytes) = self.0.of(block);
            S::mul(S::splat_f16(&-min), S::splat(f32::from(*bytes.add(1))))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (index, to) in to.chunks_exact_mut(BYTES).take(count / BLOCKS).enumerate() {
            // SAFETY: the caller's contract; rows and requested ranges are whole superblocks.
            unsafe {
                let ([d, min], bytes) = self.0.of(group + index * BLOCKS);
                let units: [f16; BYTES] = std::array::from_fn(|at| if at % 2 == 0 { d } else { -min });
                for i in (0..BYTES).step_by(S::LANES) {
                    let scales = S::mul(S::load_u8(bytes.add(i)), S::load_f16(units.as_ptr().add(i)));
                    S::store(to.as_mut_ptr().add(i), scales);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let pairs = self.0.strip_pairs::<S>(block, part);
            let scales = S::load_fields(pairs, 0, 8, false);
            [S::mul(self.0.strip_units::<S>(block, 0, part), scales); 2]
        }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let mins = S::load_fields(self.0.strip_pairs::<S>(block, part), 8, 8, false);
            [S::mul(S::mul(S::splat(-1.0), self.0.strip_units::<S>(block, 1, part)), mins); 2]
        }
    }
}

/// Scales of `q6_k` and `q3_k`.
#[derive(Clone, Copy)]
pub struct HalfBlockScales(Superblocks<1, BYTES>);

impl ScalePlane for HalfBlockScales {
    const SCALING: Scaling = Scaling::HalfBlockScale;
    const WHOLE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        HalfBlockScales(Superblocks::find(call, weight, blocks))
    }

    fn after(self, bytes: usize) -> Self {
        HalfBlockScales(self.0.after(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([d], bytes) = self.0.of(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(bytes.add(half).cast::<i8>().read())))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (index, to) in to.chunks_exact_mut(BYTES).take(count / BLOCKS).enumerate() {
            // SAFETY: as for the formats above.
            unsafe {
                let ([d], bytes) = self.0.of(group + index * BLOCKS);
                for i in (0..BYTES).step_by(S::LANES) {
                    let scales = S::mul(S::load_i8(bytes.cast::<i8>().add(i)), S::splat_f16(&d));
                    S::store(to.as_mut_ptr().add(i), scales);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let (pairs, d) = (self.0.strip_pairs::<S>(block, part), self.0.strip_units::<S>(block, 0, part));
            let scales = [S::load_fields(pairs, 0, 8, true), S::load_fields(pairs, 8, 8, true)];
            [S::mul(d, scales[0]), S::mul(d, scales[1])]
        }
    }
}

/// Scales and offsets of `q2_k`.
#[derive(Clone, Copy)]
pub struct HalfBlockScalesAndMins(Superblocks<2, BYTES>);

impl ScalePlane for HalfBlockScalesAndMins {
    const SCALING: Scaling = Scaling::HalfBlockOffset;
    const WHOLE: usize = BLOCKS;
    const SCALES_AT_ONCE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        HalfBlockScalesAndMins(Superblocks::find(call, weight, blocks))
    }

    fn after(self, bytes: usize) -> Self {
        HalfBlockScalesAndMins(self.0.after(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([d, _], bytes) = self.0.of(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*bytes.add(half) & 15)))
        }
    }

    #[inline(always)]
    unsafe fn offset<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([_, min], bytes) = self.0.of(block);
            S::mul(S::splat_f16(&-min), S::splat(f32::from(*bytes.add(half) >> 4)))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, _count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract; rows and requested ranges are whole superblocks, so this is one.
        unsafe {
            let ([d, min], bytes) = self.0.of(group);
            let (d, min) = (S::splat_f16(&d), S::splat_f16(&-min));
            for i in (0..BYTES).step_by(S::LANES) {
                S::store(&mut to[i], S::mul(S::load_u4(bytes.add(i), false), d));
                S::store(&mut to[BYTES + i], S::mul(S::load_u4(bytes.add(i), true), min));
            }
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let (pairs, d) = (self.0.strip_pairs::<S>(block, part), self.0.strip_units::<S>(block, 0, part));
            let scales = [S::load_fields(pairs, 0, 4, false), S::load_fields(pairs, 8, 4, false)];
            [S::mul(d, scales[0]), S::mul(d, scales[1])]
        }
    }

    #[inline(always)]
    unsafe fn strip_offsets<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let pairs = self.0.strip_pairs::<S>(block, part);
            let min = S::mul(S::splat(-1.0), self.0.strip_units::<S>(block, 1, part));
            let mins = [S::load_fields(pairs, 4, 4, false), S::load_fields(pairs, 12, 4, false)];
            [S::mul(min, mins[0]), S::mul(min, mins[1])]
        }
    }
}

/// Scales of `iq4_xs`.
#[derive(Clone, Copy)]
pub struct SignedBlockScales(Superblocks<1, BLOCKS>);

impl ScalePlane for SignedBlockScales {
    const SCALING: Scaling = Scaling::Scale;
    const WHOLE: usize = BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        SignedBlockScales(Superblocks::find(call, weight, blocks))
    }

    fn after(self, bytes: usize) -> Self {
        SignedBlockScales(self.0.after(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let ([d], byte) = self.0.of(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(byte.cast::<i8>().read())))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        let (mut units, mut bytes) = ([f16::ZERO; AT_ONCE], [0; AT_ONCE]);
        let superblocks = units.chunks_exact_mut(BLOCKS).zip(bytes.as_chunks_mut::<BLOCKS>().0);
        // SAFETY: the caller's contract; rows and requested ranges are whole superblocks.
        unsafe {
            for (index, (units, bytes)) in superblocks.enumerate().take(count / BLOCKS) {
                let ([d], of_superblock) = self.0.of(block + index * BLOCKS);
                units.fill(d);
                *bytes = of_superblock.cast::<[i8; BLOCKS]>().read();
            }
            for i in (0..AT_ONCE).step_by(S::LANES) {
                S::store(&mut to[i], S::mul(S::load_i8(&bytes[i]), S::load_f16(&units[i])));
            }
        }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> [S::V; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let pairs = self.0.strip_pairs::<S>(block, part);
            let scales = S::load_fields(pairs, block as u32 % 2 * 8, 8, true);
            [S::mul(self.0.strip_units::<S>(block, 0, part), scales); 2]
        }
    }
}
