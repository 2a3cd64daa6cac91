//! Expert kernels in the kernel checker, compared with plain arithmetic.

mod routing;

use crate::routing::{PLAIN, routed};
use forge_ir::Record;
use forge_kernels::spec::{ExpertsLayout, Kernel};
use forge_kernels::{Spec, assemble, render};
use forge_ops::{
    Activation, DeferredNorm, Epilogue, ExpertsInner, ExpertsSum, Format, Gating, Route, Squares,
};
use forge_sim::{BufferId, Program, Sim};

pub(crate) fn floats(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0) * 0.9).collect()
}

pub(crate) fn program(specs: &[Spec]) -> Program {
    let kernel = |(index, spec): (usize, &Spec)| render(&format!("kernel_{index}"), spec).unwrap();
    let kernels: Vec<_> = specs.iter().enumerate().map(kernel).collect();
    Program::compile(&assemble(&kernels, "")).unwrap_or_else(|error| panic!("{error}"))
}

/// The expert cache slots of the cached experts, in reverse order.
pub(crate) fn expert_slots(sim: &mut Sim<'_>, experts: usize, has_one: impl Fn(usize) -> bool) -> BufferId {
    let slot = |expert: usize| if has_one(expert) { (experts - 1 - expert) as u32 } else { u32::MAX };
    sim.memory.bytes(&(0..experts).map(slot).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap()
}

/// The experts' matrices in the expert cache: in reverse order, with this stride, and NaN in between.
fn in_cache(stack: &[f32], experts: usize, record: usize) -> Vec<f32> {
    let of_one = stack.len() / experts;
    let mut expert_slots = vec![f32::NAN; (experts - 1) * record / 4 + of_one];
    for (slot, matrix) in expert_slots.chunks_mut(record / 4).zip(stack.chunks(of_one).rev()) {
        slot[..of_one].copy_from_slice(matrix);
    }
    expert_slots
}

pub(crate) fn words(sim: &Sim<'_>, id: BufferId) -> Vec<u32> {
    sim.memory.read_floats(id).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn expert_kernels_match_the_reference() {
    computed(Gating::Plain(Activation::Silu), false, &PLAIN);
    // Half of the gate and up values are beyond the limit.
    computed(Gating::Clamped { limit: 0.7, sharpness: 1.702 }, true, &PLAIN);
    // With shared experts.
    computed(Gating::Plain(Activation::Silu), false, &Route { experts: 6, chosen: 2, shared: 1, ..PLAIN });
    let gated = Route { experts: 5, chosen: 1, shared: 2, gated: true, factor: 2.5, ..PLAIN };
    computed(Gating::Plain(Activation::Silu), false, &gated);
}

/// The gated activation of a gate and its up value, by the definition.
pub(crate) fn gated(gating: Gating, gate: f64, up: f64) -> f64 {
    match gating {
        Gating::Clamped { limit, sharpness } => {
            let (limit, sharpness) = (f64::from(limit), f64::from(sharpness));
            let gate = gate.min(limit);
            gate / (1.0 + (-sharpness * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
        _ => gate / (1.0 + (-gate).exp()) * up,
    }
}

fn computed(gating: Gating, bias: bool, route: &Route) {
    let (rows, experts, chosen, width, inner) = (2, 7, 3, 45, 22);
    let shared = route.shared;
    let record = Record::of(&[(Format::F32, [2 * inner, width]), (Format::F32, [width, inner])]).bytes;
    let part = |norm, route| Kernel {
        op: ExpertsInner {
            format: Format::F32,
            experts,
            chosen,
            shared,
            outputs: 2 * inner,
            inputs: width,
            record,
            norm,
            bias,
            gating,
            route,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let sum = |epilogue| Kernel {
        op: ExpertsSum {
            format: Format::F32,
            experts,
            chosen,
            shared,
            outputs: width,
            inputs: inner,
            record,
            bias,
            epilogue,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let squares = Epilogue::AddSquares(Squares { partials: 8, gain: true });
    let norm = Some(DeferredNorm { partials: 8, epsilon: 1e-5 });
    let program = program(&[
        Spec::ExpertsInner(part(None, None)),
        Spec::ExpertsSum(sum(Epilogue::Add)),
        Spec::ExpertsInner(part(norm, Some(*route))),
        Spec::ExpertsSum(sum(squares)),
    ]);
    // Rows padded to 64 and 32 columns.
    let padded = |rows: usize, columns: usize, seed| -> Vec<f32> {
        let plain = floats(rows * columns, seed);
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
        .map(|(count, seed)| if bias { floats(count, seed) } else { vec![0.0; count] });
    let (x, logits, before) =
        (floats(rows * width, 3), floats(rows * route.logits(), 4), floats(rows * width, 5));
    let routes: Vec<(Vec<usize>, Vec<f64>)> =
        logits.chunks(route.logits()).map(|logits| routed(route, logits, &[], &[])).collect();
    let expected = |row: usize, factor: f64| -> Vec<f64> {
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
    let near = |found: &[f32], expected: &[f64]| {
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-5 * expected.abs().max(1.0),
                "{found} {expected}"
            );
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
    let [gate_up_id, down_id, routes_id, x_id, y_id, inner_bias_id, sum_bias_id] = [
        &in_cache(&gate_up, experts, record),
        &in_cache(&down, experts, record),
        &words,
        &x,
        &before,
        &inner_bias,
        &sum_bias,
    ]
    .map(|numbers| sim.memory.floats(numbers).unwrap());
    let biased = |id: BufferId| bias.then(|| id.read());
    let inner_id = sim.memory.unwritten(rows * chosen * inner * 4).unwrap();
    let grid = [(2 * inner).div_ceil(8), chosen, rows].map(|x| x as _);
    // First the even experts are cached, then the odd ones; a row is complete once all its experts have been.
    for turn in 0..2 {
        let expert_slots = expert_slots(&mut sim, experts, |expert| expert % 2 == turn);
        sim.dispatch(
            "kernel_0",
            &[gate_up_id.read(), expert_slots.read(), routes_id.read(), x_id.read()]
                .into_iter()
                .chain(biased(inner_bias_id))
                .chain([inner_id.write()])
                .collect::<Vec<_>>(),
            &[rows as u32],
            grid,
        );
        sim.barrier();
    }
    let grid = [width.div_ceil(8), rows, 1].map(|x| x as _);
    let mut turns: Vec<Vec<usize>> = routes.iter().map(|(experts, _)| experts.clone()).collect();
    turns.iter_mut().for_each(|experts| experts.sort_unstable());
    turns.sort_unstable();
    turns.dedup();
    for turn in turns {
        let expert_slots = expert_slots(&mut sim, experts, |expert| turn.contains(&expert));
        sim.dispatch(
            "kernel_1",
            &[down_id.read(), expert_slots.read(), routes_id.read(), inner_id.read()]
                .into_iter()
                .chain(biased(sum_bias_id))
                .chain([y_id.write()])
                .collect::<Vec<_>>(),
            &[rows as u32],
            grid,
        );
        sim.barrier();
    }
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    let y = sim.memory.read_floats(y_id);
    (0..rows).for_each(|row| near(&y[row * width..][..width], &expected(row, 1.0)));
    // Fused routing, a deferred norm, and sums of squares for the next step.
    let mut sim = Sim::new(&program).unwrap();
    // The divisors are close to 1, so that results are not small differences of large terms.
    let parts = floats(rows * 8, 6).iter().map(|x| 5.0 + x.abs()).collect::<Vec<f32>>();
    let factor = |row: usize| {
        let sum: f64 = parts[row * 8..][..8].iter().map(|x| f64::from(*x)).sum();
        1.0 / (sum / width as f64 + 1e-5).sqrt()
    };
    let gain = floats(width, 8);
    let [gate_up_id, down_id, logits_id, x_id, y_id, squares_id, gain_id, inner_bias_id, sum_bias_id] = [
        &in_cache(&gate_up, experts, record),
        &in_cache(&down, experts, record),
        &logits,
        &x,
        &before,
        &parts,
        &gain,
        &inner_bias,
        &sum_bias,
    ]
    .map(|numbers| sim.memory.floats(numbers).unwrap());
    let inner_id = sim.memory.unwritten(rows * chosen * inner * 4).unwrap();
    let routes_id = sim.memory.unwritten(rows * 2 * chosen * 4).unwrap();
    let [gained_id, left_id] = [width, 8].map(|count| sim.memory.unwritten(rows * count * 4).unwrap());
    let grid = [(2 * inner).div_ceil(8), chosen, rows].map(|x| x as _);
    let expert_slots = expert_slots(&mut sim, experts, |_| true);
    let bound: Vec<_> =
        [gate_up_id.read(), expert_slots.read(), logits_id.read(), routes_id.write(), x_id.read()]
            .into_iter()
            .chain(biased(inner_bias_id))
            .chain([squares_id.read(), inner_id.write()])
            .collect();
    sim.dispatch("kernel_2", &bound, &[rows as u32], grid);
    sim.barrier();
    let grid = [width.div_ceil(8), rows, 1].map(|x| x as _);
    let bound: Vec<_> = [down_id.read(), expert_slots.read(), routes_id.read(), inner_id.read()]
        .into_iter()
        .chain(biased(sum_bias_id))
        .chain([y_id.write(), gain_id.read(), gained_id.write(), left_id.write()])
        .collect();
    sim.dispatch("kernel_3", &bound, &[rows as u32], grid);
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    let [y, gained, left] = [y_id, gained_id, left_id].map(|id| sim.memory.read_floats(id));
    for row in 0..rows {
        let expected = expected(row, factor(row));
        near(&y[row * width..][..width], &expected);
        let times_gain: Vec<f64> = expected.iter().zip(&gain).map(|(y, gain)| y * f64::from(*gain)).collect();
        near(&gained[row * width..][..width], &times_gain);
        let left: f64 = left[row * 8..][..8].iter().map(|x| f64::from(*x)).sum();
        let all: f64 = expected.iter().map(|y| y * y).sum();
        assert!((left - all).abs() < 1e-4 * all, "{left} {all}");
    }
}
