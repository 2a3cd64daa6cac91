//! CPU kernels of experts, with every set of instructions that this machine has, against plain f64.

#[macro_use]
mod support;

use forge_runtime::cpu::level::Level;
use forge_runtime::cpu::{
    self, Activation, DeferredNorm, Epilogue, ExpertsGroup, ExpertsInner, ExpertsJoin, ExpertsSum,
    ExpertsTiles, Format, Groups, Route, Scores, Squares,
};
use support::{
    Argument, Matrix, NAN, Random, bytes_of, compare, each_level, kernel, matrix, numbers_of, run_kernel,
    silu, words_of,
};

const FORMATS: [Format; 6] = [
    Format::F32,
    Format::Q8_0,
    Format::Q4_0,
    Format::Q6K,
    Format::Affine { bits: 4, group: 64, bf16: true },
    Format::Mxfp4,
];

macro_rules! stored {
    ($format:expr, $function:ident, $call:expr, $shape:expr) => {
        match $format {
            Format::F32 => cpu::$function::<cpu::F32>($call, $shape),
            Format::Q8_0 => cpu::$function::<cpu::Q8_0>($call, $shape),
            Format::Q4_0 => cpu::$function::<cpu::Q4_0>($call, $shape),
            Format::Q6K => cpu::$function::<cpu::Q6K>($call, $shape),
            Format::Mxfp4 => cpu::$function::<cpu::Mxfp4>($call, $shape),
            _ => cpu::$function::<cpu::AffineBf16<4, 64>>($call, $shape),
        }
    };
}

fn inner(call: &cpu::Call<'_>, (format, shape): &(Format, ExpertsInner)) {
    stored!(format, experts_inner, call, shape);
}

fn sum(call: &cpu::Call<'_>, (format, shape): &(Format, ExpertsSum)) {
    stored!(format, experts_sum, call, shape);
}

fn tiles(call: &cpu::Call<'_>, (format, shape): &(Format, ExpertsTiles)) {
    stored!(format, experts_tiles, call, shape);
}

fn planes(matrix: &Matrix) -> (Vec<&'static str>, Vec<Argument>) {
    let names = match matrix.planes.len() {
        1 => vec!["weight_values"],
        _ => vec!["weight_codes", "weight_scales"],
    };
    (names, matrix.planes.iter().map(|plane| Argument::Bytes(plane.clone())).collect())
}

const PLAIN: Route = Route {
    experts: 7,
    chosen: 3,
    scores: Scores::Softmax,
    correction: false,
    groups: None,
    shares: true,
    factor: 1.0,
    scale: false,
};

/// Experts and weights by the definition; what is no number comes first, and of equals the lowest.
fn routed(route: &Route, logits: &[f32], correction: &[f32], scale: &[f32]) -> Vec<(usize, f64)> {
    let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let largest = wide.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = wide.iter().map(|x| (x - largest).exp()).sum();
    let score = |x: f64| match route.scores {
        Scores::Softmax => (x - largest).exp() / total,
        Scores::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    };
    let rank = |e: usize| match (route.correction, route.groups) {
        (false, None) => wide[e],
        (true, _) => score(wide[e]) + f64::from(correction[e]),
        (false, Some(_)) => score(wide[e]),
    };
    let best = |of: &dyn Fn(usize) -> f64, mut places: Vec<usize>, count: usize| {
        let key = |place: usize| if of(place).is_nan() { f64::INFINITY } else { of(place) };
        places.sort_by(|a, b| key(*b).total_cmp(&key(*a)).then(a.cmp(b)));
        places.truncate(count);
        places
    };
    let places = match route.groups {
        None => (0..route.experts).collect(),
        Some(Groups { count, kept, best: worth }) => {
            let size = route.experts / count;
            let of = |group: usize| (group * size..(group + 1) * size).collect::<Vec<_>>();
            let worth = |group: usize| best(&rank, of(group), worth).into_iter().map(rank).sum::<f64>();
            best(&worth, (0..count).collect(), kept).into_iter().flat_map(of).collect()
        }
    };
    let chosen = best(&rank, places, route.chosen);
    let sum: f64 = if route.shares { chosen.iter().map(|e| score(wide[*e])).sum() } else { 1.0 };
    let scale = |e: usize| if route.scale { f64::from(scale[e]) } else { 1.0 };
    chosen.into_iter().map(|e| (e, score(wide[e]) / sum * f64::from(route.factor) * scale(e))).collect()
}

