//! What experts make of rows: up to their last projections, and the weighted sum of these.
//!
//! Rows that have an expert in common are taken together, expert by expert, so that its weights are loaded once for all of
//! them. In a pass of several rows each is computed alike to the bit, whoever its neighbours are: products are summed in one
//! order, and a row's experts in that of their numbers.

use super::call::Call;
use super::finish::{DeferredNorm, Epilogue, Finish, GRAIN, OfShare};
use super::formats::{BLOCK, Matrix};
use super::level::Task;
use super::project::{Project, sliced_products, whole_rows};
use super::route::{MOST, Route, Router};
use super::scratch::Scratch;
use super::simd::Simd;
use super::stored::Stored;
use super::tile::stored_products;
use std::marker::PhantomData;

/// What the compiler decided. Scalars: rows. Buffers: weight planes, routes, x, [bias,] [squares,] y. With a route:
/// logits, [correction,] [scale,] and routes are written.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsInner {
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// Rows of an expert's matrix, which alternate gate, up.
    pub outputs: usize,
    /// Columns of it, and the width of x.
    pub inputs: usize,
    /// The deferred norm of x, if there is one.
    pub norm: Option<DeferredNorm>,
    /// Whether each expert has a bias: `[experts, outputs]`.
    pub bias: bool,
    /// What becomes of a gate and its up.
    pub ending: Epilogue,
    /// How experts are chosen, if that is left to this kernel. For one row.
    pub route: Option<Route>,
}

/// What the compiler decided. Scalars: rows. Buffers: weight planes, routes, x, [bias,] y[, gain, gained][, squares_out].
#[derive(Clone, Copy, Debug)]
pub struct ExpertsSum {
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// Rows of an expert's matrix, and the width of y.
    pub outputs: usize,
    /// Columns of it.
    pub inputs: usize,
    /// Whether each expert has a bias: `[experts, outputs]`.
    pub bias: bool,
    /// What becomes of the sum.
    pub ending: Epilogue,
}

/// Runs this thread's share, of weights stored as `F`.
pub fn experts_inner<F: Stored>(call: &Call<'_>, shape: &ExpertsInner) {
    F::experts_inner(call, shape);
}

/// Runs this thread's share, of weights stored as `F`.
pub fn experts_sum<F: Stored>(call: &Call<'_>, shape: &ExpertsSum) {
    F::experts_sum(call, shape);
}

pub(super) fn inner<M: Matrix>(call: &Call<'_>, shape: &ExpertsInner) {
    call.level().run(Of::<M> { call, shape: Shape::Inner(shape), format: PhantomData });
}

pub(super) fn sum<M: Matrix>(call: &Call<'_>, shape: &ExpertsSum) {
    call.level().run(Of::<M> { call, shape: Shape::Sum(shape), format: PhantomData });
}

/// Rows of x that share an expert's weights at once.
pub(super) const TOGETHER: usize = 4;

/// Who has which expert: pairs of a row and a place among its experts, as `row * chosen + place`, expert by expert.
struct Pairs<'a> {
    routes: &'a [u32],
    chosen: usize,
    /// Experts that a row has, and where their pairs begin.
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
            assert!(expert < experts, "a row is routed to expert {expert} of {experts}");
            if begin.last().is_none_or(|last| last.0 != expert) {
                begin.push((expert, index));
            }
        }
        Pairs { routes, chosen, experts: begin, pairs }
    }

    /// The n-th expert that any row has, and its pairs.
    fn of(&self, index: usize) -> (usize, &[usize]) {
        let (expert, first) = self.experts[index];
        let end = self.experts.get(index + 1).map_or(self.pairs.len(), |next| next.1);
        (expert, &self.pairs[first..end])
    }

    /// The weight that a pair's expert has for its row.
    fn weight(&self, pair: usize) -> f32 {
        let row = pair / self.chosen;
        f32::from_bits(self.routes[row * 2 * self.chosen + self.chosen + pair % self.chosen])
    }
}

