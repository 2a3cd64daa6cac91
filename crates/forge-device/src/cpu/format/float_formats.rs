//! Unquantized matrices: f32, f16 and bf16.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{BLOCK, Matrix, Scaling};
use crate::cpu::format::transpose::{Columns, Tile16};
use crate::cpu::simd::vectors::Simd;
use half::{bf16, f16};

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident, $element:ty, $load:ident, $terms:literal, { $($load_transposed:item)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(*const $element);

        impl Matrix for $name {
            const SCALING: Scaling = Scaling::Done;
            const BF16_TERMS: usize = $terms;

            fn find(call: &KernelArgs<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
                $name(call.input::<$element>(&format!("{weight}_values"), rows * blocks * BLOCK).as_ptr())
            }

            fn after(self, bytes: usize) -> Self {
                $name(self.0.wrapping_byte_add(bytes))
            }

            #[inline(always)]
            unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
                // SAFETY: the caller's contract.
                unsafe { S::$load(self.0.add(block * BLOCK + part * S::LANES)) }
            }

            #[inline(always)]
            unsafe fn prefetch<S: Simd>(self, block: usize) {
                for line in (0..Self::OF_BLOCK).step_by(64) {
                    // SAFETY: the caller's contract.
                    unsafe { S::prefetch(self.place(block).wrapping_add(line)) };
                }
            }

            $($load_transposed)?

            const OF_BLOCK: usize = size_of::<$element>() * BLOCK;

            fn place(self, block: usize) -> *const u8 {
                self.0.wrapping_add(block * BLOCK).cast()
            }

            #[inline(always)]
            unsafe fn prefetch_once<S: Simd>(self, block: usize) {
                for line in (0..Self::OF_BLOCK).step_by(64) {
                    // SAFETY: the caller's contract.
                    unsafe { S::prefetch_once(self.place(block).wrapping_add(line)) };
                }
            }

            #[inline(always)]
            unsafe fn prefetch_far<S: Simd>(self, block: usize) {
                for line in (0..Self::OF_BLOCK).step_by(64) {
                    // SAFETY: the caller's contract.
                    unsafe { S::prefetch_far(self.place(block).wrapping_add(line)) };
                }
            }
        }
    };
}

/// Transposed load of 16-bit floats. Two columns are transposed at a time, as one 32-bit word.
macro_rules! in_words {
    ($load:ident) => {
        #[inline(always)]
        unsafe fn load_transposed<S: Simd>(self, block: usize, rows: &[usize; 16], to: &mut impl Columns<S>) {
            let first = self.0.wrapping_add(block * BLOCK).cast::<f32>();
            for part in 0..BLOCK / 2 / S::LANES {
                let of_part = first.wrapping_add(part * S::LANES);
                let mut words = Tile16::ZEROS;
                // SAFETY: the caller ensures that the matrix has these blocks; no instruction set has more
                // than 16 lanes.
                unsafe {
                    let of_rows = rows.map(|row| of_part.wrapping_add(row * BLOCK / 2));
                    S::transpose(of_rows, words.0.as_mut_ptr().cast(), 16);
                    for (lane, words) in words.0.iter().enumerate().take(S::LANES) {
                        let mut halves = Halves([0; 32]);
                        let halves = halves.0.as_mut_ptr();
                        S::store_halves(halves, S::load(words.as_ptr()));
                        let column = 2 * (part * S::LANES + lane);
                        to.take(column, S::$load(halves.cast()));
                        to.take(column + 1, S::$load(halves.add(S::LANES).cast()));
                    }
                }
            }
        }
    };
}

/// The 16-bit elements of a vector of 32-bit words.
#[repr(align(64))]
struct Halves([u16; 32]);

plain!(
    /// f32 weights.
    F32, f32, load, 3, {}
);
plain!(
    /// f16 weights.
    F16, f16, load_f16, 2, { in_words!(load_f16); }
);
plain!(
    /// bf16 weights.
    Bf16, bf16, load_bf16, 1, { in_words!(load_bf16); }
);
