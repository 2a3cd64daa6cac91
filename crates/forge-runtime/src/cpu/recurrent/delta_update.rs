//! What a row does to columns of a memory, and what they say to it. A column is what a memory knows of one channel of values:
//! a number for each channel of keys. Columns know nothing of each other, so that whoever has several rows takes all of them to
//! a few columns that stay near, and then to the next.
//!
//! A row's sums are its own, whatever rows and columns are taken with it.

// Indices count columns and sums of fixed-size arrays: loops over them unroll into registers.
#![allow(clippy::needless_range_loop)]

use crate::cpu::matmul::f32::microkernel::totals;
use crate::cpu::simd::vectors::Simd;

/// What a row brings to a memory.
#[derive(Clone, Copy)]
pub(crate) struct RowUpdate<'a> {
    /// Of unit length, times what the answer is multiplied by.
    pub(crate) query: &'a [f32],
    /// Of unit length.
    pub(crate) key: &'a [f32],
    /// Their product.
    pub(crate) likeness: f32,
    /// Of what the memory held, what is left.
    pub(crate) decay: f32,
    /// How strongly it learns.
    pub(crate) strength: f32,
}

/// Columns that are met at once. What one teaches waits for all of its sums, and meanwhile there is nothing but those of others to do.
const AT_ONCE: usize = 8;

/// Makes a query and a key of unit length, and the query `scale` times as long; gives their product.
#[inline(always)]
pub(crate) unsafe fn make_unit<S: Simd>(query: &mut [f32], key: &mut [f32], scale: f32, epsilon: f32) -> f32 {
    assert!(query.len() == key.len());
    // SAFETY: both are as long as they say.
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

/// Columns forget, learn what they do not know of the values, and are asked.
#[inline(always)]
pub(crate) unsafe fn learn<S: Simd>(
    brought: &RowUpdate<'_>,
    values: &[f32],
    columns: &mut [f32],
    said: &mut [f32],
) {
    let keys = brought.key.len();
    assert!(said.len() == values.len() && columns.len() == values.len() * keys);
    let whole = values.len() / AT_ONCE * AT_ONCE;
    for first in (0..whole).step_by(AT_ONCE) {
        let met = first * keys..(first + AT_ONCE) * keys;
        // SAFETY: as many columns as values.
        unsafe { meet::<S, AT_ONCE>(brought, &values[first..], &mut columns[met], &mut said[first..]) };
    }
    for first in whole..values.len() {
        let met = first * keys..(first + 1) * keys;
        // SAFETY: as above.
        unsafe { meet::<S, 1>(brought, &values[first..], &mut columns[met], &mut said[first..]) };
    }
}

/// `N` columns.
#[inline(always)]
unsafe fn meet<S: Simd, const N: usize>(
    brought: &RowUpdate<'_>,
    values: &[f32],
    columns: &mut [f32],
    said: &mut [f32],
) {
    let RowUpdate { query, key, likeness, decay, strength } = *brought;
    let keys = key.len();
    let whole = keys / S::LANES * S::LANES;
    assert!(query.len() == keys && columns.len() == N * keys);
    // SAFETY: vectors up to `whole` lie inside, by the line above.
    unsafe {
        let [asked, known] = products::<S, N>(query, key, columns.as_ptr());
        let mut learnt = [0.0; N];
        for n in 0..N {
            learnt[n] = strength * (values[n] - decay * known[n]);
            said[n] = decay * asked[n] + learnt[n] * likeness;
        }
        for i in (0..whole).step_by(S::LANES) {
            let k = S::load(key.as_ptr().add(i));
            for n in 0..N {
                let held = columns.as_mut_ptr().add(n * keys + i);
                let left = S::mul(S::load(held), S::splat(decay));
                S::store(held, S::fma(k, S::splat(learnt[n]), left));
            }
        }
        for i in whole..keys {
            for n in 0..N {
                columns[n * keys + i] = decay * columns[n * keys + i] + learnt[n] * key[i];
            }
        }
    }
}

/// The products of `N` columns with a query and with a key.
#[inline(always)]
unsafe fn products<S: Simd, const N: usize>(
    query: &[f32],
    key: &[f32],
    columns: *const f32,
) -> [[f32; N]; 2] {
    let keys = key.len();
    let whole = keys / S::LANES * S::LANES;
    // SAFETY: the caller promises that columns are as long as both.
    unsafe {
        let mut asked = [S::splat(0.0); N];
        let mut known = [S::splat(0.0); N];
        for i in (0..whole).step_by(S::LANES) {
            let (q, k) = (S::load(query.as_ptr().add(i)), S::load(key.as_ptr().add(i)));
            for n in 0..N {
                let held = S::load(columns.add(n * keys + i));
                asked[n] = S::fma(held, q, asked[n]);
                known[n] = S::fma(held, k, known[n]);
            }
        }
        let mut sums = [totals::<S, N>(asked), totals::<S, N>(known)];
        for i in whole..keys {
            for n in 0..N {
                let held = *columns.add(n * keys + i);
                sums[0][n] += held * query[i];
                sums[1][n] += held * key[i];
            }
        }
        sums
    }
}
