//! Routing: experts and their weights.

use crate::execution::{Input, Kernels, words_of};
use crate::{expert_slots, words};
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsLayout, Kernel};
use forge_ops::{Activation, ExpertsInner, Format, Gating, Route};
use forge_oracle::Random;
use forge_oracle::moe::{ROUTED_ROWS, RouterInputs, routings};
use forge_sim::Sim;

#[test]
fn routing_matches_the_reference_exactly() {
    let mut random = Random(1);
    let routes = routings();
    let kernels = Kernels::of(routes.iter().cloned().map(Spec::Route));
    for (index, route) in routes.iter().enumerate() {
        let given = RouterInputs::random(&mut random, route);
        let inputs = [
            ("logits", Input::F32(&given.logits)),
            ("correction", Input::F32(&given.correction)),
            ("scale", Input::F32(&given.scale)),
            ("routes", Input::Uninitialized(ROUTED_ROWS * route.route_words() * 4)),
        ];
        let routes = kernels.run(index, &[("rows", ROUTED_ROWS)], &inputs);
        given.check(route, &words_of(&routes[0]));
    }
}

/// Expert kernels with fused routing write the same routes as the routing kernel, and each simdgroup computes
/// with the expert of its route.
#[test]
fn fused_routing_matches_the_routing_kernel() {
    let mut random = Random(2);
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
    for route in &routings() {
        let program = Kernels::of([Spec::Route(*route), Spec::ExpertsInner(inner(route))]).program;
        let (of_row, places) = (route.logits(), route.routes());
        let given = RouterInputs::random(&mut random, route);
        // The first column of an expert's gate and up matrices: 1 and the expert's index.
        let weights_of: Vec<f32> = (0..route.experts + route.shared)
            .rev()
            .flat_map(|expert| [1.0, expert as f32].map(|first| [vec![first], vec![0.0; 31]].concat()))
            .flatten()
            .collect();
        for logits in given.logits.chunks(of_row) {
            let mut sim = Sim::new(&program).unwrap();
            let [logits, correction, scale, weights, x] =
                [logits, &given.correction, &given.scale, &weights_of, &[1.0]]
                    .map(|of| sim.memory.floats(of).unwrap());
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
