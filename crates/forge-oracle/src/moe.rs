//! Mixture of experts: routing, grouping, and the products of experts.

use crate::compare::{Expected, scaled, sum, term, to_f64};
use crate::elementwise::{gated, sigmoid};
use crate::matrix::Matrix;
use crate::random::Random;
use forge_ops::{
    Activation, Epilogue, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Format, Gating, Groups,
    Route, Scores,
};

/// Routing to three of seven experts by softmax.
pub const PLAIN: Route = Route {
    experts: 7,
    chosen: 3,
    scores: Scores::Softmax,
    correction: false,
    groups: None,
    renormalize: true,
    factor: 1.0,
    scale: false,
    shared: 0,
    gated: false,
};

/// Experts and weights of a row by the definition: NaN first, and the lowest index of equal scores. Shared
/// experts come last.
pub fn routed(route: &Route, logits: &[f32], correction: &[f32], scale: &[f32]) -> Vec<(usize, f64)> {
    let (logits, gate) = logits.split_at(route.experts);
    let wide = to_f64(logits);
    let largest = wide.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = wide.iter().map(|x| (x - largest).exp()).sum();
    let score = |x: f64| match route.scores {
        Scores::Softmax => (x - largest).exp() / total,
        Scores::Sigmoid => sigmoid(x),
    };
    let rank = |e: usize| match (route.correction, route.groups) {
        (false, None) => wide[e],
        (true, _) => score(wide[e]) + f64::from(correction[e]),
        (false, Some(_)) => score(wide[e]),
    };
    let best = |of: &dyn Fn(usize) -> f64, mut places: Vec<usize>, count: usize| {
        // The two zeros are equal.
        let key = |place: usize| if of(place).is_nan() { f64::INFINITY } else { of(place) + 0.0 };
        places.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
        places.truncate(count);
        places
    };
    let places = match route.groups {
        None => (0..route.experts).collect(),
        Some(Groups { count, kept, best: counted }) => {
            let size = route.experts / count;
            let of = |group: usize| (group * size..(group + 1) * size).collect::<Vec<_>>();
            let score = |group: usize| best(&rank, of(group), counted).into_iter().map(rank).sum::<f64>();
            best(&score, (0..count).collect(), kept).into_iter().flat_map(of).collect()
        }
    };
    let chosen = best(&rank, places, route.chosen);
    let sum: f64 = if route.renormalize { chosen.iter().map(|e| score(wide[*e])).sum() } else { 1.0 };
    let scale = |e: usize| if route.scale { f64::from(scale[e]) } else { 1.0 };
    let of_shared = gate.first().map_or(1.0, |logit| sigmoid(f64::from(*logit)));
    let shared = (route.experts..).take(route.shared).map(|e| (e, of_shared));
    let weight = |e| (e, score(wide[e]) / sum * f64::from(route.factor) * scale(e));
    chosen.into_iter().map(weight).chain(shared).collect()
}

/// Ways of routing.
pub fn routings() -> Vec<Route> {
    let sigmoid = Route { scores: Scores::Sigmoid, ..PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    vec![
        PLAIN,
        Route { chosen: 7, renormalize: false, factor: 2.5, scale: true, ..PLAIN },
        Route { correction: true, ..PLAIN },
        Route { experts: 512, chosen: 16, correction: true, ..sigmoid },
        Route { experts: 100, chosen: 8, renormalize: false, ..sigmoid },
        Route { experts: 96, chosen: 6, groups: groups(8, 4, 2), correction: true, ..sigmoid },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), ..PLAIN },
        // Groups with many lanes each, and groups with one lane each.
        Route { experts: 70, chosen: 9, groups: groups(2, 1, 2), correction: true, ..PLAIN },
        Route { experts: 64, chosen: 5, groups: groups(32, 7, 2), ..sigmoid },
        Route { experts: 40, chosen: 5, groups: groups(20, 5, 1), correction: true, ..sigmoid },
        // With shared experts.
        Route { shared: 1, ..PLAIN },
        Route { chosen: 7, shared: 2, gated: true, scale: true, ..PLAIN },
        Route { experts: 60, chosen: 4, shared: 4, gated: true, renormalize: false, ..PLAIN },
        Route { experts: 96, chosen: 6, groups: groups(8, 4, 2), shared: 1, factor: 2.5, ..sigmoid },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), shared: 2, gated: true, ..sigmoid },
    ]
}

