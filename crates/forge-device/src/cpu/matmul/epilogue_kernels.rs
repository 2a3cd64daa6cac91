//! Epilogue kernels: norm, bias, activation and output operation.
//!
//! They are separate tasks, compiled once per instruction set, because results do not depend on the weight
//! format. The cost of a call is small compared with the dot products. Results of many rows are passed one
//! panel at a time.

use crate::cpu::elementwise::activation::Vectorized;
use crate::cpu::head::argmax::ordered;
use crate::cpu::matmul::epilogue::{EpilogueContext, GRAIN, PartialResults, ROWS_AHEAD, SideOutput};
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::streaming_store::write_past;
use crate::cpu::simd::vectors::Simd;
use forge_ops::Epilogue;
use forge_ops::{Activation, Gating};

/// Epilogue of a panel.
pub(crate) struct PanelEpilogue<'a> {
    pub(crate) finish: &'a EpilogueContext<'a>,
    /// Row indices.
    pub(crate) rows: &'a [usize],
    /// First output, and number of outputs.
    pub(crate) outputs: (usize, usize),
    /// Bias of these outputs; may be empty.
    pub(crate) bias: &'a [f32],
    /// Results, with a row stride of `pitch`.
    pub(crate) values: &'a mut [f32],
    pub(crate) pitch: usize,
}

impl Task for PanelEpilogue<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let PanelEpilogue { finish, rows, outputs: (first, count), bias, values, pitch } = self;
        // Panels have no additional outputs.
        let partials = &mut { PartialResults::NOTHING };
        for (place, (row, values)) in rows.iter().zip(values.chunks_mut(pitch)).enumerate() {
            if let Some(coming) = rows.get(place + ROWS_AHEAD) {
                // SAFETY: this runs compiled for its instruction set.
                unsafe { finish.prefetch_outputs::<S>(*coming, first, count) };
            }
            RowEpilogue { finish, row: *row, first, bias, values: &mut values[..count], partials }.run::<S>();
        }
    }
}

/// Epilogue of some outputs of one row.
pub(crate) struct RowEpilogue<'a> {
    pub(crate) finish: &'a EpilogueContext<'a>,
    pub(crate) row: usize,
    /// The first output.
    pub(crate) first: usize,
    /// Bias of these outputs; may be empty.
    pub(crate) bias: &'a [f32],
    pub(crate) values: &'a mut [f32],
    /// Additional outputs of the partition.
    pub(crate) partials: &'a mut PartialResults,
}

