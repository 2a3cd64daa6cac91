//! What becomes of a projection's results: deferred norm, bias, a function of each, and the epilogue.

use crate::cpu::attention::rope_tables::inverse_rms;
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::elementwise::activation::{Activation, UnaryOp};
use crate::cpu::matmul::epilogue_kernels::{PanelEpilogue, RowEpilogue, dot, multiply};
use crate::cpu::matmul::gemv::FEW;
use crate::cpu::matmul::linear::Linear;
use crate::cpu::simd::isa::Isa;
use crate::cpu::simd::vectors::Simd;

/// What becomes of the result v for output o of row r.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epilogue {
    /// `y[r][o] = v`
    Store,
    /// `y[r][o] += v`
    Add,
    /// Outputs alternate gate, up: `y[r][o / 2] = activation(gate) * up`
    Gate(Activation),
    /// The same with `y[r][o / 2] = a / (1 + exp(-sharpness a)) * (b + 1)`, where a is the gate but at most the limit, and b the up
    /// but at most the limit either way.
    GateClamped {
        /// The largest gate, and the largest up either way.
        limit: f32,
        /// How steeply gates open.
        sharpness: f32,
    },
    /// `y[o] = v * factors[first + o]`: columns of a row of factors, from the second scalar on. For one row.
    Multiply {
        /// Numbers of the row.
        of: usize,
    },
    /// `y[o] += v`, and what a deferred norm of y needs. For one row.
    AddSquares(Squares),
    /// `y[o] = v`, and the best of each share of the outputs in `candidates`: `[candidates, 2]`, a key that orders as the
    /// number does and the lowest output that has it. For one row.
    Best {
        /// Pairs in `candidates`. Those that no share has get key 0.
        candidates: usize,
    },
}

impl Epilogue {
    /// How many outputs become one number.
    pub(crate) fn of_one(self) -> usize {
        if matches!(self, Epilogue::Gate(_) | Epilogue::GateClamped { .. }) { 2 } else { 1 }
    }
}

/// What the producer of a row leaves for the deferred norm that reads it. Made for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squares {
    /// Partial sums of squares in `squares`: all are written, those that no share has as 0.
    pub partials: usize,
    /// Whether `gained` is written: the row times the norm's gain.
    pub gain: bool,
}

/// The norm of a projection's input, deferred: x is already multiplied by the gain, and results are divided by
/// `sqrt(sum(squares) / inputs + epsilon)`. For one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeferredNorm {
    /// Numbers in `squares`.
    pub partials: usize,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// The norm of a projection's input, taken by the projection itself: x is multiplied by the gain, and results are divided by
/// `sqrt(mean(x²) + epsilon)`. For one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InlineNorm {
    /// Whether there is a gain.
    pub gain: bool,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

impl Squares {
    /// Leaves a whole row, in the buffer of this name: its sum of squares is the first partial sum.
    #[inline(always)]
    pub(crate) fn leave<S: Simd>(&self, call: &KernelArgs<'_>, buffer: &str, row: &[f32]) {
        // SAFETY: whoever has the whole row has all of these.
        unsafe {
            if self.gain {
                let gained = call.output::<f32>("gained", row.len()).part(0..row.len());
                multiply(gained, row, call.input::<f32>("gain", row.len()));
            }
            let squares = call.output::<f32>(buffer, self.partials).part(0..self.partials);
            squares.fill(0.0);
            squares[0] = dot::<S>(row, row);
        }
    }
}

impl DeferredNorm {
    /// What results are multiplied by.
    #[inline(always)]
    fn factor<S: Simd>(&self, call: &KernelArgs<'_>, inputs: usize) -> f32 {
        let squares = call.input::<f32>("squares", self.partials);
        let whole = squares.len() / S::LANES * S::LANES;
        // SAFETY: vectors up to `whole` lie inside.
        let mut total = unsafe {
            let mut sums = S::splat(0.0);
            for i in (0..whole).step_by(S::LANES) {
                sums = S::add(sums, S::load(squares.as_ptr().add(i)));
            }
            S::sum(sums)
        };
        for square in &squares[whole..] {
            total += square;
        }
        1.0 / (total / inputs as f32 + self.epsilon).sqrt()
    }
}

/// The most outputs that a thread takes at once when there are few rows.
pub(crate) const GRAIN: usize = 64;

/// Where results go.
pub(crate) struct EpilogueContext<'a> {
    level: Isa,
    /// The deferred norm.
    pub(crate) factor: Option<f32>,
    bias: &'a [f32],
    pub(crate) each: Option<UnaryOp>,
    /// What each result is multiplied by, where it is.
    pub(crate) factors: &'a [f32],
    pub(crate) y: Output<'a, f32>,
    pub(crate) width: usize,
    pub(crate) epilogue: Epilogue,
    pub(crate) left: SideOutput<'a>,
    /// Whether results are written past the caches ([`crate::cpu::simd::streaming_store`]).
    pub(crate) past: bool,
}

/// Rows of results that are asked for ahead, where many are put where they belong: as many cache lines as are under way at once.
pub(crate) const ROWS_AHEAD: usize = 8;

