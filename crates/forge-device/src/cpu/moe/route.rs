//! MoE routing: the experts of each row and their weights. Scalars: rows. Buffers: logits[, correction][,
//! scale], routes.
//!
//! A row of routes lists the experts, best first and shared experts last, followed by the bits of their f32
//! weights.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::head::argmax::ordered;
use forge_ops::{Groups, Route, Scores};

/// Maximum number of routed experts, and maximum number of experts per token.
pub(crate) const MOST: (usize, usize) = (1024, 32);

/// Added to the sum that normalizes sigmoid scores, so that all-zero weights stay zero.
const SIGMOID_SUM_EPSILON: f32 = 1e-20;

/// Runs this thread's part.
pub fn route(call: &KernelArgs<'_>, shape: &Route) {
    let (rows, words) = (call.scalar(0), shape.route_words());
    let router = Router::new(call, shape, rows);
    let routes = call.output::<u32>("routes", rows * words);
    for row in call.claim(rows, 1).flatten() {
        // SAFETY: this row belongs to this thread.
        router.choose(row, unsafe { routes.part(row * words..(row + 1) * words) });
    }
}

/// The router's inputs.
pub(crate) struct Router<'a> {
    shape: &'a Route,
    logits: &'a [f32],
    correction: &'a [f32],
    scale: &'a [f32],
}

impl<'a> Router<'a> {
    pub(crate) fn new(call: &KernelArgs<'a>, shape: &'a Route, rows: usize) -> Router<'a> {
        let experts = shape.experts;
        assert!(experts <= MOST.0 && shape.route_words() <= 2 * MOST.1, "{shape:?} has too many experts");
        Router {
            shape,
            logits: call.input("logits", rows * shape.logits()),
            correction: if shape.correction { call.input("correction", experts) } else { &[] },
            scale: if shape.scale { call.input("scale", experts) } else { &[] },
        }
    }

    /// Writes the routes of a row.
    pub(crate) fn choose(&self, row: usize, routes: &mut [u32]) {
        let Route { experts, chosen, groups, shared, .. } = *self.shape;
        let of_row = self.shape.logits();
        let (logits, gate) = self.logits[row * of_row..(row + 1) * of_row].split_at(experts);
        let mut ranks = [0.0_f32; MOST.0];
        let mut keys = [0_u32; MOST.0];
        let (ranks, keys) = (&mut ranks[..experts], &mut keys[..experts]);
        self.rank(logits, ranks);
        for (key, rank) in keys.iter_mut().zip(&*ranks) {
            *key = rank_key(*rank);
        }
        if let Some(groups) = groups {
            mask_groups(groups, ranks, keys);
        }
        let (places, weights) = routes.split_at_mut(chosen + shared);
        for place in &mut places[..chosen] {
            *place = pop_max(keys) as u32;
        }
        self.weigh(logits, &places[..chosen], &mut weights[..chosen]);
        let of_shared = gate.first().map_or(1.0, |logit| sigmoid(*logit));
        places[chosen..].iter_mut().zip(experts..).for_each(|(place, expert)| *place = expert as u32);
        weights[chosen..].fill(of_shared.to_bits());
    }

    /// Ranking scores of experts. Without correction and groups these are the logits, which have the same
    /// order.
    fn rank(&self, logits: &[f32], ranks: &mut [f32]) {
        let Route { scores, correction, groups, .. } = *self.shape;
        match scores {
            _ if !correction && groups.is_none() => ranks.copy_from_slice(logits),
            Scores::Sigmoid => ranks.iter_mut().zip(logits).for_each(|(rank, logit)| *rank = sigmoid(*logit)),
            Scores::Softmax => {
                let (largest, total) = softmax(logits);
                ranks
                    .iter_mut()
                    .zip(logits)
                    .for_each(|(rank, logit)| *rank = (logit - largest).exp() / total);
            }
        }
        ranks.iter_mut().zip(self.correction).for_each(|(rank, correction)| *rank += correction);
    }

    /// Computes the weights of the chosen experts, as bits.
    fn weigh(&self, logits: &[f32], experts: &[u32], bits: &mut [u32]) {
        let Route { scores, renormalize, factor, .. } = *self.shape;
        let (largest, total) = softmax(logits);
        let score = |logit: f32| match scores {
            Scores::Sigmoid => sigmoid(logit),
            Scores::Softmax => (logit - largest).exp() / total,
        };
        let mut weights = [0.0_f32; MOST.1];
        let weights = &mut weights[..experts.len()];
        for (weight, expert) in weights.iter_mut().zip(experts) {
            *weight = score(logits[*expert as usize]);
        }
        let sum: f32 = weights.iter().sum();
        let divisor = match (renormalize, scores) {
            (false, _) => 1.0,
            (true, Scores::Softmax) => sum,
            (true, Scores::Sigmoid) => sum + SIGMOID_SUM_EPSILON,
        };
        for ((bits, weight), expert) in bits.iter_mut().zip(weights).zip(experts) {
            let scale = self.scale.get(*expert as usize).copied().unwrap_or(1.0);
            *bits = (*weight / divisor * factor * scale).to_bits();
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The maximum logit, and the sum of exp(logit - maximum).
fn softmax(logits: &[f32]) -> (f32, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (largest, logits.iter().map(|logit| (logit - largest).exp()).sum())
}

/// A sort key in the order of ranks: above 0, with NaN above all numbers.
fn rank_key(rank: f32) -> u32 {
    match ordered(rank) {
        0 => u32::MAX,
        key => key,
    }
}

/// Index of the largest key, the lowest index on ties. Its key is set to 0, below all others.
fn pop_max(keys: &mut [u32]) -> usize {
    let best = (0..keys.len()).rev().max_by_key(|place| keys[*place]).unwrap_or(0);
    keys[best] = 0;
    best
}

/// Excludes experts of groups that are not kept.
fn mask_groups(groups: Groups, ranks: &[f32], keys: &mut [u32]) {
    let Groups { count, kept, best } = groups;
    let size = keys.len() / count;
    let mut group_keys = [0_u32; MOST.1];
    for (group_key, (keys, ranks)) in
        group_keys[..count].iter_mut().zip(keys.chunks(size).zip(ranks.chunks(size)))
    {
        let mut own = [0_u32; MOST.0];
        own[..size].copy_from_slice(keys);
        let sum: f32 = (0..best).map(|_| ranks[pop_max(&mut own[..size])]).sum();
        *group_key = rank_key(sum);
    }
    let mut is_kept = [false; MOST.1];
    for _ in 0..kept {
        is_kept[pop_max(&mut group_keys[..count])] = true;
    }
    for (keys, is_kept) in keys.chunks_mut(size).zip(is_kept) {
        if !is_kept {
            keys.fill(0);
        }
    }
}