#[test]
fn routes_are_those_of_the_definition_index_for_index() {
    kernel_under_test!(SHAPE, Route, cpu::route);
    let sigmoid = Route { scores: Scores::Sigmoid, ..PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let routes = [
        PLAIN,
        Route { chosen: 7, shares: false, factor: 2.5, scale: true, ..PLAIN },
        Route { correction: true, ..PLAIN },
        Route { experts: 512, chosen: 16, correction: true, ..sigmoid },
        Route { experts: 100, chosen: 8, shares: false, ..sigmoid },
        Route { experts: 96, chosen: 6, groups: groups(8, 4, 2), correction: true, ..sigmoid },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), ..PLAIN },
    ];
    let mut random = Random(3);
    for route in routes {
        let (rows, experts, chosen) = (5, route.experts, route.chosen);
        let mut logits: Vec<f32> = random.numbers(rows * experts).iter().map(|x| 3.0 * x).collect();
        // A row of equals, one of few values, and one with what is not a number.
        logits[experts..2 * experts].fill(0.5);
        logits[2 * experts..3 * experts].iter_mut().for_each(|x| *x = x.round());
        logits[4 * experts + 2] = f32::NAN;
        let (correction, scale) = (random.numbers(experts), random.numbers(experts));
        let mut buffers = vec!["logits"];
        let mut arguments = vec![Argument::Numbers(logits.clone())];
        for (there, name, numbers) in
            [(route.correction, "correction", &correction), (route.scale, "scale", &scale)]
        {
            if there {
                buffers.push(name);
                arguments.push(Argument::Numbers(numbers.clone()));
            }
        }
        buffers.push("routes");
        arguments.push(Argument::Output(NAN.repeat(rows * 2 * chosen)));
        *SHAPE.write().unwrap() = Some(route);
        let kernel = kernel("route", buffers, run);
        each_level(|level, threads| {
            let words = words_of(&run_kernel(kernel, &arguments, &[rows as u32], level, threads)[0]);
            for (row, words) in words.chunks_exact(2 * chosen).enumerate() {
                let (found, bits) = words.split_at(chosen);
                let weights: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
                if row == 4 {
                    let mut distinct = found.to_vec();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert!(distinct.len() == chosen && distinct.iter().all(|e| (*e as usize) < experts));
                    assert!(weights.iter().any(|weight| weight.is_nan()), "{route:?}");
                    if route.groups.is_none() && !route.correction {
                        assert_eq!(found[0], 2, "{route:?}");
                    }
                    continue;
                }
                let wanted = routed(&route, &logits[row * experts..][..experts], &correction, &scale);
                let places: Vec<usize> = wanted.iter().map(|(expert, _)| *expert).collect();
                assert_eq!(
                    found.iter().map(|e| *e as usize).collect::<Vec<_>>(),
                    places,
                    "{route:?} row {row}"
                );
                for (weight, (_, wanted)) in weights.iter().zip(wanted) {
                    assert!(
                        (f64::from(*weight) - wanted).abs() <= 2e-6 * wanted.abs().max(1e-3),
                        "{route:?}"
                    );
                }
            }
        });
    }
}

/// Rows with a few of some experts each, and what is computed of them in f64.
struct Layer {
    experts: usize,
    chosen: usize,
    width: usize,
    inner: usize,
    gate_up: Matrix,
    down: Matrix,
    x: Vec<f32>,
    routes: Vec<u32>,
    /// What is added to the products of each matrix, where something is.
    biases: Option<[Vec<f32>; 2]>,
}

