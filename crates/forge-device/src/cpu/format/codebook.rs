//! Formats of 4 bits whose codes are indices of a codebook: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
//!
//! Value = entry * scale. Codes are ordered as in Q4_0: byte j of a block's 16 bytes holds columns j (low nibble)
//! and j + 16 (high nibble). The formats differ in their codebook and in how scales are stored.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::scales::widen_scales;
use crate::cpu::simd::vectors::Simd;
use forge_ops::IQ4_ENTRIES;
use half::f16;

/// The 4-bit floats (e2m1: a sign, then 0, 0.5, 1, 1.5, 2, 3, 4 or 6) times two.
const DOUBLED_FLOATS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A matrix of codebook indices.
#[derive(Clone, Copy)]
pub struct Codebook<T> {
    codes: *const u8,
    scales: T,
}

/// ggml's IQ4_NL: an f16 scale per block.
pub type Iq4Nl = Codebook<Iq4NlScales>;
/// ggml's IQ4_XS: a scale d * s, with f16 d per superblock and a signed byte s per block.
pub type Iq4Xs = Codebook<Iq4XsScales>;
/// MXFP4: 4-bit floats, a scale 2^(exponent - 127) with a one-byte exponent per block.
pub type Mxfp4 = Codebook<Mxfp4Scales>;
/// NVFP4: 4-bit floats, a scale factor * s, with an f32 factor per 128 columns and an 8-bit float s (e4m3) per 16.
pub type Nvfp4 = Codebook<Nvfp4Scales>;

/// The plane of scales of a format.
pub(crate) trait CodebookScales: Copy {
    /// The values of the codes, as multiples of the scale.
    const ENTRIES: [i8; 16];
    /// Whether each half of a block has its own scale.
    const HALF_BLOCKS: bool = false;
    /// The number of blocks in a row is a multiple of this.
    const WHOLE: usize = 1;
    /// Number of bf16 terms that represent each value exactly.
    const BF16_TERMS: usize = 3;

    /// Looks up the plane `<weight>_scales` of a matrix of `blocks` blocks.
    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self;

    /// The plane `bytes` bytes after this one.
    fn after(self, bytes: usize) -> Self;

    /// The scale of a block, or of one half of it, in all lanes.
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V;

    /// The scales of `count <= AT_ONCE` blocks.
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]);
}

impl<T: CodebookScales> Matrix for Codebook<T> {
    const SCALING: Scaling = if T::HALF_BLOCKS { Scaling::HalfBlockScale } else { Scaling::Scale };
    const WHOLE: usize = T::WHOLE;
    const BF16_TERMS: usize = T::BF16_TERMS;
    // An int8 product has one scale per block.
    const QUANT_OFFSET: Option<i32> = if T::HALF_BLOCKS { None } else { Some(0) };
    const ROW: bool = !T::HALF_BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        Codebook {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * (BLOCK / 2)).as_ptr(),
            scales: T::find(call, weight, rows * blocks),
        }
    }

    fn after(self, bytes: usize) -> Self {
        Codebook { codes: self.codes.wrapping_byte_add(bytes), scales: self.scales.after(bytes) }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        let column = part * S::LANES;
        let from = self.codes.wrapping_add(block * (BLOCK / 2) + column % 16);
        // SAFETY: the caller's contract.
        unsafe { S::load_entries(from, column >= 16, &T::ENTRIES) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        let bytes = unsafe { self.codes.add(block * (BLOCK / 2)).cast::<[u8; BLOCK / 2]>().read() };
        std::array::from_fn(|column| T::ENTRIES[usize::from(bytes[column % 16] >> (column / 16 * 4) & 15)])
    }

    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        S::RAISED
    }

    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe {
            let codes = S::load_nibble_codes(self.codes.add(block * (BLOCK / 2)));
            S::lookup_codes(codes, &T::ENTRIES)
        }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * (BLOCK / 2))) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { self.scales.scale::<S>(block, half) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { self.scales.scales::<S>(group, count, to) }
    }
}

/// Scales of IQ4_NL.
#[derive(Clone, Copy)]
pub struct Iq4NlScales(*const f16);

impl CodebookScales for Iq4NlScales {
    const ENTRIES: [i8; 16] = IQ4_ENTRIES;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        Iq4NlScales(call.input::<f16>(&format!("{weight}_scales"), blocks).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        Iq4NlScales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat_f16(self.0.add(block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, f16, AT_ONCE>(self.0.add(block), count, to) }
    }
}

/// Scales of IQ4_XS.
#[derive(Clone, Copy)]
pub struct Iq4XsScales(*const u8);

impl Iq4XsScales {
    /// Blocks of a superblock.
    const BLOCKS: usize = 8;
    /// Bytes of a superblock's scales.
    const BYTES: usize = 2 + Self::BLOCKS;

    /// The superblock's d, and the address of the block's scale byte.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> (f16, *const i8) {
        // SAFETY: the caller's contract.
        unsafe {
            let superblock = self.0.add(block / Self::BLOCKS * Self::BYTES);
            (superblock.cast::<f16>().read_unaligned(), superblock.add(2 + block % Self::BLOCKS).cast())
        }
    }
}

