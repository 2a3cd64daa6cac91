//! The arithmetic that all int8 kernels share, so that their results are bitwise identical.

use crate::cpu::format::matrix::Scaling;
use crate::cpu::simd::vectors::Simd;

/// Scales the products of one block, with one rounding per operation:
///
/// ```text
/// products * scale [+ those of the second half block] [+ total * offset [+ those of the second half block]]
/// ```
///
/// Arguments are of the block, or of its half blocks where these have their own scales ([`Scaling`]). `totals` are sums of x's quants.
#[inline(always)]
pub(crate) unsafe fn scaled<S: Simd>(
    scaling: Scaling,
    products: [S::V; 2],
    totals: [S::V; 2],
    scales: [S::V; 2],
    offsets: [S::V; 2],
) -> S::V {
    // SAFETY: the caller dispatched on the instruction set.
    unsafe {
        let mut of_block = S::mul(products[0], scales[0]);
        if scaling.has_half_blocks() {
            of_block = S::add(of_block, S::mul(products[1], scales[1]));
        }
        if scaling.has_offsets() {
            of_block = S::add(of_block, S::mul(totals[0], offsets[0]));
            if scaling.has_half_blocks() {
                of_block = S::add(of_block, S::mul(totals[1], offsets[1]));
            }
        }
        of_block
    }
}