impl Layer {
    fn new(
        random: &mut Random,
        format: Format,
        rows: usize,
        [experts, chosen, width, inner]: [usize; 4],
    ) -> Layer {
        let gate_up = matrix(random, format, experts * 2 * inner, width, 1.0);
        let down = matrix(random, format, experts * width, inner, 1.0);
        let mut routes = Vec::new();
        for _ in 0..rows {
            let mut all: Vec<u32> = (0..experts as u32).collect();
            for place in 0..chosen {
                let other = place + random.below(experts - place);
                all.swap(place, other);
            }
            routes.extend(&all[..chosen]);
            routes.extend(random.numbers(chosen).iter().map(|weight| weight.to_bits()));
        }
        Layer {
            experts,
            chosen,
            width,
            inner,
            gate_up,
            down,
            x: random.numbers(rows * width),
            routes,
            biases: None,
        }
    }

    /// The same with biases.
    fn biased(self, random: &mut Random) -> Layer {
        let counts = [self.gate_up.rows, self.down.rows];
        Layer { biases: Some(counts.map(|count| random.numbers(count))), ..self }
    }

    /// The bias of a row of a matrix: the first or the second.
    fn bias(&self, matrix: usize, row: usize) -> f64 {
        self.biases.as_ref().map_or(0.0, |biases| f64::from(biases[matrix][row]))
    }

    fn rows(&self) -> usize {
        self.x.len() / self.width
    }

    /// Of each row, each place among its experts: the expert and its weight.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
        let of = |(row, words): (usize, &[u32])| {
            let (experts, weights) = words.split_at(self.chosen);
            let pairs = experts.iter().zip(weights);
            pairs.map(|(e, w)| (row, *e as usize, f32::from_bits(*w))).collect::<Vec<_>>()
        };
        self.routes.chunks_exact(2 * self.chosen).enumerate().flat_map(of).collect::<Vec<_>>().into_iter()
    }

    /// A row of a matrix times numbers, with the size of the terms.
    fn product(matrix: &Matrix, row: usize, x: &[f32]) -> (f64, f64) {
        let of_row = &matrix.values[row * matrix.columns..][..matrix.columns];
        let terms = of_row.iter().zip(x).map(|(w, x)| (f64::from(*w) * f64::from(*x), f64::from(x.abs())));
        // A weight with an offset is a difference, of which no part is more than a few units.
        terms.fold((0.0, 0.0), |(sum, size), (term, x)| (sum + term, size + term.abs() + 2.0 * x))
    }

    fn inner(&self, factor: f64) -> Vec<(f64, f64)> {
        let of = |(row, expert, _): (usize, usize, f32)| {
            let x = &self.x[row * self.width..][..self.width];
            let part = |o: usize| Layer::product(&self.gate_up, expert * 2 * self.inner + o, x);
            let one = |i: usize| {
                let ((gate, a), (up, b)) = (part(2 * i), part(2 * i + 1));
                let bias = [0, 1].map(|part| self.bias(0, expert * 2 * self.inner + 2 * i + part));
                let (gate, up) = (gate * factor + bias[0], up * factor + bias[1]);
                let (a, b) = (a * factor + bias[0].abs(), b * factor + bias[1].abs());
                if self.biases.is_none() {
                    return (silu(gate) * up, 1.1 * a * up.abs() + silu(gate).abs() * b);
                }
                let (gate, up) = (gate.min(LIMIT), up.clamp(-LIMIT, LIMIT) + 1.0);
                let open = gate / (1.0 + (-SHARPNESS * gate).exp());
                (open * up, 1.2 * a * up.abs() + open.abs() * (b + 1.0))
            };
            (0..self.inner).map(one).collect::<Vec<_>>()
        };
        self.pairs().flat_map(of).collect()
    }

    /// What the sum over experts is, of numbers that are given for each pair.
    fn sum(&self, given: &[f32]) -> Vec<(f64, f64)> {
        let mut sums = vec![(0.0, 0.0); self.rows() * self.width];
        for ((row, expert, weight), x) in self.pairs().zip(given.chunks_exact(self.inner)) {
            for output in 0..self.width {
                let (sum, size) = Layer::product(&self.down, expert * self.width + output, x);
                let bias = self.bias(1, expert * self.width + output);
                let (sum, size) = (sum + bias, size + bias.abs());
                let to = &mut sums[row * self.width + output];
                *to = (to.0 + f64::from(weight) * sum, to.1 + f64::from(weight.abs()) * size);
            }
        }
        sums
    }

    fn inner_shape(&self) -> ExpertsInner {
        ExpertsInner {
            experts: self.experts,
            chosen: self.chosen,
            outputs: 2 * self.inner,
            inputs: self.width,
            norm: None,
            bias: self.biases.is_some(),
            ending: match self.biases {
                None => Epilogue::Gate(Activation::Silu),
                Some(_) => Epilogue::GateClamped { limit: LIMIT as f32, sharpness: SHARPNESS as f32 },
            },
            route: None,
        }
    }

    fn sum_shape(&self, ending: Epilogue) -> ExpertsSum {
        let Layer { experts, chosen, width, inner, .. } = *self;
        let bias = self.biases.is_some();
        ExpertsSum { experts, chosen, outputs: width, inputs: inner, bias, ending }
    }
}