impl Task for RowEpilogue<'_> {
    /// The caller has checked the instruction set, and ensures that no other thread has these outputs.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let RowEpilogue { finish, row, first, bias, values, partials } = self;
        if let Some(factor) = finish.factor {
            for value in values.iter_mut() {
                *value *= factor;
            }
        }
        for (value, bias) in values.iter_mut().zip(bias) {
            *value += bias;
        }
        if let Some(unary) = finish.unary {
            // SAFETY: the contract of the caller of `run`.
            unsafe { unary.apply::<S>(values) };
        }
        let count = values.len() / finish.epilogue.results_per_output();
        let start = row * finish.width + first / finish.epilogue.results_per_output();
        // SAFETY: the contract of the caller of `run`.
        let y = unsafe { finish.y.part(start..start + count) };
        // With non-temporal stores, results are computed in `values` and `y` is not read back.
        let past = finish.past;
        match finish.epilogue {
            Epilogue::Store | Epilogue::Best { .. } if past => {}
            Epilogue::Store | Epilogue::Best { .. } => y.copy_from_slice(values),
            Epilogue::Add | Epilogue::AddSquares(_) if past => add(values, y),
            Epilogue::Add | Epilogue::AddSquares(_) => add(y, values),
            Epilogue::Multiply { .. } if past => {
                for (value, factor) in values.iter_mut().zip(&finish.factors[first..]) {
                    *value *= factor;
                }
            }
            Epilogue::Multiply { .. } => multiply(y, values, &finish.factors[first..]),
            Epilogue::Gate(_) => {
                let gating = GatingKernel::new(finish.epilogue, values);
                let from = values.as_mut_ptr();
                let to = if past { from } else { y.as_mut_ptr() };
                // SAFETY: the contract of the caller of `run`; there are twice as many values.
                unsafe { gate::<S>(gating, from, to, count) };
            }
        }
        let results = match past {
            true => {
                write_past::<S>(&values[..count], y);
                &values[..count]
            }
            false => &*y,
        };
        match &finish.side_output {
            SideOutput::Nothing => {}
            SideOutput::Squares { gained, .. } => {
                if let Some((gain, gained)) = gained {
                    // SAFETY: as for y.
                    multiply(unsafe { gained.part(first..first + count) }, results, &gain[first..]);
                }
                // Fixed-size chunks make the order of additions independent of the number of values.
                for some in results.chunks(GRAIN) {
                    partials.squares += dot::<S>(some, some);
                }
            }
            SideOutput::Candidates(_) => {
                // The maximum of a chunk is computed first. Its index is computed only if it is a new
                // maximum.
                for (first, some) in (first..).step_by(GRAIN).zip(results.chunks(GRAIN)) {
                    let best = some.iter().map(|result| ordered(*result)).fold(0, u32::max);
                    if best > partials.key {
                        let place = some.iter().position(|result| ordered(*result) == best).unwrap_or(0);
                        (partials.key, partials.id) = (best, (first + place) as u32);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn add(to: &mut [f32], more: &[f32]) {
    for (to, more) in to.iter_mut().zip(more) {
        *to += *more;
    }
}

#[inline(always)]
pub(crate) fn multiply(to: &mut [f32], a: &[f32], b: &[f32]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = a * b;
    }
}

/// a · b
#[inline(always)]
pub(crate) fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    let whole = a.len() / S::LANES * S::LANES;
    // SAFETY: vectors up to `whole` are in bounds; `b` is as long as `a`.
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

/// A gated activation, after clamping.
#[derive(Clone, Copy)]
enum GatingKernel {
    /// activation(gate) * up
    Plain(Activation),
    /// gate / (1 + exp(-sharpness * gate)) * (up + 1)
    Sharp(f32),
}

impl GatingKernel {
    /// The gating of an epilogue; clamps `values` if the epilogue does.
    #[inline(always)]
    fn new(epilogue: Epilogue, values: &mut [f32]) -> GatingKernel {
        match epilogue {
            Epilogue::Gate(Gating::Clamped { limit, sharpness }) => {
                for pair in values.chunks_exact_mut(2) {
                    clamp(pair, limit);
                }
                GatingKernel::Sharp(sharpness)
            }
            Epilogue::Gate(Gating::Plain(activation)) => GatingKernel::Plain(activation),
            other => unreachable!("{other:?} has no gate"),
        }
    }

    /// Applies it to vectors.
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let one = S::splat(1.0);
            match self {
                GatingKernel::Plain(activation) => S::mul(activation.of::<S>(gate), up),
                GatingKernel::Sharp(sharpness) => {
                    let closed = S::exp(S::mul(S::splat(-sharpness), gate));
                    S::mul(S::div(gate, S::add(one, closed)), S::add(up, one))
                }
            }
        }
    }
}

/// Applies the gating to `count` interleaved pairs of gate and up. `to` may be equal to `from`.
#[inline(always)]
unsafe fn gate<S: Simd>(gating: GatingKernel, from: *const f32, to: *mut f32, count: usize) {
    for start in (0..count).step_by(S::LANES) {
        let some = S::LANES.min(count - start);
        // SAFETY: pairs are read before results are written to their place or an earlier one; a vector has at
        // most 16 lanes.
        unsafe {
            let (from, to) = (from.add(2 * start), to.add(start));
            if some == S::LANES {
                let [gates, ups] = S::load_pairs(from);
                S::store(to, gating.of::<S>(gates, ups));
                continue;
            }
            let mut of = [0.0; 32];
            of[..2 * some].copy_from_slice(std::slice::from_raw_parts(from, 2 * some));
            let [gates, ups] = S::load_pairs(of.as_ptr());
            S::store(of.as_mut_ptr(), gating.of::<S>(gates, ups));
            to.copy_from_nonoverlapping(of.as_ptr(), some);
        }
    }
}

/// Clamps a gate from above, and its up on both sides. NaN stays NaN.
#[inline(always)]
fn clamp(pair: &mut [f32], limit: f32) {
    for x in &mut *pair {
        *x = if *x > limit { limit } else { *x };
    }
    pair[1] = if pair[1] < -limit { -limit } else { pair[1] };
}
