//! Experts of a few rows: gate and up projections, and the weighted sum of the down projections.
//!
//! Rows with a common expert are computed together, so that its weights are loaded once. In batch passes each
//! row is batch-invariant: products are added in a fixed order, and a row's experts in the order of their
//! indices. Activations are quantized as in [`crate::cpu::linear()`].

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::format::expert_stack::ExpertStack;
use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::repacked::OUTPUTS;
use crate::cpu::format::weight_format::WeightFormat;
use crate::cpu::matmul::epilogue::{EpilogueContext, GRAIN, PartialResults};
use crate::cpu::matmul::int8::quantized_rows::{encoded_rows, keep};
use crate::cpu::matmul::linear::whole_rows;
use crate::cpu::matmul::output_partition::OutputPartition;
use crate::cpu::matmul::shared_weight_rows::{Activations, SharedWeightGemm, TOGETHER};
use crate::cpu::moe::route::{MOST, Router};
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::Epilogue;
use forge_ops::{ExpertsInner, ExpertsSum, Linear};
use std::marker::PhantomData;

/// Runs this thread's part, with weight format `F`.
pub fn experts_inner<F: WeightFormat>(call: &KernelArgs<'_>, shape: &ExpertsInner) {
    F::experts_inner(call, shape);
}

/// Runs this thread's part, with weight format `F`.
pub fn experts_sum<F: WeightFormat>(call: &KernelArgs<'_>, shape: &ExpertsSum) {
    F::experts_sum(call, shape);
}

pub(crate) fn inner<M: Matrix>(call: &KernelArgs<'_>, shape: &ExpertsInner) {
    call.level().run(ExpertsTask::<M> { call, shape: Shape::Inner(shape), format: PhantomData });
}

pub(crate) fn sum<M: Matrix>(call: &KernelArgs<'_>, shape: &ExpertsSum) {
    call.level().run(ExpertsTask::<M> { call, shape: Shape::Sum(shape), format: PhantomData });
}

/// Maximum number of repacked outputs per claim, if partitions are no larger; see
/// [`crate::cpu::matmul::int8::repacked_gemv`].
const MAX_REPACKED_OUTPUTS: usize = 1024;

/// Routing pairs grouped by expert. A pair is `row * chosen + index` of a row and an index among its experts.
struct Pairs<'a> {
    routes: &'a [u32],
    chosen: usize,
    /// Each used expert, and the start of its pairs.
    experts: Vec<(usize, usize)>,
    pairs: Vec<usize>,
}

impl<'a> Pairs<'a> {
    fn new(routes: &'a [u32], chosen: usize, experts: usize) -> Pairs<'a> {
        let of = |pair: usize| routes[pair / chosen * 2 * chosen + pair % chosen] as usize;
        let mut pairs: Vec<usize> = (0..routes.len() / 2).collect();
        pairs.sort_by_key(|pair| (of(*pair), *pair));
        let mut begin: Vec<(usize, usize)> = Vec::new();
        for (index, pair) in pairs.iter().enumerate() {
            let expert = of(*pair);
            assert!(expert < experts, "a row is routed to expert {expert}, but there are {experts} experts");
            if begin.last().is_none_or(|last| last.0 != expert) {
                begin.push((expert, index));
            }
        }
        Pairs { routes, chosen, experts: begin, pairs }
    }

    /// The expert at `index` among the used ones, and its pairs.
    fn of(&self, index: usize) -> (usize, &[usize]) {
        let (expert, first) = self.experts[index];
        let end = self.experts.get(index + 1).map_or(self.pairs.len(), |next| next.1);
        (expert, &self.pairs[first..end])
    }

    /// Adds the output of a pair's expert to the row's sums, times the routing weight.
    fn add(&self, pair: usize, values: &[f32], sums: &mut [f32]) {
        let row = pair / self.chosen;
        let weight = f32::from_bits(self.routes[row * 2 * self.chosen + self.chosen + pair % self.chosen]);
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * *value);
    }
}