/// What is left beside y.
pub(crate) enum SideOutput<'a> {
    Nothing,
    Squares { gained: Option<(&'a [f32], Output<'a, f32>)>, squares: Output<'a, f32> },
    Candidates(Output<'a, u32>),
}

/// What one share of the outputs leaves.
#[derive(Clone, Copy)]
pub(crate) struct PartialResults {
    pub(crate) squares: f32,
    pub(crate) key: u32,
    pub(crate) id: u32,
}

impl PartialResults {
    pub(crate) const NOTHING: PartialResults = PartialResults { squares: 0.0, key: 0, id: u32::MAX };
}

impl<'a> EpilogueContext<'a> {
    #[inline(always)]
    pub(crate) fn new<S: Simd>(call: &'a KernelArgs<'a>, shape: &Linear, rows: usize) -> EpilogueContext<'a> {
        let Linear { outputs, inputs, norm, own_norm, bias, each, epilogue, .. } = *shape;
        let width = outputs / epilogue.of_one();
        EpilogueContext {
            level: call.level(),
            factor: match own_norm {
                // SAFETY: the level exists, as this runs by it.
                Some(own) => Some(unsafe { inverse_rms::<S>(call.input("x", inputs), own.epsilon) }),
                None => norm.map(|norm| norm.factor::<S>(call, inputs)),
            },
            bias: if bias { call.input::<f32>("bias", outputs) } else { &[] },
            each,
            factors: match epilogue {
                Epilogue::Multiply { of } => &call.input::<f32>("factors", of)[call.scalar(1)..][..outputs],
                _ => &[],
            },
            y: call.output::<f32>("y", rows * width),
            width,
            epilogue,
            left: match epilogue {
                Epilogue::AddSquares(Squares { partials, gain }) => SideOutput::Squares {
                    gained: gain.then(|| (call.input("gain", outputs), call.output("gained", outputs))),
                    squares: call.output("squares_out", partials),
                },
                Epilogue::Best { candidates } => {
                    SideOutput::Candidates(call.output("candidates", 2 * candidates))
                }
                _ => SideOutput::Nothing,
            },
            past: call.scalar(0) <= FEW && call.workers() > 1,
        }
    }

    /// How the outputs of few rows are shared: how many shares, outputs of each, and how many a thread takes at once. Where
    /// shares leave something they are what the shape says, since that must not depend on the number of threads, and a
    /// thread takes a few; else a thread's own.
    pub(crate) fn shares(&self, outputs: usize, workers: usize) -> (usize, usize, usize) {
        let grain = (outputs / (workers * 8)).clamp(4, GRAIN).next_multiple_of(4);
        let shares = match self.epilogue {
            Epilogue::AddSquares(squares) => squares.partials,
            Epilogue::Best { candidates } => candidates,
            _ => return (outputs.div_ceil(grain), grain, 1),
        };
        let size = outputs.div_ceil(shares).next_multiple_of(4);
        (shares, size, grain.div_ceil(size))
    }

    /// Asks for where the results of `count` outputs from `first` on of a row will go, which another core may have. It loses what it has
    /// of them, so the row is to be this thread's.
    #[inline(always)]
    pub(crate) unsafe fn expect<S: Simd>(&self, row: usize, first: usize, count: usize) {
        let halved = self.epilogue.of_one();
        let to = self.y.start().wrapping_add(row * self.width + first / halved);
        for line in (0..count / halved).step_by(16) {
            // SAFETY: what is asked for may be anywhere.
            unsafe { S::prefetch_to_write(to.wrapping_add(line)) };
        }
    }

    /// Puts the results of outputs `first..` of a row where they belong, and counts them in what their share leaves. No
    /// other thread may have them.
    pub(crate) unsafe fn outputs(
        &self,
        row: usize,
        first: usize,
        values: &mut [f32],
        share: &mut PartialResults,
    ) {
        let bias = self.bias.get(first..).unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { self.biased(row, (first, bias), values, share) };
    }

    /// The same with a bias that is not that of all rows, from `first` on; none where it is empty.
    pub(crate) unsafe fn biased(
        &self,
        row: usize,
        (first, bias): (usize, &[f32]),
        values: &mut [f32],
        share: &mut PartialResults,
    ) {
        self.level.run(RowEpilogue { finish: self, row, first, bias, values, share });
    }

    /// Puts the results of a panel where they belong: of outputs from a first one on, so many, of some rows, each `pitch` after those
    /// of the row before. Where a bias is given it is that.
    pub(crate) unsafe fn panel(
        &self,
        rows: &[usize],
        outputs: (usize, usize),
        bias: Option<&[f32]>,
        (values, pitch): (&mut [f32], usize),
    ) {
        let bias = bias.unwrap_or(self.bias.get(outputs.0..).unwrap_or_default());
        self.level.run(PanelEpilogue { finish: self, rows, outputs, bias, values, pitch });
    }

    /// Leaves what share number `index` has counted. No other thread may have that share.
    #[inline(always)]
    pub(crate) unsafe fn leave(&self, index: usize, share: PartialResults) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.left {
                SideOutput::Nothing => {}
                SideOutput::Squares { squares, .. } => squares.part(index..index + 1)[0] = share.squares,
                SideOutput::Candidates(pairs) => {
                    pairs.part(2 * index..2 * index + 2).copy_from_slice(&[share.key, share.id]);
                }
            }
        }
    }
}
