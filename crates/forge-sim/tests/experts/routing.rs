//! Routing: experts and their weights.

use crate::{expert_slots, floats, program, words};
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsLayout, Kernel};
use forge_ops::{Activation, ExpertsInner, Format, Gating, Groups, Route, Scores};
use forge_sim::Sim;

pub(crate) const PLAIN: Route = Route {
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

/// Experts and weights by the definition: NaN first, and the lowest index of equal scores. Shared experts
/// come last.
pub(crate) fn routed(
    route: &Route,
    logits: &[f32],
    correction: &[f32],
    scale: &[f32],
) -> (Vec<usize>, Vec<f64>) {
    let (logits, gate) = logits.split_at(route.experts);
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
        // The two zeros are equal.
        let key = |place: usize| if of(place).is_nan() { f64::INFINITY } else { of(place) + 0.0 };
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
        if route.renormalize { chosen.iter().map(|e| score(wide[*e])).sum::<f64>() + 1e-20 } else { 1.0 };
    let scale = |e: usize| if route.scale { f64::from(scale[e]) } else { 1.0 };
    let weight = |e: &usize| score(wide[*e]) / sum * f64::from(route.factor) * scale(*e);
    let of_shared = gate.first().map_or(1.0, |logit| 1.0 / (1.0 + f64::from(-logit).exp()));
    let shared = route.experts..route.experts + route.shared;
    let weights = chosen.iter().map(weight).chain(shared.clone().map(|_| of_shared)).collect();
    (chosen.iter().copied().chain(shared).collect(), weights)
}

/// Ways of choosing experts.
fn ways() -> Vec<Route> {
    let sigmoid = Route { scores: Scores::Sigmoid, ..PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    vec![
        PLAIN,
        Route { chosen: 7, renormalize: false, factor: 2.5, scale: true, ..PLAIN },
        Route { correction: true, ..PLAIN },
        Route { experts: 64, chosen: 16, correction: true, ..sigmoid },
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

#[test]
fn routing_matches_the_reference_exactly() {
    let routes = ways();
    let program = program(&routes.iter().cloned().map(Spec::Route).collect::<Vec<_>>());
    for (index, route) in routes.iter().enumerate() {
        let (rows, experts, chosen, of_row) = (4, route.experts, route.routes(), route.logits());
        let logits = rows_of_logits(of_row, index);
        let (correction, scale) = (floats(experts, 77), floats(experts, 99));
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
            let (own, found) = (&logits[row * of_row..][..of_row], &words[row * 2 * chosen..][..2 * chosen]);
            let found_experts: Vec<usize> = found[..chosen].iter().map(|e| *e as usize).collect();
            if row == 3 {
                let mut distinct = found_experts[..route.chosen].to_vec();
                distinct.sort_unstable();
                distinct.dedup();
                assert!(
                    distinct.len() == route.chosen && distinct.iter().all(|e| *e < experts),
                    "{found_experts:?}"
                );
                assert!(found_experts[route.chosen..].iter().copied().eq(experts..experts + route.shared));
                if route.groups.is_none() && !route.correction {
                    assert_eq!(found_experts[0], 2);
                }
                assert!(found[chosen..].iter().any(|bits| f32::from_bits(*bits).is_nan()), "{route:?}");
                continue;
            }
            let (expected, weights) = routed(route, own, &correction, &scale);
            assert_eq!(found_experts, expected, "{route:?} row {row}");
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

/// Four rows of scores: random, equal, with few distinct values, and with NaN.
fn rows_of_logits(of_row: usize, seed: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = floats(4 * of_row, seed).iter().map(|x| 3.0 * x).collect();
    logits[of_row..2 * of_row].fill(0.5);
    logits[2 * of_row..3 * of_row].iter_mut().for_each(|x| *x = x.round());
    logits[3 * of_row + 2] = f32::NAN;
    logits
}

/// Expert kernels with fused routing write the same routes as the routing kernel, and each simdgroup computes
/// with the expert of its route.
#[test]
fn fused_routing_matches_the_routing_kernel() {
    let inner = |route: &Route| Kernel {
        op: ExpertsInner {
            format: Format::F32,
            experts: route.experts + route.shared,
            chosen: route.routes(),
            shared: route.shared,
            outputs: 2,
            inputs: 1,
            record: 256,
            norm: None,
            bias: false,
            gating: Gating::Plain(Activation::Relu),
            route: Some(*route),
        },
        layout: ExpertsLayout { rows_per_simdgroup: 2, simdgroups: 1 },
    };
    for (index, route) in ways().iter().enumerate() {
        let program = program(&[Spec::Route(*route), Spec::ExpertsInner(inner(route))]);
        let (of_row, places) = (route.logits(), route.routes());
        let (correction, scale) = (floats(route.experts, 77), floats(route.experts, 99));
        // The first column of an expert's gate and up matrices: 1 and the expert's index.
        let weights_of: Vec<f32> = (0..route.experts + route.shared)
            .rev()
            .flat_map(|expert| [1.0, expert as f32].map(|first| [vec![first], vec![0.0; 31]].concat()))
            .flatten()
            .collect();
        for logits in rows_of_logits(of_row, index).chunks(of_row) {
            let mut sim = Sim::new(&program).unwrap();
            let [logits, correction, scale, weights, x] =
                [logits, &correction, &scale, &weights_of, &[1.0]].map(|of| sim.memory.floats(of).unwrap());
            let [apart, within, y] =
                [2 * places, 2 * places, places].map(|words| sim.memory.unwritten(words * 4).unwrap());
            let mut inputs = vec![logits.read()];
            inputs.extend(route.correction.then(|| correction.read()));
            inputs.extend(route.scale.then(|| scale.read()));
            let alone = [&inputs[..], &[apart.write()]].concat();
            sim.dispatch("kernel_0", &alone, &[1], [1, 1, 1]);
            let experts = route.experts + route.shared;
            let [none_cached, all_cached] =
                [false, true].map(|has_one| expert_slots(&mut sim, experts, |_| has_one).read());
            // If no expert is cached, one threadgroup selects experts and reads no matrix.
            let nowhere = sim.memory.unwritten(4 * weights_of.len()).unwrap();
            for (weights, expert_slots, places) in [(nowhere, none_cached, 1), (weights, all_cached, places)]
            {
                let [weights, x, y] = [weights.read(), x.read(), y.write()];
                let inner = [&[weights, expert_slots], &inputs[..], &[within.write(), x, y]].concat();
                sim.dispatch("kernel_1", &inner, &[1], [1, places as _, 1]);
                sim.barrier();
                assert!(sim.faults().is_empty(), "{route:?}: {:?}", sim.faults());
                assert_eq!(words(&sim, within), words(&sim, apart), "{route:?}");
            }
            let words = |id| words(&sim, id);
            let experts: Vec<f32> = words(apart)[..places].iter().map(|expert| *expert as f32).collect();
            assert_eq!(sim.memory.read_floats(y), experts, "{route:?}");
        }
    }
}