/// Inputs of a router: rows of logits, and the corrections and scales of its experts.
pub struct RouterInputs {
    /// Rows of logits; the last row has a NaN.
    pub logits: Vec<f32>,
    /// Added to scores.
    pub correction: Vec<f32>,
    /// Multiply weights.
    pub scale: Vec<f32>,
}

/// Rows of [`RouterInputs`].
pub const ROUTED_ROWS: usize = 5;

/// The logit of the last row that is NaN.
const NAN_EXPERT: usize = 2;

impl RouterInputs {
    /// Random rows, one of equal scores, one with few distinct values, and one with NaN.
    pub fn random(random: &mut Random, route: &Route) -> RouterInputs {
        let of_row = route.logits();
        let mut logits: Vec<f32> = random.floats(ROUTED_ROWS * of_row).iter().map(|x| 3.0 * x).collect();
        logits[of_row..2 * of_row].fill(0.5);
        logits[2 * of_row..3 * of_row].iter_mut().for_each(|x| *x = x.round());
        logits[4 * of_row + NAN_EXPERT] = f32::NAN;
        RouterInputs { logits, correction: random.floats(route.experts), scale: random.floats(route.experts) }
    }

    /// Checks the `routes` of a router: the same experts, and weights that are off by 2e-6 at most. Of the row
    /// with NaN it is only expected that experts are distinct and that the NaN shows.
    ///
    /// # Panics
    ///
    /// If they differ.
    pub fn check(&self, route: &Route, routes: &[u32]) {
        assert_eq!(routes.len(), ROUTED_ROWS * route.route_words(), "{route:?}");
        let rows = routes.chunks_exact(route.route_words()).zip(self.logits.chunks_exact(route.logits()));
        for (row, (words, logits)) in rows.enumerate() {
            let (experts, bits) = words.split_at(route.routes());
            let experts: Vec<usize> = experts.iter().map(|expert| *expert as usize).collect();
            let weights: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            if row == ROUTED_ROWS - 1 {
                let (chosen, shared) = experts.split_at(route.chosen);
                let mut distinct = chosen.to_vec();
                distinct.sort_unstable();
                distinct.dedup();
                let all_are = distinct.len() == route.chosen && distinct.iter().all(|e| *e < route.experts);
                assert!(all_are, "{route:?}: {experts:?}");
                assert!(shared.iter().copied().eq(route.experts..route.experts + route.shared));
                assert!(weights.iter().any(|weight| weight.is_nan()), "{route:?}");
                if route.groups.is_none() && !route.correction {
                    assert_eq!(experts[0], NAN_EXPERT, "{route:?}");
                }
                continue;
            }
            let expected = routed(route, logits, &self.correction, &self.scale);
            let places: Vec<usize> = expected.iter().map(|(expert, _)| *expert).collect();
            assert_eq!(experts, places, "{route:?} row {row}");
            for (weight, (_, expected)) in weights.iter().zip(expected) {
                let error = (f64::from(*weight) - expected).abs();
                assert!(error <= 2e-6 * expected.abs().max(1e-3), "{route:?}: {weight} for {expected}");
            }
        }
    }
}

/// The experts of each row with their weights.
#[derive(Clone)]
pub struct Routes(pub Vec<Vec<(usize, f32)>>);

impl Routes {
    /// Distinct random experts.
    pub fn random(random: &mut Random, rows: usize, experts: usize, chosen: usize) -> Routes {
        let row = |_| {
            let mut all: Vec<usize> = (0..experts).collect();
            for place in 0..chosen {
                all.swap(place, place + random.below(experts - place));
            }
            let weights = random.floats(chosen);
            all.into_iter().zip(weights).collect()
        };
        Routes((0..rows).map(row).collect())
    }

