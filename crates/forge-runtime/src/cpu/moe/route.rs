//! The experts of each row and their weights. Scalars: rows. Buffers: logits[, correction][, scale], routes.
//!
//! A row of routes is the experts, the best first and last those that every row has, and then the bits of their weights.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::head::argmax::ordered;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Experts that are chosen from, a logit each.
    pub experts: usize,
    /// Of these, a row's.
    pub chosen: usize,
    /// What scores are made of.
    pub scores: Scores,
    /// Whether a correction is added to scores for the choice.
    pub correction: bool,
    /// Groups of experts, of which some are out of the question.
    pub groups: Option<Groups>,
    /// Whether weights are divided by the sum of those chosen.
    pub shares: bool,
    /// Multiplies every weight.
    pub factor: f32,
    /// Whether each expert's weight is multiplied by its scale.
    pub scale: bool,
    /// Experts that every row has, numbered after those that are chosen from.
    pub shared: usize,
    /// Whether what they are weighed by is the sigmoid of one more logit, the last; else it is 1.
    pub gated: bool,
}

impl Route {
    /// Logits of a row.
    const fn logits(&self) -> usize {
        self.experts + self.gated as usize
    }

    /// Words of a row of routes.
    const fn words(&self) -> usize {
        2 * (self.chosen + self.shared)
    }
}

/// What the score of an expert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// exp(logit) over the sum of those of all experts.
    Softmax,
    /// 1 / (1 + exp(-logit))
    Sigmoid,
}

/// Equal groups of neighbouring experts. Only experts of the best groups can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many are kept.
    pub kept: usize,
    /// A group is worth the sum of its so many best ranks: 1 or 2.
    pub best: usize,
}

/// The most experts that there are, and the most that a row has.
pub(crate) const MOST: (usize, usize) = (1024, 32);

/// Added to the sum that sigmoids are divided by, so that weights that are all 0 stay so.
const NO_SUM: f32 = 1e-20;

/// Runs this thread's share.
pub fn route(call: &KernelArgs<'_>, shape: &Route) {
    let (rows, words) = (call.scalar(0), shape.words());
    let router = Router::new(call, shape, rows);
    let routes = call.output::<u32>("routes", rows * words);
    for row in call.share(rows, 1).flatten() {
        // SAFETY: this thread alone has this row.
        router.choose(row, unsafe { routes.part(row * words..(row + 1) * words) });
    }
}

/// Logits, and what else decides.
pub(crate) struct Router<'a> {
    shape: &'a Route,
    logits: &'a [f32],
    correction: &'a [f32],
    scale: &'a [f32],
}

impl<'a> Router<'a> {
    pub(crate) fn new(call: &KernelArgs<'a>, shape: &'a Route, rows: usize) -> Router<'a> {
        let experts = shape.experts;
        assert!(experts <= MOST.0 && shape.words() <= 2 * MOST.1, "{shape:?} has too many experts");
        Router {
            shape,
            logits: call.input("logits", rows * shape.logits()),
            correction: if shape.correction { call.input("correction", experts) } else { &[] },
            scale: if shape.scale { call.input("scale", experts) } else { &[] },
        }
    }

    /// The routes of a row.
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
            leave_out(groups, ranks, keys);
        }
        let (places, weights) = routes.split_at_mut(chosen + shared);
        for place in &mut places[..chosen] {
            *place = take_best(keys) as u32;
        }
        self.weigh(logits, &places[..chosen], &mut weights[..chosen]);
        let of_shared = gate.first().map_or(1.0, |logit| sigmoid(*logit));
        places[chosen..].iter_mut().zip(experts..).for_each(|(place, expert)| *place = expert as u32);
        weights[chosen..].fill(of_shared.to_bits());
    }

    /// What experts are chosen by. Where scores decide alone it is the logits, which order as they do.
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

    /// The bits of the weights of these experts.
    fn weigh(&self, logits: &[f32], experts: &[u32], bits: &mut [u32]) {
        let Route { scores, shares, factor, .. } = *self.shape;
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
        let divisor = match (shares, scores) {
            (false, _) => 1.0,
            (true, Scores::Softmax) => sum,
            (true, Scores::Sigmoid) => sum + NO_SUM,
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

/// The largest logit, and the sum of the exponentials of all less it.
fn softmax(logits: &[f32]) -> (f32, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (largest, logits.iter().map(|logit| (logit - largest).exp()).sum())
}

/// The rank of an expert as bits that compare like it: above 0, and above all numbers if it is none.
fn rank_key(rank: f32) -> u32 {
    match ordered(rank) {
        0 => u32::MAX,
        key => key,
    }
}

/// The place of the largest key, the lowest of equals. It is taken: its key becomes 0, which is below all that are left.
fn take_best(keys: &mut [u32]) -> usize {
    let best = (0..keys.len()).rev().max_by_key(|place| keys[*place]).unwrap_or(0);
    keys[best] = 0;
    best
}

/// Puts experts of groups that are not kept below all others.
fn leave_out(groups: Groups, ranks: &[f32], keys: &mut [u32]) {
    let Groups { count, kept, best } = groups;
    let size = keys.len() / count;
    let mut worths = [0_u32; MOST.1];
    for (worth, (keys, ranks)) in worths[..count].iter_mut().zip(keys.chunks(size).zip(ranks.chunks(size))) {
        let mut own = [0_u32; MOST.0];
        own[..size].copy_from_slice(keys);
        let sum: f32 = (0..best).map(|_| ranks[take_best(&mut own[..size])]).sum();
        *worth = rank_key(sum);
    }
    let mut is_kept = [false; MOST.1];
    for _ in 0..kept {
        is_kept[take_best(&mut worths[..count])] = true;
    }
    for (keys, is_kept) in keys.chunks_mut(size).zip(is_kept) {
        if !is_kept {
            keys.fill(0);
        }
    }
}
