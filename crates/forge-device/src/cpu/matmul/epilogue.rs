//! Epilogues of matrix products: deferred norm, bias, activation and output operation.

use crate::cpu::attention::rope_tables::inverse_rms;
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::matmul::epilogue_kernels::{PanelEpilogue, RowEpilogue, dot, multiply};
use crate::cpu::matmul::gemv::GEMV_MAX_ROWS;
use crate::cpu::simd::isa::Isa;
use crate::cpu::simd::vectors::Simd;
use forge_ops::UnaryOp;
use forge_ops::{DeferredNorm, Epilogue, Linear, Squares};

/// Writes the outputs for a deferred norm of a whole row: its sum of squares becomes the first partial sum in
/// `buffer`.
#[inline(always)]
pub(crate) fn write_squares<S: Simd>(outputs: Squares, call: &KernelArgs<'_>, buffer: &str, row: &[f32]) {
    // SAFETY: the thread that has the whole row writes all of these outputs.
    unsafe {
        if outputs.gain {
            let gained = call.output::<f32>("gained", row.len()).part(0..row.len());
            multiply(gained, row, call.input::<f32>("gain", row.len()));
        }
        let squares = call.output::<f32>(buffer, outputs.partials).part(0..outputs.partials);
        squares.fill(0.0);
        squares[0] = dot::<S>(row, row);
    }
}

/// The factor that a deferred norm multiplies results by.
#[inline(always)]
fn deferred_norm_factor<S: Simd>(norm: DeferredNorm, call: &KernelArgs<'_>, inputs: usize) -> f32 {
    let squares = call.input::<f32>("squares", norm.partials);
    let whole = squares.len() / S::LANES * S::LANES;
    // SAFETY: vectors up to `whole` are in bounds.
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
    1.0 / (total / inputs as f32 + norm.epsilon).sqrt()
}

/// Maximum number of outputs per claim with few rows.
pub(crate) const GRAIN: usize = 64;

/// Epilogue parameters and output buffers.
pub(crate) struct EpilogueContext<'a> {
    level: Isa,
    /// Factor of the norm.
    pub(crate) factor: Option<f32>,
    bias: &'a [f32],
    pub(crate) unary: Option<UnaryOp>,
    /// Factors of the results, if any.
    pub(crate) factors: &'a [f32],
    pub(crate) y: Output<'a, f32>,
    pub(crate) width: usize,
    pub(crate) epilogue: Epilogue,
    pub(crate) side_output: SideOutput<'a>,
    /// Whether results are written with non-temporal stores ([`crate::cpu::simd::streaming_store`]).
    pub(crate) past: bool,
}

/// Prefetch distance of y in rows, about the number of cache lines in flight.
pub(crate) const ROWS_AHEAD: usize = 8;

/// Outputs in addition to y.
pub(crate) enum SideOutput<'a> {
    Nothing,
    Squares { gained: Option<(&'a [f32], Output<'a, f32>)>, squares: Output<'a, f32> },
    Candidates(Output<'a, u32>),
}

/// Additional outputs of one partition.
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
        let Linear { outputs, inputs, norm, own_norm, bias, unary, epilogue, .. } = *shape;
        let width = outputs / epilogue.results_per_output();
        EpilogueContext {
            level: call.level(),
            factor: match own_norm {
                // SAFETY: this runs compiled for its instruction set.
                Some(own) => Some(unsafe { inverse_rms::<S>(call.input("x", inputs), own.epsilon) }),
                None => norm.map(|norm| deferred_norm_factor::<S>(norm, call, inputs)),
            },
            bias: if bias { call.input::<f32>("bias", outputs) } else { &[] },
            unary,
            factors: match epilogue {
                Epilogue::Multiply { of } => &call.input::<f32>("factors", of)[call.scalar(1)..][..outputs],
                _ => &[],
            },
            y: call.output::<f32>("y", rows * width),
            width,
            epilogue,
            side_output: match epilogue {
                Epilogue::AddSquares(Squares { partials, gain }) => SideOutput::Squares {
                    gained: gain.then(|| (call.input("gain", outputs), call.output("gained", outputs))),
                    squares: call.output("squares_out", partials),
                },
                Epilogue::Best { candidates } => {
                    SideOutput::Candidates(call.output("candidates", 2 * candidates))
                }
                _ => SideOutput::Nothing,
            },
            past: call.scalar(0) <= GEMV_MAX_ROWS && call.workers() > 1,
        }
    }

    /// Partitioning of the outputs with few rows: number of partitions, outputs per partition, and partitions
    /// per claim. With additional outputs, the shape fixes the partitions, because results must not depend on
    /// the number of threads.
    pub(crate) fn partitions(&self, outputs: usize, workers: usize) -> (usize, usize, usize) {
        let grain = (outputs / (workers * 8)).clamp(4, GRAIN).next_multiple_of(4);
        let partitions = match self.epilogue {
            Epilogue::AddSquares(squares) => squares.partials,
            Epilogue::Best { candidates } => candidates,
            _ => return (outputs.div_ceil(grain), grain, 1),
        };
        let size = outputs.div_ceil(partitions).next_multiple_of(4);
        (partitions, size, grain.div_ceil(size))
    }

    /// Prefetches the destination of `count` outputs from `first` on, with write intent. Other cores lose
    /// these lines, so the outputs must belong to this thread.
    #[inline(always)]
    pub(crate) unsafe fn prefetch_outputs<S: Simd>(&self, row: usize, first: usize, count: usize) {
        let halved = self.epilogue.results_per_output();
        let to = self.y.start().wrapping_add(row * self.width + first / halved);
        for line in (0..count / halved).step_by(16) {
            // SAFETY: prefetch addresses need not be valid.
            unsafe { S::prefetch_to_write(to.wrapping_add(line)) };
        }
    }

    /// Writes the results of outputs `first..` of a row and updates the partition's additional outputs. No
    /// other thread may have these outputs.
    pub(crate) unsafe fn outputs(
        &self,
        row: usize,
        first: usize,
        values: &mut [f32],
        partials: &mut PartialResults,
    ) {
        let bias = self.bias.get(first..).unwrap_or_default();
        // SAFETY: the caller's contract.
        unsafe { self.biased(row, (first, bias), values, partials) };
    }

    /// Like [`EpilogueContext::outputs`], with the given bias from `first` on; none if it is empty.
    pub(crate) unsafe fn biased(
        &self,
        row: usize,
        (first, bias): (usize, &[f32]),
        values: &mut [f32],
        partials: &mut PartialResults,
    ) {
        self.level.run(RowEpilogue { finish: self, row, first, bias, values, partials });
    }

    /// Writes the results of a panel: outputs (first, count) of some rows, which have a stride of `pitch`.
    /// `bias` replaces the bias, if given.
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

    /// Writes the additional outputs of partition `index`. No other thread may have that partition.
    #[inline(always)]
    pub(crate) unsafe fn write_partials(&self, index: usize, partials: PartialResults) {
        // SAFETY: the caller's contract.
        unsafe {
            match &self.side_output {
                SideOutput::Nothing => {}
                SideOutput::Squares { squares, .. } => squares.part(index..index + 1)[0] = partials.squares,
                SideOutput::Candidates(pairs) => {
                    pairs.part(2 * index..2 * index + 2).copy_from_slice(&[partials.key, partials.id]);
                }
            }
        }
    }
}
