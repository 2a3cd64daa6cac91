//! Update and read-out of columns of the recurrent state. A column belongs to one value channel and has one
//! element per key channel. Columns are independent. Callers with several rows therefore apply all of them to
//! a few columns in L1, and then go on to the next columns.
//!
//! A row's sums are independent of the other rows and columns that are computed together.

// Index loops over columns and sums of fixed-size arrays unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::matmul::f32::microkernel::totals;
use crate::cpu::simd::vectors::Simd;

/// Inputs of a row's state update.
#[derive(Clone, Copy)]
pub(crate) struct RowUpdate<'a> {
    /// Normalized query, times the output factor.
    pub(crate) query: &'a [f32],
    /// Normalized key.
    pub(crate) key: &'a [f32],
    /// Dot product of query and key.
    pub(crate) likeness: f32,
    /// Decay factor of the state.
    pub(crate) decay: f32,
    /// Beta: the update factor.
    pub(crate) beta: f32,
}

/// Columns computed together, which hides the latency of each column's sums.
const AT_ONCE: usize = 8;

/// Normalizes query and key to unit length, multiplies the query by `scale`, and returns their dot product.
#[inline(always)]
pub(crate) unsafe fn normalize_l2<S: Simd>(
    query: &mut [f32],
    key: &mut [f32],
    scale: f32,
    epsilon: f32,
) -> f32 {
    assert!(query.len() == key.len());
    // SAFETY: both have equal length.
    unsafe {
        let [[likeness], [squares]] = products::<S, 1>(query, key, key.as_ptr());
        let [_, [query_squares]] = products::<S, 1>(query, query, query.as_ptr());
        let query_scale = scale * (query_squares + epsilon).sqrt().recip();
        let key_scale = (squares + epsilon).sqrt().recip();
        for (q, k) in query.iter_mut().zip(key) {
            *q *= query_scale;
            *k *= key_scale;
        }
        likeness * query_scale * key_scale
    }
}

/// Decays the columns, applies the delta-rule update, and computes the output.
#[inline(always)]
pub(crate) unsafe fn update_state<S: Simd>(
    update: &RowUpdate<'_>,
    values: &[f32],
    columns: &mut [f32],
    output: &mut [f32],
) {
    let keys = update.key.len();
    assert!(output.len() == values.len() && columns.len() == values.len() * keys);
    let whole = values.len() / AT_ONCE * AT_ONCE;
    for first in (0..whole).step_by(AT_ONCE) {
        let range = first * keys..(first + AT_ONCE) * keys;
        // SAFETY: the state has as many columns as values.
        unsafe {
            update_columns::<S, AT_ONCE>(update, &values[first..], &mut columns[range], &mut output[first..])
        };
    }
    for first in whole..values.len() {
        let range = first * keys..(first + 1) * keys;
        // SAFETY: as above.
        unsafe {
            update_columns::<S, 1>(update, &values[first..], &mut columns[range], &mut output[first..])
        };
    }
}

/// Updates `N` columns.
#[inline(always)]
unsafe fn update_columns<S: Simd, const N: usize>(
    update: &RowUpdate<'_>,
    values: &[f32],
    columns: &mut [f32],
    output: &mut [f32],
) {
    let RowUpdate { query, key, likeness, decay, beta } = *update;
    let keys = key.len();
    let whole = keys / S::LANES * S::LANES;
    assert!(query.len() == keys && columns.len() == N * keys);
    // SAFETY: vectors up to `whole` are in bounds, by the assertion above.
    unsafe {
        let [query_dots, key_dots] = products::<S, N>(query, key, columns.as_ptr());
        let mut delta = [0.0; N];
        for n in 0..N {
            delta[n] = beta * (values[n] - decay * key_dots[n]);
            output[n] = decay * query_dots[n] + delta[n] * likeness;
        }
        for i in (0..whole).step_by(S::LANES) {
            let k = S::load(key.as_ptr().add(i));
            for n in 0..N {
                let state = columns.as_mut_ptr().add(n * keys + i);
                let left = S::mul(S::load(state), S::splat(decay));
                S::store(state, S::fma(k, S::splat(delta[n]), left));
            }
        }
        for i in whole..keys {
            for n in 0..N {
                columns[n * keys + i] = decay * columns[n * keys + i] + delta[n] * key[i];
            }
        }
    }
}

/// Dot products of `N` columns with a query and with a key.
#[inline(always)]
unsafe fn products<S: Simd, const N: usize>(
    query: &[f32],
    key: &[f32],
    columns: *const f32,
) -> [[f32; N]; 2] {
    let keys = key.len();
    let whole = keys / S::LANES * S::LANES;
    // SAFETY: the caller ensures that columns are as long as both.
    unsafe {
        let mut query_dots = [S::splat(0.0); N];
        let mut key_dots = [S::splat(0.0); N];
        for i in (0..whole).step_by(S::LANES) {
            let (q, k) = (S::load(query.as_ptr().add(i)), S::load(key.as_ptr().add(i)));
            for n in 0..N {
                let state = S::load(columns.add(n * keys + i));
                query_dots[n] = S::fma(state, q, query_dots[n]);
                key_dots[n] = S::fma(state, k, key_dots[n]);
            }
        }
        let mut sums = [totals::<S, N>(query_dots), totals::<S, N>(key_dots)];
        for i in whole..keys {
            for n in 0..N {
                let state = *columns.add(n * keys + i);
                sums[0][n] += state * query[i];
                sums[1][n] += state * key[i];
            }
        }
        sums
    }
}
