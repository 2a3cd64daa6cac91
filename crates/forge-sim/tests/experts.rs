//! Kernels of experts, executed by the referee and compared with plain arithmetic.

use forge_ir::{Activation, Format, Gating, Groups, Scores};
use forge_kernels::spec::{DeferredNorm, ExpertsInner, ExpertsSum, Route, Squares, Summed};
use forge_kernels::{Spec, assemble, render};
use forge_sim::{BufferId, Program, Sim};

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0) * 0.9).collect()
}

fn program(specs: &[Spec]) -> Program {
    let kernel = |(index, spec): (usize, &Spec)| render(&format!("kernel_{index}"), spec).unwrap();
    let kernels: Vec<_> = specs.iter().enumerate().map(kernel).collect();
    Program::compile(&assemble(&kernels, "")).unwrap_or_else(|error| panic!("{error}"))
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
fn routed(route: &Route, logits: &[f32], correction: &[f32], scale: &[f32]) -> (Vec<usize>, Vec<f64>) {
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
    let sum: f64 =
        if route.shares { chosen.iter().map(|e| score(wide[*e])).sum::<f64>() + 1e-20 } else { 1.0 };
    let scale = |e: usize| if route.scale { f64::from(scale[e]) } else { 1.0 };
    let weight = |e: &usize| score(wide[*e]) / sum * f64::from(route.factor) * scale(*e);
    (chosen.clone(), chosen.iter().map(weight).collect())
}

#[test]
fn routes_are_those_of_the_definition_index_for_index() {
    let sigmoid = Route { scores: Scores::Sigmoid, ..PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let routes = [
        PLAIN,
        Route { chosen: 7, shares: false, factor: 2.5, scale: true, ..PLAIN },
        Route { correction: true, ..PLAIN },
        Route { experts: 64, chosen: 16, correction: true, ..sigmoid.clone() },
        Route { experts: 100, chosen: 8, shares: false, ..sigmoid.clone() },
        Route { experts: 96, chosen: 6, groups: groups(8, 4, 2), correction: true, ..sigmoid },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), ..PLAIN },
    ];
    let program = program(&routes.clone().map(Spec::Route));
    for (index, route) in routes.iter().enumerate() {
        let (rows, experts, chosen) = (4, route.experts, route.chosen);
        let mut logits: Vec<f32> = numbers(rows * experts, index).iter().map(|x| 3.0 * x).collect();
        // A row of equals, one of few values, and one with what is not a number.
        logits[experts..2 * experts].fill(0.5);
        logits[2 * experts..3 * experts].iter_mut().for_each(|x| *x = x.round());
        logits[3 * experts + 2] = f32::NAN;
        let (correction, scale) = (numbers(experts, 77), numbers(experts, 99));
        let mut sim = Sim::new(&program).unwrap();
        let mut buffers = vec![sim.memory.floats(&logits).unwrap().read()];
        if route.correction {
            buffers.push(sim.memory.floats(&correction).unwrap().read());
        }
        if route.scale {
            buffers.push(sim.memory.floats(&scale).unwrap().read());
        }
        let routes = sim.memory.unwritten(rows * 2 * chosen * 4).unwrap();
        buffers.push(routes.write());
        sim.dispatch(
            &format!("kernel_{index}"),
            &buffers,
            &[rows as u32],
            [rows as u64, 1, 1].map(|x| x as _),
        );
        assert!(sim.faults().is_empty(), "{:?}", sim.faults());
        let words: Vec<u32> = sim.memory.read_floats(routes).iter().map(|x| x.to_bits()).collect();
        for row in 0..rows {
            let (own, found) =
                (&logits[row * experts..][..experts], &words[row * 2 * chosen..][..2 * chosen]);
            let found_experts: Vec<usize> = found[..chosen].iter().map(|e| *e as usize).collect();
            if row == 3 {
                let mut distinct = found_experts.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert!(
                    distinct.len() == chosen && distinct.iter().all(|e| *e < experts),
                    "{found_experts:?}"
                );
                if route.groups.is_none() && !route.correction {
                    assert_eq!(found_experts[0], 2);
                }
                assert!(found[chosen..].iter().any(|bits| f32::from_bits(*bits).is_nan()), "{route:?}");
                continue;
            }
            let (wanted, weights) = routed(route, own, &correction, &scale);
            assert_eq!(found_experts, wanted, "{route:?} row {row}");
            for (bits, weight) in found[chosen..].iter().zip(weights) {
                let found = f64::from(f32::from_bits(*bits));
                assert!(
                    (found - weight).abs() <= 2e-6 * weight.abs().max(1e-3),
                    "{route:?}: {found} {weight}"
                );
            }
        }
    }
}