/// The matrices of all experts, and rows that they are multiplied with.
pub(super) struct Products<'a, M> {
    pub(super) matrix: M,
    /// Of a row of the matrices, and of x.
    pub(super) blocks: usize,
    /// Rows of whole blocks.
    pub(super) x: &'a [f32],
    /// Whether the pass has one row, which is summed as it is fastest.
    pub(super) alone: bool,
}

impl<M: Matrix> Products<'_, M> {
    /// The products of neighbouring rows of the matrices with some rows of x, one to [`TOGETHER`].
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd>(
        &self,
        first: usize,
        count: usize,
        rows: &[usize],
        values: &mut [[f32; GRAIN]; TOGETHER],
    ) {
        let x = |row: usize| self.x[row * self.blocks * BLOCK..].as_ptr();
        let mut output = 0;
        // SAFETY: the caller's promise.
        unsafe {
            // One row meets those of the matrix one after the other, which is one stream from memory.
            if rows.len() > 1 {
                // Fewer than are taken together repeat the last.
                let x: [_; TOGETHER] = std::array::from_fn(|i| x(rows[i.min(rows.len() - 1)]));
                while output + 2 <= count {
                    let products = self.some::<S, 2, TOGETHER>(first + output, x);
                    for (i, products) in products.iter().enumerate() {
                        for (values, product) in values.iter_mut().zip(products) {
                            values[output + i] = *product;
                        }
                    }
                    output += 2;
                }
            }
            for output in output..count {
                for (values, row) in values.iter_mut().zip(rows) {
                    values[output] = self.some::<S, 1, 1>(first + output, [x(*row)])[0][0];
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn some<S: Simd, const W: usize, const X: usize>(
        &self,
        first: usize,
        x: [*const f32; X],
    ) -> [[f32; X]; W] {
        let first: [usize; W] = std::array::from_fn(|i| (first + i) * self.blocks);
        // SAFETY: the caller's promise.
        unsafe {
            match X {
                1 if self.alone => stored_products::<S, M, W, X>(self.matrix, first, x, self.blocks),
                _ => sliced_products::<S, M, W, X>(self.matrix, first, x, self.blocks),
            }
        }
    }
}

/// Either kernel: they differ in whose outputs a thread takes at once, and in what it does with products.
struct Of<'a, M> {
    call: &'a Call<'a>,
    shape: Shape<'a>,
    format: PhantomData<M>,
}

#[derive(Clone, Copy, Debug)]
enum Shape<'a> {
    /// Some outputs of one expert: each pair has a row of x that is its row's, and results of its own.
    Inner(&'a ExpertsInner),
    /// Some outputs of all experts: each pair has an x of its own, and results are summed for its row.
    Sum(&'a ExpertsSum),
}

impl<M: Matrix> Task for Of<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Of { call, shape, .. } = self;
        let rows = call.scalar(0);
        let (experts, chosen, outputs, inputs, route) = match shape {
            Shape::Inner(of) => (of.experts, of.chosen, of.outputs, of.inputs, of.route.as_ref()),
            Shape::Sum(of) => (of.experts, of.chosen, of.outputs, of.inputs, None),
        };
        let (norm, has_bias, epilogue) = match shape {
            Shape::Inner(of) => (of.norm, of.bias, of.ending),
            Shape::Sum(of) => (None, of.bias, of.ending),
        };
        let of_one = norm.is_some() || route.is_some() || matches!(epilogue, Epilogue::AddSquares(_));
        assert!(rows == 1 || !of_one, "{shape:?} is made for one row, and there are {rows}");
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
        let at_hand = call.at_hand(&numbers);
        if at_hand.is_empty() {
            return;
        }
        let is_sum = matches!(shape, Shape::Sum(_));
        // Sums of experts that were at hand in earlier rounds; they are finished with the last.
        let is_last = at_hand.end == numbers.len();
        let parts = (is_sum && at_hand != (0..numbers.len())).then(|| call.room::<f32>(rows * outputs));
        // Rows of x, and of results.
        let (of_x, of_y) = if is_sum { (rows * chosen, rows) } else { (rows, rows * chosen) };
        let blocks = inputs.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let padded = if inputs == blocks * BLOCK { 0 } else { of_x * blocks * BLOCK };
        let mut scratch = Scratch::take(padded + if is_sum { rows * GRAIN } else { 0 });
        let (room, sums) = scratch.split_at_mut(padded);
        let x = whole_rows(call.input("x", of_x * inputs), inputs, blocks * BLOCK, room);
        let bias = if has_bias { call.input::<f32>("bias", experts * outputs) } else { &[] };
        let matrix = M::find(call, "weight", call.matrices(experts) * outputs, blocks);
        let products = Products { matrix, blocks, x, alone: call.alone() };
        let project = Project {
            outputs,
            inputs,
            norm,
            own_norm: None,
            bias: false,
            each: None,
            epilogue,
            chooses: false,
        };
        let finish = Finish::new::<S>(call, &project, of_y);
        let (shares, size, at_once) = match is_sum {
            true => finish.shares(outputs, call.workers()),
            false => (outputs.div_ceil(GRAIN), GRAIN, 1),
        };
        let turns = if is_sum { 1 } else { at_hand.len() };
        let mut values = [[0.0_f32; GRAIN]; TOGETHER];
        for item in call.share(turns * shares, at_once).flatten() {
            // Everybody knows who was chosen; one tells everyone after this.
            if item == 0 && route.is_some() {
                // SAFETY: this thread alone has item 0.
                unsafe { call.output::<u32>("routes", routes.len()).part(0..routes.len()) }
                    .copy_from_slice(routes);
            }
            let (turn, share) = (item / shares, item % shares);
            let turn = at_hand.start + turn;
            let with = if is_sum { at_hand.clone() } else { turn..turn + 1 };
            let mut left = OfShare::NOTHING;
            let end = outputs.min((share + 1) * size);
            for first in (share * size..end).step_by(GRAIN) {
                let count = (end - first).min(GRAIN);
                sums.fill(0.0);
                if let Some(parts) = parts.filter(|_| at_hand.start > 0) {
                    for (row, sums) in sums.chunks_exact_mut(GRAIN).enumerate() {
                        let begin = row * outputs + first;
                        // SAFETY: this thread alone has these outputs.
                        sums[..count].copy_from_slice(unsafe { parts.part(begin..begin + count) });
                    }
                }
                for (expert, of_expert) in with.clone().map(|index| pairs.of(index)) {
                    let bias = bias.get(expert * outputs + first..).unwrap_or_default();
                    let first_row = call.matrix_of(expert) * outputs + first;
                    for some in of_expert.chunks(TOGETHER) {
                        let mut own = [0; TOGETHER];
                        for (own, pair) in own.iter_mut().zip(some) {
                            *own = if is_sum { *pair } else { pair / chosen };
                        }
                        let own = &own[..some.len()];
                        // SAFETY: `find` saw that the matrices are whole, and x has `blocks * 32` columns a row.
                        unsafe { products.of::<S>(first_row, count, own, &mut values) };
                        for (pair, values) in some.iter().zip(&mut values) {
                            let values = &mut values[..count];
                            if is_sum {
                                let (weight, row) = (pairs.weight(*pair), pair / chosen);
                                let sums = &mut sums[row * GRAIN..][..count];
                                values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
                                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * *value);
                            } else {
                                // SAFETY: this thread alone has these outputs of this pair.
                                unsafe { finish.biased(*pair, (first, bias), values, &mut left) };
                            }
                        }
                    }
                }
                for (row, sums) in sums.chunks_exact_mut(GRAIN).enumerate() {
                    let (begin, sums) = (row * outputs + first, &mut sums[..count]);
                    // SAFETY: this thread alone has these outputs.
                    match parts.filter(|_| !is_last) {
                        Some(parts) => unsafe { parts.part(begin..begin + count) }.copy_from_slice(sums),
                        None => unsafe { finish.outputs(row, first, sums, &mut left) },
                    }
                }
            }
            if is_last || !is_sum {
                // SAFETY: this thread alone has this share.
                unsafe { finish.leave(share, left) };
            }
        }
    }
}
