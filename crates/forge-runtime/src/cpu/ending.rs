//! What becomes of results: norm, bias, a function of each, and the epilogue.
//!
//! It is a task of its own, compiled once for each set of instructions: whatever format a weight has and however many rows there
//! are, the same numbers come here. A call a few dozen results is nothing beside what they are made of.

use super::argmax::ordered;
use super::finish::{Activation, Epilogue, Finish, GRAIN, Left, OfShare};
use super::level::Task;
use super::simd::Simd;

/// Results of a row that are put where they belong.
pub(super) struct Ending<'a> {
    pub(super) finish: &'a Finish<'a>,
    pub(super) row: usize,
    /// The first of these outputs.
    pub(super) first: usize,
    /// Of these outputs, where there is one.
    pub(super) bias: &'a [f32],
    pub(super) values: &'a mut [f32],
    /// What their share of the outputs leaves.
    pub(super) share: &'a mut OfShare,
}

impl Task for Ending<'_> {
    /// The device has seen that the level exists; who makes the task promises that nobody else has these outputs.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Ending { finish, row, first, bias, values, share } = self;
        if let Some(factor) = finish.factor {
            for value in values.iter_mut() {
                *value *= factor;
            }
        }
        for (value, bias) in values.iter_mut().zip(bias) {
            *value += bias;
        }
        if let Some(each) = finish.each {
            // SAFETY: the maker's promise.
            unsafe { each.apply::<S>(values) };
        }
        let halved = finish.epilogue.of_one();
        let start = row * finish.width + first / halved;
        // SAFETY: the maker's promise.
        let y = unsafe { finish.y.part(start..start + values.len() / halved) };
        match finish.epilogue {
            Epilogue::Store | Epilogue::Best { .. } => y.copy_from_slice(values),
            Epilogue::Add | Epilogue::AddSquares(_) => {
                for (y, value) in y.iter_mut().zip(values.iter()) {
                    *y += *value;
                }
            }
            Epilogue::Multiply { .. } => multiply(y, values, &finish.factors[first..]),
            // SAFETY: the maker's promise.
            Epilogue::Gate(activation) => unsafe { gate::<S>(Gating::Plain(activation), values, y) },
            Epilogue::GateClamped { limit, sharpness } => {
                for pair in values.chunks_exact_mut(2) {
                    clamp(pair, limit);
                }
                // SAFETY: the maker's promise.
                unsafe { gate::<S>(Gating::Sharp(sharpness), values, y) };
            }
        }
        match &finish.left {
            Left::Nothing => {}
            Left::Squares { gained, .. } => {
                if let Some((gain, gained)) = gained {
                    // SAFETY: as y.
                    multiply(unsafe { gained.part(first..first + y.len()) }, y, &gain[first..]);
                }
                // So many at a time, however many come: they are added in one order.
                for y in y.chunks(GRAIN) {
                    share.squares += dot::<S>(y, y);
                }
            }
            Left::Candidates(_) => {
                for (output, &value) in (first..).zip(y.iter()) {
                    let key = ordered(value);
                    if key > share.key {
                        (share.key, share.id) = (key, output as u32);
                    }
                }
            }
        }
    }
}

#[inline(always)]
pub(super) fn multiply(to: &mut [f32], a: &[f32], b: &[f32]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = a * b;
    }
}

/// a · b
#[inline(always)]
pub(super) fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    let whole = a.len() / S::LANES * S::LANES;
    // SAFETY: vectors up to `whole` lie inside; `b` is as long as `a`.
    let mut total = unsafe {
        let mut sums = S::splat(0.0);
        for i in (0..whole).step_by(S::LANES) {
            sums = S::fma(S::load(a.as_ptr().add(i)), S::load(b[..a.len()].as_ptr().add(i)), sums);
        }
        S::sum(sums)
    };
    for (a, b) in a[whole..].iter().zip(&b[whole..]) {
        total += a * b;
    }
    total
}

/// A gate that is not above the limit, and an up that is not beyond it. What is no number stays none.
#[inline(always)]
fn clamp(pair: &mut [f32], limit: f32) {
    for x in &mut *pair {
        *x = if *x > limit { limit } else { *x };
    }
    pair[1] = if pair[1] < -limit { -limit } else { pair[1] };
}

/// What becomes of gates and their ups, which are clamped already where they have to be.
#[derive(Clone, Copy)]
enum Gating {
    /// activation(gate) * up
    Plain(Activation),
    /// gate / (1 + exp(-sharpness * gate)) * (up + 1)
    Sharp(f32),
}

impl Gating {
    /// Of every lane.
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let one = S::splat(1.0);
            match self {
                Gating::Plain(activation) => S::mul(activation.of::<S>(gate), up),
                Gating::Sharp(sharpness) => {
                    let closed = S::exp(S::mul(S::splat(-sharpness), gate));
                    S::mul(S::div(gate, S::add(one, closed)), S::add(up, one))
                }
            }
        }
    }
}

/// y = what becomes of gates and ups, for values that alternate them.
#[inline(always)]
unsafe fn gate<S: Simd>(gating: Gating, values: &[f32], y: &mut [f32]) {
    for (y, values) in y.chunks_mut(S::LANES).zip(values.chunks(2 * S::LANES)) {
        // SAFETY: a vector has at most 16 lanes.
        unsafe {
            if y.len() == S::LANES {
                let [gates, ups] = S::load_pairs(values[..2 * S::LANES].as_ptr());
                S::store(y.as_mut_ptr(), gating.of::<S>(gates, ups));
                continue;
            }
            let mut some = [0.0; 32];
            some[..values.len()].copy_from_slice(values);
            let [gates, ups] = S::load_pairs(some.as_ptr());
            S::store(some.as_mut_ptr(), gating.of::<S>(gates, ups));
            y.copy_from_slice(&some[..y.len()]);
        }
    }
}