    /// Four of five rows have the first experts.
    pub fn skewed(random: &mut Random, rows: usize, experts: usize, chosen: usize) -> Routes {
        let row = |row: usize| {
            let first = if row.is_multiple_of(5) { row } else { 0 };
            let expert = |place| (first + chosen - 1 - place) % experts;
            (0..chosen).map(|place| (expert(place), random.number())).collect()
        };
        Routes((0..rows).map(row).collect())
    }

    /// The buffer `routes`.
    pub fn words(&self) -> Vec<u32> {
        let row = |row: &Vec<(usize, f32)>| {
            let experts = row.iter().map(|(expert, _)| *expert as u32);
            experts.chain(row.iter().map(|(_, weight)| weight.to_bits())).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(row).collect()
    }

    /// The buffers `pairs` and `tiles` of [`ExpertsGroup`].
    pub fn grouped(&self, op: &ExpertsGroup) -> [Vec<u32>; 2] {
        let (mut pairs, mut tiles) = (Vec::new(), Vec::new());
        for expert in 0..op.experts {
            let all = self.0.iter().flatten().enumerate();
            let own: Vec<u32> =
                all.filter(|(_, route)| route.0 == expert).map(|(pair, _)| pair as u32).collect();
            for some in own.chunks(op.tile_rows) {
                tiles.extend([expert as u32, pairs.len() as u32, some.len() as u32]);
                pairs.extend(some);
            }
        }
        tiles.resize(3 * op.tiles(self.0.len()), 0);
        [pairs, tiles]
    }
}

/// The experts of a layer.
#[derive(Clone)]
pub struct ExpertLayer {
    /// Number of experts, shared experts included.
    pub experts: usize,
    /// Experts per row, shared experts included.
    pub chosen: usize,
    /// Width of a row.
    pub width: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// Gate and up matrices of all experts; their rows alternate.
    pub gate_up: Matrix,
    /// Down matrices of all experts.
    pub down: Matrix,
    /// The biases of both, if any.
    pub biases: Option<[Vec<f32>; 2]>,
    /// Gated activation.
    pub gating: Gating,
}

impl ExpertLayer {
    /// Random experts: number of experts, experts per row, width, and inner width.
    pub fn random(random: &mut Random, format: Format, sizes: [usize; 4]) -> ExpertLayer {
        let [experts, chosen, width, inner] = sizes;
        let gate_up = Matrix::random(random, format, experts * 2 * inner, width, 1.0);
        let down = Matrix::random(random, format, experts * width, inner, 1.0);
        let gating = Gating::Plain(Activation::Silu);
        ExpertLayer { experts, chosen, width, inner, gate_up, down, biases: None, gating }
    }

    /// The layer with biases and clamped gates, about half of which are beyond the limit.
    pub fn biased(self, random: &mut Random) -> ExpertLayer {
        let biases = [self.gate_up.rows, self.down.rows].map(|count| random.floats(count));
        let gating = Gating::Clamped { limit: 1.25, sharpness: 1.75 };
        ExpertLayer { biases: Some(biases), gating, ..self }
    }

    /// Bytes from one expert's matrix to the next expert's, for both matrices, with other bytes in between.
    pub fn record(&self) -> usize {
        let planes = self.gate_up.planes.iter().chain(&self.down.planes);
        let most = planes.map(|plane| plane.len() / self.experts).max().unwrap_or(0);
        most.next_multiple_of(64) + 64
    }

    /// Gate and up projections of rows.
    pub fn inner_op(&self) -> ExpertsInner {
        ExpertsInner {
            format: self.gate_up.format,
            experts: self.experts,
            chosen: self.chosen,
            shared: 0,
            outputs: 2 * self.inner,
            inputs: self.width,
            record: self.record(),
            norm: None,
            bias: self.biases.is_some(),
            gating: self.gating,
            route: None,
        }
    }

