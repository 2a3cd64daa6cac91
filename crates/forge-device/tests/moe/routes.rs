//! The routing kernel against its definition: selected experts and their weights.

use super::support::{Argument, Call, Random, each_level, output, words_of};
use forge_device::cpu::{self};
use forge_device::ops::Route;
use forge_oracle::moe::{ROUTED_ROWS, RouterInputs, routings};

#[test]
fn routes_match_the_definition() {
    kernel_under_test!(SHAPE, Route, cpu::route);
    let mut random = Random(3);
    for route in routings() {
        let given = RouterInputs::random(&mut random, &route);
        let floats = |numbers: &[f32]| Argument::F32(numbers.to_vec());
        let mut arguments = vec![("logits", floats(&given.logits))];
        arguments.extend(route.correction.then(|| ("correction", floats(&given.correction))));
        arguments.extend(route.scale.then(|| ("scale", floats(&given.scale))));
        arguments.push(("routes", output(ROUTED_ROWS * route.route_words())));
        let call = Call::new("route", run, arguments);
        *SHAPE.write().unwrap() = Some(route);
        each_level(|level, threads| {
            given.check(&route, &words_of(&call.run(&[ROUTED_ROWS], level, threads)[0]));
        });
    }
}