/// Either of the two kernels. They differ in the unit of work and in the use of the products.
struct ExpertsTask<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: Shape<'a>,
    format: PhantomData<M>,
}

#[derive(Clone, Copy, Debug)]
enum Shape<'a> {
    /// Some outputs of one expert. A pair's input is its row of x, and each pair has its own results.
    Inner(&'a ExpertsInner),
    /// Some outputs of all experts. Each pair has its own input, and results are summed per row.
    Sum(&'a ExpertsSum),
}

impl<M: Matrix> Task for ExpertsTask<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let ExpertsTask { call, shape, .. } = self;
        let rows = call.scalar(0);
        let (format, experts, chosen, outputs, inputs, record) = match shape {
            Shape::Inner(of) => (of.format, of.experts, of.chosen, of.outputs, of.inputs, of.record),
            Shape::Sum(of) => (of.format, of.experts, of.chosen, of.outputs, of.inputs, of.record),
        };
        let (norm, has_bias, epilogue, route) = match shape {
            Shape::Inner(of) => (of.norm, of.bias, Epilogue::Gate(of.gating), of.route.as_ref()),
            Shape::Sum(of) => (None, of.bias, of.epilogue, None),
        };
        let single_row_only =
            norm.is_some() || route.is_some() || matches!(epilogue, Epilogue::AddSquares(_));
        assert!(rows == 1 || !single_row_only, "{shape:?} supports one row, but there are {rows}");
        let mut own = [0_u32; 2 * MOST.1];
        let routes = match route {
            None => call.input::<u32>("routes", rows * 2 * chosen),
            Some(route) => {
                Router::new(call, route, rows).choose(0, &mut own[..2 * chosen]);
                &own[..2 * chosen]
            }
        };
        let pairs = Pairs::new(routes, chosen, experts);
        let numbers: Vec<usize> = pairs.experts.iter().map(|(expert, _)| *expert).collect();
        let ready = call.ready_experts(&numbers);
        let places = &ready.places[..];
        if places.is_empty() {
            return;
        }
        let is_sum = matches!(shape, Shape::Sum(_));
        // If not all experts are ready at once, their results are kept per pair, and summed in order in the
        // last phase.
        let is_partial = is_sum && places.len() < numbers.len();
        let each = is_partial.then(|| call.workspace::<f32>(rows * chosen * outputs));
        // Numbers of rows of x and of results.
        let (of_x, of_y) = if is_sum { (rows * chosen, rows) } else { (rows, rows * chosen) };
        let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let padded = if inputs == blocks * BLOCK { 0 } else { of_x * blocks * BLOCK };
        let bias = if has_bias { call.input::<f32>("bias", experts * outputs) } else { &[] };
        let chooses = false;
        let linear = Linear {
            format,
            outputs,
            inputs,
            norm,
            own_norm: None,
            bias: false,
            unary: None,
            epilogue,
            chooses,
        };
        let finish = EpilogueContext::new::<S>(call, &linear, of_y);
        let is_encoded = S::HAS_INT8 && M::BITS > 0 && !call.exact();
        let is_expert_repacked =
            |place: &usize| is_encoded && call.is_expert_repacked("weight_codes", numbers[*place]);
        let batches = if is_sum { 1 } else { places.len() };
        let OutputPartition { partitions, size, piece } =
            match (places.iter().any(is_expert_repacked), is_sum) {
                (true, _) => {
                    let wanted =
                        (batches * outputs / (call.workers() * 2)).clamp(OUTPUTS, MAX_REPACKED_OUTPUTS);
                    OutputPartition::of_strips(&finish, outputs, call.workers(), wanted)
                }
                (false, true) => OutputPartition::of_rows(&finish, outputs, call.workers()),
                (false, false) => {
                    OutputPartition { partitions: outputs.div_ceil(GRAIN), size: GRAIN, piece: GRAIN }
                }
            };
        let mut scratch = Scratch::take(padded + TOGETHER * piece + if is_sum { rows * piece } else { 0 });
        let (padded_x, scratch) = scratch.split_at_mut(padded);
        let (values, sums) = scratch.split_at_mut(TOGETHER * piece);
        let x = whole_rows(call.input("x", of_x * inputs), inputs, blocks * BLOCK, padded_x);
        let coded = if is_encoded { encoded_rows::<S>(x, blocks * BLOCK) } else { Vec::new() };
        let x = match (is_encoded, call.is_decode()) {
            (true, _) => Activations::Codes(&coded),
            (false, true) => Activations::Stored(x),
            (false, false) => Activations::Batch(x),
        };
        let stack = ExpertStack::<M>::find(call, (experts, record), outputs, blocks);
        let pieces = (partitions * size).div_ceil(piece);
        for item in call.claim(batches * pieces, 1).flatten() {
            // Every thread computes the routes; the thread with item 0 writes them.
            if item == 0 && route.is_some() {
                // SAFETY: item 0 belongs to this thread.
                unsafe { call.output::<u32>("routes", routes.len()).part(0..routes.len()) }
                    .copy_from_slice(routes);
            }
            let batch = item / pieces;
            let with = if is_sum { places } else { &places[batch..batch + 1] };
            // The last partitions may have no outputs.
            let first = item % pieces * piece;
            let count = outputs.min(first + piece).saturating_sub(first);
            let of_pair = |pair: usize| pair * outputs + first..pair * outputs + first + count;
            sums.fill(0.0);
            for place in with.iter().filter(|_| count > 0) {
                let (expert, of_expert) = pairs.of(*place);
                let matrix = stack.of(call.matrix_of(expert));
                let products = SharedWeightGemm {
                    matrix,
                    is_repacked: is_expert_repacked(place),
                    blocks,
                    x,
                    level: call.level(),
                };
                let bias = bias.get(expert * outputs + first..).unwrap_or_default();
                for some in of_expert.chunks(TOGETHER) {
                    let mut own = [0; TOGETHER];
                    for (own, pair) in own.iter_mut().zip(some) {
                        *own = if is_sum { *pair } else { pair / chosen };
                    }
                    let own = &own[..some.len()];
                    // SAFETY: `find` checked that the matrices are whole, and x has as many blocks a row.
                    unsafe { products.of::<S>((first, count), own, values, piece) };
                    for (pair, values) in some.iter().zip(values.chunks_exact_mut(piece)) {
                        let values = &mut values[..count];
                        if is_sum {
                            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
                            match each {
                                None => pairs.add(*pair, values, &mut sums[pair / chosen * piece..]),
                                // SAFETY: these outputs belong to this thread.
                                Some(each) => unsafe { each.part(of_pair(*pair)) }.copy_from_slice(values),
                            }
                        } else {
                            let nothing = &mut { PartialResults::NOTHING };
                            // SAFETY: these outputs of this pair belong to this thread.
                            unsafe { finish.biased(*pair, (first, bias), values, nothing) };
                        }
                    }
                }
            }
            if !is_sum || !ready.is_last {
                continue;
            }
            if let Some(each) = each.filter(|_| count > 0) {
                for pair in &pairs.pairs {
                    // SAFETY: these outputs belong to this thread; other threads wrote them in earlier
                    // phases.
                    let values = unsafe { each.part(of_pair(*pair)) };
                    pairs.add(*pair, values, &mut sums[pair / chosen * piece..]);
                }
            }
            for partition in first / size..partitions.min((first + piece) / size) {
                let mut partials = PartialResults::NOTHING;
                let of_partition = (partition * size).min(outputs)..((partition + 1) * size).min(outputs);
                for (row, sums) in
                    sums.chunks_exact_mut(piece).enumerate().filter(|_| !of_partition.is_empty())
                {
                    let sums = &mut sums[of_partition.start - first..of_partition.end - first];
                    // SAFETY: these outputs belong to this thread.
                    unsafe { finish.outputs(row, of_partition.start, sums, &mut partials) };
                }
                // SAFETY: this partition belongs to this thread.
                unsafe { finish.write_partials(partition, partials) };
            }
        }
        keep(coded);
    }
}