/// Of what layers with biases do with gates and ups; halves and quarters, which are the same in f32.
const LIMIT: f64 = 1.25;
const SHARPNESS: f64 = 1.75;

const SIZES: [(usize, [usize; 4]); 5] = [
    (1, [7, 3, 45, 22]),
    (1, [4, 4, 96, 70]),
    (2, [5, 1, 64, 33]),
    (9, [6, 2, 70, 64]),
    (40, [3, 2, 33, 40]),
];

#[test]
fn experts_are_matrix_products_of_their_own_rows() {
    kernel_under_test!(INNER, (Format, ExpertsInner), inner);
    let run_inner = run as fn(&cpu::Call<'_>);
    let mut random = Random(4);
    for (rows, sizes) in SIZES {
        for (format, biased) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
            let mut layer = Layer::new(&mut random, format, rows, sizes);
            let (mut buffers, mut arguments) = planes(&layer.gate_up);
            buffers.extend(["routes", "x"]);
            arguments.extend([Argument::Words(layer.routes.clone()), Argument::Numbers(layer.x.clone())]);
            if biased {
                layer = layer.biased(&mut random);
                buffers.push("bias");
                arguments.extend(layer.biases.iter().map(|biases| Argument::Numbers(biases[0].clone())));
            }
            buffers.push("y");
            arguments.push(Argument::Output(NAN.repeat(rows * layer.chosen * layer.inner)));
            *INNER.write().unwrap() = Some((format, layer.inner_shape()));
            let kernel = kernel("experts_inner", buffers, run_inner);
            let wanted = layer.inner(1.0);
            each_level(|level, threads| {
                let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                compare(&format!("{level:?} {rows} {format:?} {sizes:?}"), &numbers_of(&y[0]), &wanted);
            });
        }
    }
}

