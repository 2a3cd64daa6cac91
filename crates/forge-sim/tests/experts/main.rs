//! Expert kernels in the kernel checker, compared with plain arithmetic.

#[path = "../execution/mod.rs"]
mod execution;
mod routing;

use execution::Kernels;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsLayout, Kernel};
use forge_ops::{DeferredNorm, Epilogue, ExpertsInner, ExpertsSum, Format, Gating, Route, Squares};
use forge_oracle::compare::{sum, term, values_of};
use forge_oracle::moe::{ExpertLayer, PLAIN, Routes, in_records, routed};
use forge_oracle::norm::{gained, inverse_rms};
use forge_oracle::{Expected, Random, compare, relative};
use forge_sim::{BufferId, Sim};

/// The expert cache slots of the cached experts, in reverse order.
pub(crate) fn expert_slots(sim: &mut Sim<'_>, experts: usize, has_one: impl Fn(usize) -> bool) -> BufferId {
    let slot = |expert: usize| if has_one(expert) { (experts - 1 - expert) as u32 } else { u32::MAX };
    sim.memory.bytes(&(0..experts).map(slot).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap()
}

pub(crate) fn words(sim: &Sim<'_>, id: BufferId) -> Vec<u32> {
    sim.memory.read_floats(id).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn expert_kernels_match_the_reference() {
    computed(None, &PLAIN);
    // Half of the gate and up values are beyond the limit.
    computed(Some(Gating::Clamped { limit: 0.7, sharpness: 1.702 }), &PLAIN);
    // With shared experts.
    computed(None, &Route { experts: 6, chosen: 2, shared: 1, ..PLAIN });
    computed(None, &Route { experts: 5, chosen: 1, shared: 2, gated: true, factor: 2.5, ..PLAIN });
}

/// A layer, with biases if its gates are clamped.
fn computed(clamped: Option<Gating>, route: &Route) {
    let (rows, sizes @ [experts, chosen, width, inner]) = (2, [7, 3, 45, 22]);
    let mut random = Random(1);
    let mut layer = ExpertLayer::random(&mut random, Format::F32, sizes);
    if let Some(gating) = clamped {
        layer = ExpertLayer { gating, ..layer.biased(&mut random) };
    }
    let layout = ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 };
    let shared = route.shared;
    let part = |norm, route| {
        let op = ExpertsInner { shared, norm, route, ..layer.inner_op() };
        Spec::ExpertsInner(Kernel { op, layout })
    };
    let summed =
        |epilogue| Spec::ExpertsSum(Kernel { op: ExpertsSum { shared, ..layer.sum_op(epilogue) }, layout });
    let norm = Some(DeferredNorm { partials: 8, epsilon: 1e-5 });
    let squares = Epilogue::AddSquares(Squares { partials: 8, gain: true });
    let specs = [part(None, None), summed(Epilogue::Add), part(norm, Some(*route)), summed(squares)];
    let program = Kernels::of(specs).program;
    let [x, before] = [0; 2].map(|_| random.floats(rows * width));
    let logits = random.floats(rows * route.logits());
    let routed = logits.chunks(route.logits()).map(|logits| routed(route, logits, &[], &[]));
    let routes: Vec<Vec<(usize, f32)>> =
        routed.map(|row| row.into_iter().map(|(expert, weight)| (expert, weight as f32)).collect()).collect();
    let routes = Routes(routes);
    let expected = |factors: &[f64]| -> Vec<Expected> {
        let sums = layer.sum(&layer.inner(&x, &routes, factors), &routes);
        sums.into_iter().zip(&before).map(|(of_row, before)| sum(of_row, term(*before))).collect()
    };
    let near = |found: &[f32], expected: &[Expected]| {
        compare(route, found, &relative(values_of(expected), 1.0), 2e-5);
    };
    let stack = |sim: &mut Sim<'_>, matrix| {
        let plane = &layer.matrix(matrix).planes[0];
        sim.memory.bytes(&in_records(plane, experts, layer.record(), true)).unwrap()
    };
    let bias = |sim: &mut Sim<'_>, matrix: usize| {
        layer.biases.as_ref().map(|biases| sim.memory.floats(&biases[matrix]).unwrap().read())
    };
    // Several rows, with the routes given.
    let mut sim = Sim::new(&program).unwrap();
    let [gate_up, down] = [0, 1].map(|matrix| stack(&mut sim, matrix));
    let [inner_bias, sum_bias] = [0, 1].map(|matrix| bias(&mut sim, matrix));
    let routes_id = sim.memory.words(&routes.words()).unwrap();
    let [x_id, y_id] = [&x, &before].map(|numbers| sim.memory.floats(numbers).unwrap());
    let inner_id = sim.memory.unwritten(rows * chosen * inner * 4).unwrap();
    let grid = [(2 * inner).div_ceil(8), chosen, rows].map(|x| x as _);
    // First the even experts are cached, then the odd ones; a row is complete once all its experts have been.
    for turn in 0..2 {
        let expert_slots = expert_slots(&mut sim, experts, |expert| expert % 2 == turn);
        let mut bound = vec![gate_up.read(), expert_slots.read(), routes_id.read(), x_id.read()];
        bound.extend(inner_bias);
        bound.push(inner_id.write());
        sim.dispatch("kernel_0", &bound, &[rows as u32], grid);
        sim.barrier();
    }
    let grid = [width.div_ceil(8), rows, 1].map(|x| x as _);
    let experts_of = |row: &Vec<(usize, f32)>| row.iter().map(|(expert, _)| *expert).collect::<Vec<_>>();
    let mut turns: Vec<Vec<usize>> = routes.0.iter().map(experts_of).collect();
    turns.iter_mut().for_each(|experts| experts.sort_unstable());
    turns.sort_unstable();
    turns.dedup();
    for turn in turns {
        let expert_slots = expert_slots(&mut sim, experts, |expert| turn.contains(&expert));
        let mut bound = vec![down.read(), expert_slots.read(), routes_id.read(), inner_id.read()];
        bound.extend(sum_bias);
        bound.push(y_id.write());
        sim.dispatch("kernel_1", &bound, &[rows as u32], grid);
        sim.barrier();
    }
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    near(&sim.memory.read_floats(y_id), &expected(&[]));
    // Fused routing, a deferred norm, and sums of squares for the next step.
    let mut sim = Sim::new(&program).unwrap();
    // The divisors are close to 1, so that results are not small differences of large terms.
    let parts: Vec<f32> = random.magnitudes(rows * 8).iter().map(|x| 5.0 + x).collect();
    let of_row = |parts: &[f32]| inverse_rms(parts.iter().map(|x| f64::from(*x)).sum(), width, 1e-5);
    let factors: Vec<f64> = parts.chunks_exact(8).map(of_row).collect();
    let gain = random.floats(width);
    let [gate_up, down] = [0, 1].map(|matrix| stack(&mut sim, matrix));
    let [inner_bias, sum_bias] = [0, 1].map(|matrix| bias(&mut sim, matrix));
    let [logits_id, x_id, y_id, squares_id, gain_id] =
        [&logits, &x, &before, &parts, &gain].map(|numbers| sim.memory.floats(numbers).unwrap());
    let inner_id = sim.memory.unwritten(rows * chosen * inner * 4).unwrap();
    let routes_id = sim.memory.unwritten(rows * 2 * chosen * 4).unwrap();
    let [gained_id, left_id] = [width, 8].map(|count| sim.memory.unwritten(rows * count * 4).unwrap());
    let grid = [(2 * inner).div_ceil(8), chosen, rows].map(|x| x as _);
    let expert_slots = expert_slots(&mut sim, experts, |_| true);
    let mut bound =
        vec![gate_up.read(), expert_slots.read(), logits_id.read(), routes_id.write(), x_id.read()];
    bound.extend(inner_bias);
    bound.extend([squares_id.read(), inner_id.write()]);
    sim.dispatch("kernel_2", &bound, &[rows as u32], grid);
    sim.barrier();
    let grid = [width.div_ceil(8), rows, 1].map(|x| x as _);
    let mut bound = vec![down.read(), expert_slots.read(), routes_id.read(), inner_id.read()];
    bound.extend(sum_bias);
    bound.extend([y_id.write(), gain_id.read(), gained_id.write(), left_id.write()]);
    sim.dispatch("kernel_3", &bound, &[rows as u32], grid);
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    let [y, found_gained, left] = [y_id, gained_id, left_id].map(|id| sim.memory.read_floats(id));
    let expected = expected(&factors);
    near(&y, &expected);
    for (row, expected) in expected.chunks_exact(width).enumerate() {
        near(&found_gained[row * width..][..width], &gained(expected, &gain));
        let left: f64 = left[row * 8..][..8].iter().map(|x| f64::from(*x)).sum();
        let all: f64 = values_of(expected).map(|y| y * y).sum();
        assert!((left - all).abs() < 1e-4 * all, "{left} {all}");
    }
}