    /// Down projections, weighted and summed.
    pub fn sum_op(&self, epilogue: Epilogue) -> ExpertsSum {
        ExpertsSum {
            format: self.down.format,
            experts: self.experts,
            chosen: self.chosen,
            shared: 0,
            outputs: self.width,
            inputs: self.inner,
            record: self.record(),
            bias: self.biases.is_some(),
            epilogue,
        }
    }

    /// Products of pairs with the first or the second matrix.
    pub fn tiles_op(&self, matrix: usize, tile_rows: usize) -> ExpertsTiles {
        let (outputs, inputs) = [(2 * self.inner, self.width), (self.width, self.inner)][matrix];
        ExpertsTiles {
            format: self.matrix(matrix).format,
            experts: self.experts,
            chosen: self.chosen,
            shared: 0,
            outputs,
            inputs,
            record: self.record(),
            bias: self.biases.is_some(),
            gating: [Some(self.gating), None][matrix],
            tile_rows,
        }
    }

    /// Grouping of pairs.
    pub fn group_op(&self, tile_rows: usize) -> ExpertsGroup {
        ExpertsGroup { experts: self.experts, chosen: self.chosen, tile_rows }
    }

    /// The first or the second matrix.
    pub fn matrix(&self, matrix: usize) -> &Matrix {
        [&self.gate_up, &self.down][matrix]
    }

    /// A row of a matrix of all experts times x, with its bias.
    fn product(&self, matrix: usize, row: usize, x: &[Expected], factor: f64) -> Expected {
        let product = scaled(self.matrix(matrix).row_product(row, x), factor);
        self.biases.as_ref().map_or(product, |biases| sum(product, term(biases[matrix][row])))
    }

    /// The gated activations of every pair, `[row, chosen, inner]`. Rows are first divided by their norms, whose
    /// inverses are `factors`, if there are any.
    pub fn inner(&self, x: &[f32], routes: &Routes, factors: &[f64]) -> Vec<Expected> {
        let mut y = Vec::new();
        for (row, (x, experts)) in x.chunks_exact(self.width).zip(&routes.0).enumerate() {
            let x: Vec<Expected> = x.iter().map(|x| term(*x)).collect();
            let factor = factors.get(row).copied().unwrap_or(1.0);
            let part = |at: usize| self.product(0, at, &x, factor);
            for (expert, _) in experts {
                let first = expert * 2 * self.inner;
                let one = |i: usize| gated(self.gating, part(first + 2 * i), part(first + 2 * i + 1));
                y.extend((0..self.inner).map(one));
            }
        }
        y
    }

    /// The weighted sum of the down projections of each row's experts, given what every pair has.
    pub fn sum(&self, given: &[Expected], routes: &Routes) -> Vec<Expected> {
        let mut given = given.chunks_exact(self.inner);
        let mut y = Vec::new();
        for experts in &routes.0 {
            let mut sums = vec![(0.0, 0.0); self.width];
            for (&(expert, weight), x) in experts.iter().zip(&mut given) {
                for (output, to) in sums.iter_mut().enumerate() {
                    let product = self.product(1, expert * self.width + output, x, 1.0);
                    *to = sum(*to, scaled(product, f64::from(weight)));
                }
            }
            y.extend(sums);
        }
        y
    }
}

/// A plane of all experts' matrices with this stride, in order or in reverse, and NaN in between.
pub fn in_records(plane: &[u8], experts: usize, record: usize, is_reversed: bool) -> Vec<u8> {
    let of_one = plane.len() / experts;
    let mut bytes = vec![0xff; (experts - 1) * record + of_one];
    for (index, to) in bytes.chunks_mut(record).enumerate() {
        let expert = if is_reversed { experts - 1 - index } else { index };
        to[..of_one].copy_from_slice(&plane[expert * of_one..][..of_one]);
    }
    bytes
}