#[test]
fn sums_over_experts_are_weighed() {
    kernel_under_test!(SUM, (Format, ExpertsSum), sum);
    let run_sum = run as fn(&cpu::Call<'_>);
    let mut random = Random(6);
    for (rows, sizes) in SIZES {
        for (format, biased) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
            let mut layer = Layer::new(&mut random, format, rows, sizes);
            if biased {
                layer = layer.biased(&mut random);
            }
            let given = random.numbers(rows * layer.chosen * layer.inner);
            let before = random.numbers(rows * layer.width);
            let plain = layer.sum(&given);
            for ending in [Epilogue::Store, Epilogue::Add] {
                let (mut buffers, mut arguments) = planes(&layer.down);
                buffers.extend(["routes", "x"]);
                arguments.extend([Argument::Words(layer.routes.clone()), Argument::Numbers(given.clone())]);
                if let Some(biases) = &layer.biases {
                    buffers.push("bias");
                    arguments.push(Argument::Numbers(biases[1].clone()));
                }
                buffers.push("y");
                arguments.push(Argument::Output(bytes_of(&before)));
                *SUM.write().unwrap() = Some((format, layer.sum_shape(ending)));
                let kernel = kernel("experts_sum", buffers, run_sum);
                let added = plain
                    .iter()
                    .zip(&before)
                    .map(|((sum, size), before)| (sum + f64::from(*before), size + f64::from(before.abs())));
                let wanted = if ending == Epilogue::Add { added.collect() } else { plain.clone() };
                each_level(|level, threads| {
                    let y = run_kernel(kernel, &arguments, &[rows as u32], level, threads);
                    compare(&format!("{level:?} {rows} {format:?} {sizes:?}"), &numbers_of(&y[0]), &wanted);
                });
            }
        }
    }
}