impl CodebookScales for Iq4XsScales {
    const ENTRIES: [i8; 16] = IQ4_ENTRIES;
    const WHOLE: usize = Self::BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        Iq4XsScales(
            call.input::<u8>(&format!("{weight}_scales"), blocks / Self::BLOCKS * Self::BYTES).as_ptr(),
        )
    }

    fn after(self, bytes: usize) -> Self {
        Iq4XsScales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (d, byte) = self.parts(block);
            S::mul(S::splat_f16(&d), S::splat(f32::from(*byte)))
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        const BLOCKS: usize = Iq4XsScales::BLOCKS;
        let (mut units, mut bytes) = ([f16::ZERO; AT_ONCE], [0; AT_ONCE]);
        let superblocks = units.chunks_exact_mut(BLOCKS).zip(bytes.as_chunks_mut::<BLOCKS>().0);
        // SAFETY: the caller's contract; rows and requested ranges are whole superblocks.
        unsafe {
            for (index, (units, bytes)) in superblocks.enumerate().take(count / BLOCKS) {
                let (d, of_superblock) = self.parts(block + index * BLOCKS);
                units.fill(d);
                *bytes = of_superblock.cast::<[i8; BLOCKS]>().read();
            }
            for i in (0..AT_ONCE).step_by(S::LANES) {
                S::store(&mut to[i], S::mul(S::load_i8(&bytes[i]), S::load_f16(&units[i])));
            }
        }
    }
}

/// Scales of MXFP4, halved as the entries are doubled.
#[derive(Clone, Copy)]
pub struct Mxfp4Scales(*const u8);

/// 2^(exponent - 128). The compiler rejects 255, which is NaN.
#[inline(always)]
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        // Subnormal: the second highest and the highest fraction bit.
        0 | 1 => 1_u32 << (21 + exponent),
        _ => (u32::from(exponent) - 1) << 23,
    })
}

impl CodebookScales for Mxfp4Scales {
    const ENTRIES: [i8; 16] = DOUBLED_FLOATS;
    const BF16_TERMS: usize = 1;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        Mxfp4Scales(call.input::<u8>(&format!("{weight}_scales"), blocks).as_ptr())
    }

    fn after(self, bytes: usize) -> Self {
        Mxfp4Scales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat(half_power(self.0.add(block).read())) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        for (i, to) in to.iter_mut().enumerate().take(count) {
            // SAFETY: the caller ensures that there are `count` scales.
            *to = half_power(unsafe { self.0.add(block + i).read() });
        }
    }
}

/// Scales of NVFP4, halved as the entries are doubled. Scales are not negative; the byte 127 is 480.
#[derive(Clone, Copy)]
pub struct Nvfp4Scales(*const u8);

impl Nvfp4Scales {
    /// Blocks of a group.
    const BLOCKS: usize = 4;
    /// Scales of a group.
    const SCALES: usize = 2 * Self::BLOCKS;
    /// Bytes of a group's factor and scales.
    const BYTES: usize = 4 + Self::SCALES;
    /// Factor of loaded scales, which are divided by 256, for doubled entries.
    const FACTOR: f32 = 256.0 / 2.0;

    /// The factor of a block's group for loaded scales, and the address of the block's scales.
    #[inline(always)]
    unsafe fn parts(self, block: usize) -> (f32, *const u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let group = self.0.add(block / Self::BLOCKS * Self::BYTES);
            let factor = group.cast::<f32>().read_unaligned() * Self::FACTOR;
            (factor, group.add(4 + block % Self::BLOCKS * 2))
        }
    }
}

impl CodebookScales for Nvfp4Scales {
    const ENTRIES: [i8; 16] = DOUBLED_FLOATS;
    const HALF_BLOCKS: bool = true;
    const WHOLE: usize = Self::BLOCKS;

    fn find(call: &KernelArgs<'_>, weight: &str, blocks: usize) -> Self {
        Nvfp4Scales(
            call.input::<u8>(&format!("{weight}_scales"), blocks / Self::BLOCKS * Self::BYTES).as_ptr(),
        )
    }

    fn after(self, bytes: usize) -> Self {
        Nvfp4Scales(self.0.wrapping_byte_add(bytes))
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let (factor, scales) = self.parts(block);
            S::splat(factor * f16::from_bits(u16::from(scales.add(half).read()) << 7).to_f32())
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, block: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        const SCALES: usize = Nvfp4Scales::SCALES;
        let (mut factors, mut bytes) = ([0.0; 2 * AT_ONCE], [0; 2 * AT_ONCE]);
        let groups = factors.chunks_exact_mut(SCALES).zip(bytes.as_chunks_mut::<SCALES>().0);
        // SAFETY: the caller's contract; rows and requested ranges are whole groups.
        unsafe {
            for (index, (factors, bytes)) in groups.enumerate().take(count / Self::BLOCKS) {
                let (factor, scales) = self.parts(block + index * Self::BLOCKS);
                factors.fill(factor);
                *bytes = scales.cast::<[u8; SCALES]>().read();
            }
            for i in (0..2 * AT_ONCE).step_by(S::LANES) {
                let scales = S::mul(S::load_floats8(&bytes[i]), S::load(&factors[i]));
                S::store(&mut to[i], scales);
            }
        }
    }
}
