//! The routing kernel against its definition: selected experts and their weights.

use super::support::{Argument, NAN, Random, each_level, kernel, run_kernel, words_of};
use forge_device::cpu::{self};
use forge_device::ops::{Groups, Route, Scores};

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

/// Experts and weights by the definition: NaN first, and the lowest index of equal scores. Shared experts come last.
pub(crate) fn routed(route: &Route, logits: &[f32], correction: &[f32], scale: &[f32]) -> Vec<(usize, f64)> {
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
    let sum: f64 = if route.renormalize { chosen.iter().map(|e| score(wide[*e])).sum() } else { 1.0 };
    let scale = |e: usize| if route.scale { f64::from(scale[e]) } else { 1.0 };
    let of_shared = gate.first().map_or(1.0, |logit| 1.0 / (1.0 + f64::from(-logit).exp()));
    let shared = (route.experts..).take(route.shared).map(|e| (e, of_shared));
    let weight = |e| (e, score(wide[e]) / sum * f64::from(route.factor) * scale(e));
    chosen.into_iter().map(weight).chain(shared).collect()
}

#[test]
fn routes_match_the_definition() {
    kernel_under_test!(SHAPE, Route, cpu::route);
    let sigmoid = Route { scores: Scores::Sigmoid, ..PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let routes = [
        PLAIN,
        Route { chosen: 7, renormalize: false, factor: 2.5, scale: true, ..PLAIN },
        Route { correction: true, ..PLAIN },
        Route { experts: 512, chosen: 16, correction: true, ..sigmoid },
        Route { experts: 100, chosen: 8, renormalize: false, ..sigmoid },
        Route { experts: 96, chosen: 6, groups: groups(8, 4, 2), correction: true, ..sigmoid },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), ..PLAIN },
        Route { shared: 1, ..PLAIN },
        Route { chosen: 7, shared: 2, gated: true, scale: true, ..PLAIN },
        Route { experts: 60, chosen: 4, shared: 4, gated: true, renormalize: false, ..PLAIN },
        Route { experts: 96, chosen: 6, groups: groups(8, 4, 2), shared: 1, factor: 2.5, ..sigmoid },
    ];
    let mut random = Random(3);
    for route in routes {
        let (rows, experts, chosen) = (5, route.experts, route.chosen + route.shared);
        let of_row = experts + usize::from(route.gated);
        let mut logits: Vec<f32> = random.floats(rows * of_row).iter().map(|x| 3.0 * x).collect();
        // A row of equal scores, one with few distinct values, and one with NaN.
        logits[of_row..2 * of_row].fill(0.5);
        logits[2 * of_row..3 * of_row].iter_mut().for_each(|x| *x = x.round());
        logits[4 * of_row + 2] = f32::NAN;
        let (correction, scale) = (random.floats(experts), random.floats(experts));
        let mut buffers = vec!["logits"];
        let mut arguments = vec![Argument::F32(logits.clone())];
        for (there, name, numbers) in
            [(route.correction, "correction", &correction), (route.scale, "scale", &scale)]
        {
            if there {
                buffers.push(name);
                arguments.push(Argument::F32(numbers.clone()));
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
                    let mut distinct = found[..route.chosen].to_vec();
                    distinct.sort_unstable();
                    distinct.dedup();
                    assert!(
                        distinct.len() == route.chosen && distinct.iter().all(|e| (*e as usize) < experts)
                    );
                    assert!(weights.iter().any(|weight| weight.is_nan()), "{route:?}");
                    if route.groups.is_none() && !route.correction {
                        assert_eq!(found[0], 2, "{route:?}");
                    }
                    continue;
                }
                let wanted = routed(&route, &logits[row * of_row..][..of_row], &correction, &scale);
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