/// What a decode step asks: experts that find themselves among the logits, the norm of x deferred, and what follows needs.
#[test]
fn one_row_chooses_is_normed_late_and_leaves_squares() {
    kernel_under_test!(INNER, (Format, ExpertsInner), inner);
    let run_inner = run as fn(&cpu::Call<'_>);
    let mut random = Random(8);
    for sizes in [[7, 3, 45, 22], [40, 9, 64, 33]] {
        for format in FORMATS {
            let [experts, chosen, width, _] = sizes;
            let mut layer = Layer::new(&mut random, format, 1, sizes);
            let logits = random.numbers(experts);
            let route = Route { experts, chosen, ..PLAIN };
            let wanted_routes = routed(&route, &logits, &[], &[]);
            let bits = wanted_routes.iter().map(|(_, weight)| (*weight as f32).to_bits());
            layer.routes = wanted_routes.iter().map(|(expert, _)| *expert as u32).chain(bits).collect();
            let parts: Vec<f32> = random.numbers(37).iter().map(|number| number.abs()).collect();
            let mean = parts.iter().map(|part| f64::from(*part)).sum::<f64>() / width as f64;
            let norm = Some(DeferredNorm { partials: 37, epsilon: 1e-5 });
            let (mut buffers, mut arguments) = planes(&layer.gate_up);
            buffers.extend(["logits", "routes", "x", "squares", "y"]);
            arguments.extend([
                Argument::Numbers(logits),
                Argument::Output(NAN.repeat(2 * chosen)),
                Argument::Numbers(layer.x.clone()),
                Argument::Numbers(parts),
                Argument::Output(NAN.repeat(chosen * layer.inner)),
            ]);
            let shape = ExpertsInner { norm, route: Some(route), ..layer.inner_shape() };
            *INNER.write().unwrap() = Some((format, shape));
            let kernel = kernel("experts_inner", buffers, run_inner);
            let wanted = layer.inner(1.0 / (mean + 1e-5).sqrt());
            each_level(|level, threads| {
                let outputs = run_kernel(kernel, &arguments, &[1], level, threads);
                let found = words_of(&outputs[0]);
                assert_eq!(found[..chosen], layer.routes[..chosen]);
                for (found, (_, wanted)) in found[chosen..].iter().zip(&wanted_routes) {
                    assert!((f64::from(f32::from_bits(*found)) - wanted).abs() < 1e-6);
                }
                compare(&format!("{level:?} {format:?} {sizes:?}"), &numbers_of(&outputs[1]), &wanted);
            });
        }
    }
    one_row_leaves_squares();
}

fn one_row_leaves_squares() {
    kernel_under_test!(SUM, (Format, ExpertsSum), sum);
    let run_sum = run as fn(&cpu::Call<'_>);
    let mut random = Random(9);
    for (partials, gain) in [(3, true), (100, false)] {
        let layer = Layer::new(&mut random, Format::F32, 1, [7, 3, 150, 22]);
        let given = random.numbers(layer.chosen * layer.inner);
        let (before, gains) = (random.numbers(layer.width), random.numbers(layer.width));
        let (mut buffers, mut arguments) = planes(&layer.down);
        buffers.extend(["routes", "x", "y"]);
        arguments.extend([Argument::Words(layer.routes.clone()), Argument::Numbers(given.clone())]);
        arguments.push(Argument::Output(bytes_of(&before)));
        if gain {
            buffers.extend(["gain", "gained"]);
            arguments.push(Argument::Numbers(gains.clone()));
            arguments.push(Argument::Output(NAN.repeat(layer.width)));
        }
        buffers.push("squares_out");
        arguments.push(Argument::Output(NAN.repeat(partials)));
        let ending = Epilogue::AddSquares(Squares { partials, gain });
        *SUM.write().unwrap() = Some((Format::F32, layer.sum_shape(ending)));
        let kernel = kernel("experts_sum", buffers, run_sum);
        let wanted: Vec<(f64, f64)> = layer
            .sum(&given)
            .iter()
            .zip(&before)
            .map(|((sum, size), before)| (sum + f64::from(*before), size + f64::from(before.abs())))
            .collect();
        each_level(|level, threads| {
            let outputs = run_kernel(kernel, &arguments, &[1], level, threads);
            let y = numbers_of(&outputs[0]);
            compare("y", &y, &wanted);
            if gain {
                for ((gained, y), gain) in numbers_of(&outputs[1]).iter().zip(&y).zip(&gains) {
                    assert_eq!(*gained, gain * y);
                }
            }
            let all: f64 = y.iter().map(|y| f64::from(*y).powi(2)).sum();
            let left: f64 = numbers_of(outputs.last().unwrap()).iter().map(|x| f64::from(*x)).sum();
            assert!((left - all).abs() <= 1e-5 * all, "{left} {all}");
        });
    }
}

/// What several conversations at once rest on: what a row becomes does not depend on who comes with it.
#[test]
fn a_row_among_others_is_the_same_to_the_bit_whoever_they_are() {
    kernel_under_test!(INNER, (Format, ExpertsInner), inner);
    let run_inner = run as fn(&cpu::Call<'_>);
    let mut random = Random(5);
    for format in FORMATS {
        let layer = Layer::new(&mut random, format, 30, [5, 2, 70, 40]);
        let (mut names, weights) = planes(&layer.gate_up);
        names.extend(["routes", "x", "y"]);
        let kernel = kernel("experts_inner", names, run_inner);
        *INNER.write().unwrap() = Some((format, layer.inner_shape()));
        let of = |rows: std::ops::Range<usize>, level, threads| {
            let mut arguments = weights.clone();
            arguments.push(Argument::Words(layer.routes[rows.start * 4..rows.end * 4].to_vec()));
            arguments.push(Argument::Numbers(layer.x[rows.start * 70..rows.end * 70].to_vec()));
            arguments.push(Argument::Output(vec![0; rows.len() * 2 * 40 * 4]));
            run_kernel(kernel, &arguments, &[rows.len() as u32], level, threads).remove(0)
        };
        each_level(|level, threads| {
            let all = of(0..30, level, threads);
            for rows in [0..2, 1..4, 3..10, 7..29] {
                let same = of(rows.clone(), level, threads) == all[rows.start * 320..rows.end * 320];
                assert!(same, "{level:?} {format:?} rows {rows:?} of 30");
            }
        });
    }
}

/// Runs a kernel of a shape on buffers, and gives what it writes.
macro_rules! ran {
    ($function:path, $type:ty, $shape:expr, $arguments:expr, ($rows:expr, $level:expr, $threads:expr)) => {{
        kernel_under_test!(SHAPE, $type, $function);
        // Tests that run at once take turns with a kernel's shape.
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *SHAPE.write().unwrap() = Some($shape);
        let (names, arguments): (Vec<_>, Vec<_>) = $arguments.into_iter().unzip();
        run_kernel(kernel(stringify!($function), names, run), &arguments, &[$rows as u32], $level, $threads)
    }};
}

/// Rows that take turns with few experts, and rows that each have others; experts without rows, and such with more rows than are
/// taken together.
const GROUPED: [(usize, [usize; 4], usize); 5] = [
    (17, [7, 3, 45, 22], 16),
    (40, [1, 1, 64, 33], 16),
    (150, [2, 1, 96, 70], 32),
    (19, [90, 2, 70, 64], 32),
    (33, [5, 5, 33, 40], 32),
];

#[test]
fn rows_expert_by_expert_are_those_of_routes_in_order() {
    let mut random = Random(11);
    for (rows, sizes, tile_rows) in GROUPED {
        let layer = Layer::new(&mut random, Format::F32, rows, sizes);
        let shape = ExpertsGroup { experts: layer.experts, chosen: layer.chosen, tile_rows };
        let mut wanted: Vec<(usize, usize)> =
            layer.pairs().enumerate().map(|(pair, (_, expert, _))| (expert, pair)).collect();
        wanted.sort_unstable();
        each_level(|level, threads| {
            let [pairs, tiles] = layer.grouped(shape, (level, threads));
            let found: Vec<usize> = pairs.iter().map(|pair| *pair as usize).collect();
            assert_eq!(found, wanted.iter().map(|(_, pair)| *pair).collect::<Vec<_>>());
            let mut next = 0;
            for tile in tiles.chunks_exact(3) {
                let [expert, first, count] = [0, 1, 2].map(|i| tile[i] as usize);
                if next == pairs.len() {
                    assert_eq!([expert, first, count], [0; 3]);
                    continue;
                }
                let of_expert = wanted[next..].iter().take_while(|(other, _)| *other == expert).count();
                assert_eq!((expert, first), (wanted[next].0, next));
                assert_eq!(count, of_expert.min(tile_rows));
                next += count;
            }
            assert_eq!(next, pairs.len());
        });
    }
}

#[test]
fn rows_expert_by_expert_are_the_same_to_the_bit_as_row_by_row() {
    let mut random = Random(12);
    for (rows, sizes, tile_rows) in GROUPED {
        for (format, biased) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
            let mut layer = Layer::new(&mut random, format, rows, sizes);
            if biased {
                layer = layer.biased(&mut random);
            }
            let before = random.numbers(rows * layer.width);
            each_level(|level, threads| {
                let what = format!("{level:?} {rows} {format:?} {sizes:?}");
                let run = (level, threads);
                let inner = layer.inner_of_tiles(format, tile_rows, run);
                compare(&what, &numbers_of(&inner), &layer.inner(1.0));
                assert!(inner == layer.inner_by_row(format, run), "{what}");
                for ending in [Epilogue::Store, Epilogue::Add] {
                    let sums = layer.sum_of_tiles(format, tile_rows, (&inner, &before, ending), run);
                    let by_row = layer.sum_by_row(format, (&inner, &before, ending), run);
                    assert!(sums == by_row, "{what} {ending:?}");
                }
            });
        }
    }
}

type Named = Vec<(&'static str, Argument)>;

/// The kernels of a layer, expert by expert and row by row.
impl Layer {
    fn grouped(&self, shape: ExpertsGroup, (level, threads): (Level, usize)) -> [Vec<u32>; 2] {
        let rows = self.rows();
        let most = (rows * self.chosen + self.experts * (shape.tile_rows - 1)) / shape.tile_rows;
        let arguments = [
            ("routes", Argument::Words(self.routes.clone())),
            ("pairs", Argument::Output(NAN.repeat(rows * self.chosen))),
            ("tiles", Argument::Output(NAN.repeat(3 * most))),
        ];
        let left = ran!(cpu::experts_group, ExpertsGroup, shape, arguments, (rows, level, threads));
        [words_of(&left[0]), words_of(&left[1])]
    }

    /// The planes and the biases of a matrix: the first or the second.
    fn stored(&self, matrix: usize) -> (Named, Named) {
        let (names, planes) = planes([&self.gate_up, &self.down][matrix]);
        let bias = self.biases.iter().map(|biases| ("bias", Argument::Numbers(biases[matrix].clone())));
        (names.into_iter().zip(planes).collect(), bias.collect())
    }

    /// Products of the tiles' pairs with the first matrix or the second.
    fn products(
        &self,
        matrix: usize,
        (format, x, ending): (Format, Argument, Epilogue),
        tile_rows: usize,
        run: (Level, usize),
    ) -> Vec<u8> {
        let Layer { experts, chosen, width, inner, .. } = *self;
        let [pairs, tiles_words] = self.grouped(ExpertsGroup { experts, chosen, tile_rows }, run);
        let (mut arguments, bias) = self.stored(matrix);
        arguments.extend([("pairs", Argument::Words(pairs)), ("tiles", Argument::Words(tiles_words))]);
        arguments.push(("x", x));
        arguments.extend(bias);
        let (outputs, inputs, made) = [(2 * inner, width, inner), (width, inner, width)][matrix];
        arguments.push(("y", Argument::Output(NAN.repeat(self.rows() * chosen * made))));
        let bias = self.biases.is_some();
        let shape = ExpertsTiles { experts, chosen, outputs, inputs, bias, ending, tile_rows };
        let (level, threads) = run;
        ran!(tiles, (Format, ExpertsTiles), (format, shape), arguments, (self.rows(), level, threads))
            .remove(0)
    }

    fn inner_of_tiles(&self, format: Format, tile_rows: usize, run: (Level, usize)) -> Vec<u8> {
        let x = Argument::Numbers(self.x.clone());
        self.products(0, (format, x, self.inner_shape().ending), tile_rows, run)
    }

    fn inner_by_row(&self, format: Format, (level, threads): (Level, usize)) -> Vec<u8> {
        let (mut arguments, bias) = self.stored(0);
        arguments.push(("routes", Argument::Words(self.routes.clone())));
        arguments.push(("x", Argument::Numbers(self.x.clone())));
        arguments.extend(bias);
        arguments.push(("y", Argument::Output(NAN.repeat(self.rows() * self.chosen * self.inner))));
        let shape = (format, self.inner_shape());
        ran!(inner, (Format, ExpertsInner), shape, arguments, (self.rows(), level, threads)).remove(0)
    }

    fn sum_of_tiles(
        &self,
        format: Format,
        tile_rows: usize,
        (given, before, ending): (&[u8], &[f32], Epilogue),
        run: (Level, usize),
    ) -> Vec<u8> {
        let x = Argument::Numbers(numbers_of(given));
        let each = self.products(1, (format, x, Epilogue::Store), tile_rows, run);
        let arguments = [
            ("routes", Argument::Words(self.routes.clone())),
            ("each", Argument::Numbers(numbers_of(&each))),
            ("y", Argument::Output(bytes_of(before))),
        ];
        let adds = ending == Epilogue::Add;
        let shape = ExpertsJoin { chosen: self.chosen, width: self.width, adds };
        let (level, threads) = run;
        ran!(cpu::experts_join, ExpertsJoin, shape, arguments, (self.rows(), level, threads)).remove(0)
    }

    fn sum_by_row(
        &self,
        format: Format,
        (given, before, ending): (&[u8], &[f32], Epilogue),
        (level, threads): (Level, usize),
    ) -> Vec<u8> {
        let (mut arguments, bias) = self.stored(1);
        arguments.push(("routes", Argument::Words(self.routes.clone())));
        arguments.push(("x", Argument::Numbers(numbers_of(given))));
        arguments.extend(bias);
        arguments.push(("y", Argument::Output(bytes_of(before))));
        let shape = (format, self.sum_shape(ending));
        ran!(sum, (Format, ExpertsSum), shape, arguments, (self.rows(), level, threads)).remove(0)
    }
}