#[test]
fn experts_compute_what_they_should() {
    computed(Gating::Plain(Activation::Silu), false);
    // Gates and ups are beyond the limit as often as not.
    computed(Gating::Clamped { limit: 0.7, sharpness: 1.702 }, true);
}

/// What becomes of a gate and its up, by the definition.
fn gated(gating: Gating, gate: f64, up: f64) -> f64 {
    match gating {
        Gating::Clamped { limit, sharpness } => {
            let (limit, sharpness) = (f64::from(limit), f64::from(sharpness));
            let gate = gate.min(limit);
            gate / (1.0 + (-sharpness * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
        _ => gate / (1.0 + (-gate).exp()) * up,
    }
}

fn computed(gating: Gating, bias: bool) {
    let (rows, experts, chosen, width, inner) = (2, 7, 3, 45, 22);
    let part = |norm, route| ExpertsInner {
        format: Format::F32,
        experts,
        chosen,
        outputs: 2 * inner,
        inputs: width,
        norm,
        bias,
        gating,
        route,
        rows_per_simdgroup: 4,
        simdgroups: 2,
    };
    let sum = |ending| ExpertsSum {
        format: Format::F32,
        experts,
        chosen,
        outputs: width,
        inputs: inner,
        bias,
        ending,
        rows_per_simdgroup: 4,
        simdgroups: 2,
    };
    let squares = Summed::AddSquares(Squares { partials: 8, gain: true });
    let norm = Some(DeferredNorm { partials: 8, epsilon: 1e-5 });
    let program = program(&[
        Spec::ExpertsInner(part(None, None)),
        Spec::ExpertsSum(sum(Summed::Add)),
        Spec::ExpertsInner(part(norm, Some(PLAIN))),
        Spec::ExpertsSum(sum(squares)),
    ]);
    // Rows padded to 64 and 32 columns.
    let padded = |rows: usize, columns: usize, seed| -> Vec<f32> {
        let plain = numbers(rows * columns, seed);
        let stride = columns.next_multiple_of(32);
        let row = |row: usize| {
            let mut padded = plain[row * columns..][..columns].to_vec();
            padded.resize(stride, 0.0);
            padded
        };
        (0..rows).flat_map(row).collect()
    };
    let (gate_up, down) = (padded(experts * 2 * inner, width, 1), padded(experts * width, inner, 2));
    let [inner_bias, sum_bias] = [(experts * 2 * inner, 11), (experts * width, 12)]
        .map(|(count, seed)| if bias { numbers(count, seed) } else { vec![0.0; count] });
    let (x, logits, before) =
        (numbers(rows * width, 3), numbers(rows * experts, 4), numbers(rows * width, 5));
    let routes: Vec<(Vec<usize>, Vec<f64>)> =
        (0..rows).map(|row| routed(&PLAIN, &logits[row * experts..][..experts], &[], &[])).collect();
    let wanted = |row: usize, factor: f64| -> Vec<f64> {
        let x: Vec<f64> = x[row * width..][..width].iter().map(|x| f64::from(*x)).collect();
        let product = |matrix: &[f32], stride: usize, at: usize, x: &[f64]| -> f64 {
            matrix[at * stride..].iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
        };
        let mut out: Vec<f64> = before[row * width..][..width].iter().map(|x| f64::from(*x)).collect();
        for (expert, weight) in routes[row].0.iter().zip(&routes[row].1) {
            let own = |i: usize| {
                let [gate, up] = [0, 1].map(|part| {
                    let at = expert * 2 * inner + 2 * i + part;
                    factor * product(&gate_up, 64, at, &x) + f64::from(inner_bias[at])
                });
                gated(gating, gate, up)
            };
            let own: Vec<f64> = (0..inner).map(own).collect();
            for (o, out) in out.iter_mut().enumerate() {
                let at = expert * width + o;
                *out += weight * (product(&down, 32, at, &own) + f64::from(sum_bias[at]));
            }
        }
        out
    };
    let near = |found: &[f32], wanted: &[f64]| {
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((f64::from(*found) - wanted).abs() < 2e-5 * wanted.abs().max(1.0), "{found} {wanted}");
        }
    };
    // Several rows, with the routes given.
    let mut sim = Sim::new(&program).unwrap();
    let words: Vec<f32> = routes
        .iter()
        .flat_map(|(experts, weights)| {
            let experts = experts.iter().map(|expert| f32::from_bits(*expert as u32));
            experts.chain(weights.iter().map(|weight| *weight as f32)).collect::<Vec<_>>()
        })
        .collect();
    let [gate_up_id, down_id, routes_id, x_id, y_id, inner_bias_id, sum_bias_id] =
        [&gate_up, &down, &words, &x, &before, &inner_bias, &sum_bias]
            .map(|numbers| sim.memory.floats(numbers).unwrap());
    let biased = |id: BufferId| bias.then(|| id.read());
    let inner_id = sim.memory.unwritten(rows * chosen * inner * 4).unwrap();
    let grid = [(2 * inner).div_ceil(8), chosen, rows].map(|x| x as _);
    sim.dispatch(
        "kernel_0",
        &[gate_up_id.read(), routes_id.read(), x_id.read()]
            .into_iter()
            .chain(biased(inner_bias_id))
            .chain([inner_id.write()])
            .collect::<Vec<_>>(),
        &[rows as u32],
        grid,
    );
    sim.barrier();
    let grid = [width.div_ceil(8), rows, 1].map(|x| x as _);
    sim.dispatch(
        "kernel_1",
        &[down_id.read(), routes_id.read(), inner_id.read()]
            .into_iter()
            .chain(biased(sum_bias_id))
            .chain([y_id.write()])
            .collect::<Vec<_>>(),
        &[rows as u32],
        grid,
    );
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    let y = sim.memory.read_floats(y_id);
    (0..rows).for_each(|row| near(&y[row * width..][..width], &wanted(row, 1.0)));
    // One row, that finds its experts itself, divides by the norm and leaves squares.
    let mut sim = Sim::new(&program).unwrap();
    let parts = numbers(8, 6).iter().map(|x| x.abs()).collect::<Vec<f32>>();
    let factor = 1.0 / (parts.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64 + 1e-5).sqrt();
    let gain = numbers(width, 8);
    let [gate_up_id, down_id, logits_id, x_id, y_id, squares_id, gain_id, inner_bias_id, sum_bias_id] = [
        &gate_up,
        &down,
        &logits[..experts].to_vec(),
        &x[..width].to_vec(),
        &before[..width].to_vec(),
        &parts,
        &gain,
        &inner_bias,
        &sum_bias,
    ]
    .map(|numbers| sim.memory.floats(numbers).unwrap());
    let inner_id = sim.memory.unwritten(chosen * inner * 4).unwrap();
    let routes_id = sim.memory.unwritten(2 * chosen * 4).unwrap();
    let [gained_id, left_id] = [width, 8].map(|count| sim.memory.unwritten(count * 4).unwrap());
    let grid = [(2 * inner).div_ceil(8), chosen, 1].map(|x| x as _);
    let bound: Vec<_> = [gate_up_id.read(), logits_id.read(), routes_id.write(), x_id.read()]
        .into_iter()
        .chain(biased(inner_bias_id))
        .chain([squares_id.read(), inner_id.write()])
        .collect();
    sim.dispatch("kernel_2", &bound, &[1], grid);
    sim.barrier();
    let grid = [width.div_ceil(8), 1, 1].map(|x| x as _);
    let bound: Vec<_> = [down_id.read(), routes_id.read(), inner_id.read()]
        .into_iter()
        .chain(biased(sum_bias_id))
        .chain([y_id.write(), gain_id.read(), gained_id.write(), left_id.write()])
        .collect();
    sim.dispatch("kernel_3", &bound, &[1], grid);
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    let (y, wanted) = (sim.memory.read_floats(y_id), wanted(0, factor));
    near(&y, &wanted);
    let gained: Vec<f64> = wanted.iter().zip(&gain).map(|(y, gain)| y * f64::from(*gain)).collect();
    near(&sim.memory.read_floats(gained_id), &gained);
    let left: f64 = sim.memory.read_floats(left_id).iter().map(|x| f64::from(*x)).sum();
    let all: f64 = wanted.iter().map(|y| y * y).sum();
    assert!((left - all).abs() < 1e-4 * all, "{left} {all}");
}
