//! Block quants: 32 quants per f16 scale. Q8_0 and Q4_0, row-major and repacked, and Q5_0.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::affine::{codes, signed_codes};
use crate::cpu::format::matrix::{AT_ONCE, BLOCK, Matrix, Scaling};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::scales::widen_scales;
use crate::cpu::simd::vectors::Simd;
use half::f16;

/// A Q8_0 matrix: signed 8-bit quants and scales.
#[derive(Clone, Copy)]
pub struct Q8_0 {
    codes: *const i8,
    scales: *const f16,
}

impl Matrix for Q8_0 {
    const SCALING: Scaling = Scaling::Scale;
    const QUANT_OFFSET: Option<i32> = Some(0);

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        Q8_0 {
            codes: call.input::<i8>(&format!("{weight}_codes"), rows * blocks * BLOCK).as_ptr(),
            scales: call.input::<f16>(&format!("{weight}_scales"), rows * blocks).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Q8_0 { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_i8(self.codes.add(block * BLOCK + part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe { self.codes.add(block * BLOCK).cast::<[i8; BLOCK]>().read() }
    }

    const ROW: bool = true;
    const STRIPS: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn strip_codes<S: Simd>(self, block: usize, pair: usize, part: usize) -> [S::Codes; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let first = self.codes.add((block * 8 + 2 * pair) * 4 * OUTPUTS + part * 4 * S::LANES);
            [S::load_codes(first), S::load_codes(first.add(4 * OUTPUTS))]
        }
    }

    #[inline(always)]
    fn strip(self, block: usize) -> *const u8 {
        self.codes.cast::<u8>().wrapping_add(block * Self::OF_STRIP)
    }

    #[inline(always)]
    unsafe fn strip_words(self, block: usize, word: usize) -> [[u32; OUTPUTS]; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let near = self.codes.cast::<[u32; OUTPUTS]>().add(block * 8 + word);
            [near.read(), near.add(4).read()]
        }
    }

    #[inline(always)]
    unsafe fn strip_scale(self, block: usize, output: usize) -> [f32; 2] {
        // SAFETY: the caller's contract.
        unsafe { [self.scales.add(block * OUTPUTS + output).read().to_f32(), 0.0] }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(self.scales.add(block * OUTPUTS + part * S::LANES)) }
    }

    #[inline(always)]
    fn raised<S: Simd>() -> i32 {
        S::RAISED
    }

    #[inline(always)]
    unsafe fn row_codes<S: Simd>(self, block: usize) -> S::Codes {
        // SAFETY: the caller's contract.
        unsafe { S::load_codes(self.codes.add(block * BLOCK)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * BLOCK)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat_f16(self.scales.add(block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, f16, AT_ONCE>(self.scales.add(group), count, to) }
    }
}

/// A Q4_0 matrix: 4-bit quants and scales. Byte j of a block's 16 bytes holds columns j (low nibble) and j +
/// 16 (high nibble).
#[derive(Clone, Copy)]
pub struct Q4_0 {
    codes: *const u8,
    scales: *const f16,
}

impl Matrix for Q4_0 {
    const SCALING: Scaling = Scaling::Scale;
    const QUANT_OFFSET: Option<i32> = Some(-8);
    const SMALL: bool = true;

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        Q4_0 {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * (BLOCK / 2)).as_ptr(),
            scales: call.input::<f16>(&format!("{weight}_scales"), rows * blocks).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Q4_0 { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        let column = part * S::LANES;
        // SAFETY: the caller's contract.
        unsafe { S::load_nibbles(self.codes.add(block * (BLOCK / 2) + column % 16), column >= 16) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        let bytes = unsafe { self.codes.add(block * (BLOCK / 2)).cast::<[u8; BLOCK / 2]>().read() };
        std::array::from_fn(|column| (bytes[column % 16] >> (column / 16 * 4) & 15) as i8)
    }

    const ROW: bool = true;
    const STRIPS: bool = true;

    #[inline(always)]
    fn nibbles(self) -> *const u8 {
        self.codes
    }

    #[inline(always)]
    unsafe fn strip_scale(self, block: usize, output: usize) -> [f32; 2] {
        // SAFETY: the caller's contract.
        unsafe { [self.scales.add(block * OUTPUTS + output).read().to_f32(), 0.0] }
    }

    #[inline(always)]
    unsafe fn strip_scales<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(self.scales.add(block * OUTPUTS + part * S::LANES)) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * (BLOCK / 2))) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat_f16(self.scales.add(block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, f16, AT_ONCE>(self.scales.add(group), count, to) }
    }
}

/// A Q5_0 matrix: 5-bit quants, stored as in affine formats, and scales.
#[derive(Clone, Copy)]
pub struct Q5_0 {
    codes: *const u8,
    scales: *const f16,
}

/// Bytes of a Q5_0 block's quants.
const FIVE_BITS: usize = 5 * BLOCK / 8;

impl Matrix for Q5_0 {
    const SCALING: Scaling = Scaling::Scale;
    const QUANT_OFFSET: Option<i32> = Some(-16);

    fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
        Q5_0 {
            codes: call.input::<u8>(&format!("{weight}_codes"), rows * blocks * FIVE_BITS).as_ptr(),
            scales: call.input::<f16>(&format!("{weight}_scales"), rows * blocks).as_ptr(),
        }
    }

    fn after(self, bytes: usize) -> Self {
        let (codes, scales) = (self.codes.wrapping_byte_add(bytes), self.scales.wrapping_byte_add(bytes));
        Q5_0 { codes, scales }
    }

    #[inline(always)]
    unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::sub(codes::<S, 5>(self.codes, block, part), S::splat(16.0)) }
    }

    #[inline(always)]
    unsafe fn codes(self, block: usize) -> [i8; BLOCK] {
        // SAFETY: the caller's contract.
        unsafe { signed_codes::<5>(self.codes, block) }
    }

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(self.codes.wrapping_add(block * FIVE_BITS)) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, _half: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::splat_f16(self.scales.add(block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(self, group: usize, count: usize, to: &mut [f32; 2 * AT_ONCE]) {
        // SAFETY: the caller's contract.
        unsafe { widen_scales::<S, f16, AT_ONCE>(self.scales.add(group), count, to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::matmul::int8::quantized_rows::encoded_rows;
    use crate::cpu::matmul::int8::repacked_gemv::RepackedRows;
    use crate::cpu::simd::isa::{Isa, Task};
    use crate::cpu::simd::prefetch_policy::ReadPattern;

    /// Strips of the test matrix, and blocks per strip.
    const STRIPS: usize = 5;
    const BLOCKS: usize = 3;

    /// Multiplies rows `x` by all strips.
    struct Products<'a, M> {
        matrix: M,
        streams: ReadPattern,
        x: &'a [f32],
        to: &'a mut [f32],
    }

    impl<M: Matrix> Task for Products<'_, M> {
        #[inline(always)]
        fn run<S: Simd>(self) {
            let Products { matrix, streams, x, to } = self;
            let rows = encoded_rows::<S>(x, BLOCKS * BLOCK);
            let of = RepackedRows { matrix, first: 0, strips: STRIPS, blocks: BLOCKS, streams };
            // SAFETY: the matrix has `STRIPS` strips, and rows have `BLOCKS` blocks.
            unsafe { of.few::<S>(&rows[..x.len() / BLOCKS / BLOCK], to, STRIPS * OUTPUTS) };
        }
    }

    fn assert_bitwise_identical<M: Matrix>(matrix: M) {
        let x: Vec<f32> = (0..4 * BLOCKS * BLOCK).map(|i| (i as f32 * 0.37).sin()).collect();
        for rows in 1..=4 {
            let made = |level: Isa, streams| {
                let mut sums = vec![0.0; rows * STRIPS * OUTPUTS];
                let x = &x[..rows * BLOCKS * BLOCK];
                level.run(Products { matrix, streams, x, to: &mut sums });
                sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>()
            };
            let expected = made(Isa::Portable, ReadPattern::Several);
            assert!(expected.iter().all(|sum| *sum != 0));
            for level in Isa::available() {
                for streams in
                    [ReadPattern::InOrder, ReadPattern::Once, ReadPattern::Foreseen, ReadPattern::Several]
                {
                    assert!(made(level, streams) == expected, "{rows} rows, {level:?}, {streams:?}");
                }
            }
        }
    }

    #[test]
    fn repacked_reads_are_bitwise_identical() {
        let codes: Vec<u8> = (0..STRIPS * OUTPUTS * BLOCKS * BLOCK).map(|i| (i * 89 % 251) as u8).collect();
        let of_code = |i: usize| f16::from_f32(0.01 + 0.001 * (i % 7) as f32);
        let scales: Vec<f16> = (0..STRIPS * OUTPUTS * BLOCKS).map(of_code).collect();
        assert_bitwise_identical(Q8_0 { codes: codes.as_ptr().cast(), scales: scales.as_ptr() });
        assert_bitwise_identical(Q4_0 { codes: codes.as_ptr(), scales: scales.as_ptr() });
    }
}
