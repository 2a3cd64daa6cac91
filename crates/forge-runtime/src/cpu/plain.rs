//! Matrices of numbers that are stored as they are.

use super::call::Call;
use super::formats::{BLOCK, Matrix, Scaling};
use super::simd::Simd;
use half::{bf16, f16};

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident, $element:ty, $load:ident, $parts:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(*const $element);

        impl Matrix for $name {
            const SCALING: Scaling = Scaling::Done;
            const PARTS: usize = $parts;

            fn find(call: &Call<'_>, weight: &str, rows: usize, blocks: usize) -> Self {
                $name(call.input::<$element>(&format!("{weight}_values"), rows * blocks * BLOCK).as_ptr())
            }

            fn after(self, bytes: usize) -> Self {
                $name(self.0.wrapping_byte_add(bytes))
            }

            #[inline(always)]
            unsafe fn vector<S: Simd>(self, block: usize, part: usize) -> S::V {
                // SAFETY: the caller's promise.
                unsafe { S::$load(self.0.add(block * BLOCK + part * S::LANES)) }
            }

            #[inline(always)]
            unsafe fn prefetch<S: Simd>(self, block: usize) {
                let block = self.0.wrapping_add(block * BLOCK);
                // SAFETY: the caller's promise.
                unsafe {
                    S::prefetch(block);
                    if size_of::<$element>() * BLOCK > 64 {
                        S::prefetch(block.wrapping_add(BLOCK / 2));
                    }
                }
            }

            const OF_BLOCK: usize = size_of::<$element>() * BLOCK;

            #[inline(always)]
            unsafe fn prefetch_far<S: Simd>(self, block: usize) {
                let block = self.0.wrapping_add(block * BLOCK);
                // SAFETY: the caller's promise.
                unsafe {
                    S::prefetch_far(block);
                    if Self::OF_BLOCK > 64 {
                        S::prefetch_far(block.wrapping_add(BLOCK / 2));
                    }
                }
            }
        }
    };
}

plain!(
    /// Singles.
    F32, f32, load, 3
);
plain!(
    /// Halves.
    F16, f16, load_f16, 2
);
plain!(
    /// Bfloats.
    Bf16, bf16, load_bf16, 1
);
