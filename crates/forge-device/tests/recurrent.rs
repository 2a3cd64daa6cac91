//! CPU kernels of causal convolutions and delta rules against plain f64, for every ISA level of this machine:
//! outputs, and the recurrent state of each slot.

#[macro_use]
mod support;

use forge_device::cpu;
use forge_device::ops;
use forge_oracle::compare::to_f32 as rounded;
use forge_oracle::recurrent::{
    DeltaInputs, DeltaLayer, SLOTS, convolutions, convolve, delta_inputs, delta_rule, delta_rules,
    delta_steps, rows, step_rows,
};
use support::{
    Argument, Call, Random, absolute, bytes_of, compare, each_level, near, output, slots_and_positions,
    to_f32, to_f64,
};

#[test]
fn convolutions_read_the_conv_state_of_their_slot() {
    kernel_under_test!(SHAPE, ops::CausalConv, cpu::convolve);
    let mut random = Random(11);
    let batch = rows();
    for op in convolutions() {
        let (x, taps) = (random.floats(batch.rows() * op.width), random.floats(op.width * op.taps));
        let before = random.floats(SLOTS * op.taps * op.width);
        let mut state = to_f64(&before);
        let wanted = convolve(&op, &x, &taps, &batch, &mut state);
        let mut arguments = vec![("x", Argument::F32(x)), ("taps", Argument::F32(taps))];
        arguments.extend(slots_and_positions(&batch));
        arguments.extend([("conv_state", Argument::Output(bytes_of(&before))), ("y", output(wanted.len()))]);
        let call = Call::new("convolve", run, arguments);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let left = call.run(&[batch.rows()], level, threads);
            compare(
                &format!("conv_state {level:?} {op:?}"),
                &to_f32(&left[0]),
                &absolute(state.clone(), 0.0),
            );
            compare(&format!("{level:?} {op:?}"), &to_f32(&left[1]), &wanted);
        });
    }
}

#[test]
fn the_state_is_updated_row_by_row() {
    kernel_under_test!(SHAPE, ops::DeltaRule, cpu::delta_rule);
    let mut random = Random(12);
    let batch = rows();
    for op in delta_rules() {
        let given = delta_inputs(&mut random, &op, batch.rows());
        let [a_log, dt_bias] = [0; 2].map(|_| random.floats(op.heads));
        let before = random.floats(SLOTS * op.heads * op.values * op.keys);
        let mut state = to_f64(&before);
        let wanted = delta_rule(&op, &DeltaInputs::of(&given), [&a_log, &dt_bias], &batch, &mut state);
        let names = ["query", "key", "value", "dt", "beta"];
        let mut arguments: Vec<_> = names.into_iter().zip(given.map(Argument::F32)).collect();
        arguments.extend([("a_log", Argument::F32(a_log)), ("dt_bias", Argument::F32(dt_bias))]);
        arguments.extend(slots_and_positions(&batch));
        arguments.push(("recurrent_state", Argument::Output(bytes_of(&before))));
        arguments.push(("heads", output(wanted.len())));
        let call = Call::new("delta_rule", run, arguments);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let left = call.run(&[batch.rows()], level, threads);
            compare(&format!("recurrent_state {level:?} {op:?}"), &to_f32(&left[0]), &near(state.clone()));
            compare(&format!("{level:?} {op:?}"), &to_f32(&left[1]), &near(wanted.clone()));
        });
    }
}

/// The convolution, and the delta rule after it.
#[test]
fn delta_rule_convolves_updates_and_gates() {
    let mut random = Random(13);
    for step in delta_steps() {
        let layer = DeltaLayer::random(&mut random, step, rows());
        check_convolution(&layer);
        check_delta_rule(&layer);
    }
}

fn check_convolution(layer: &DeltaLayer) {
    kernel_under_test!(SHAPE, ops::CausalConv, cpu::convolve);
    let (op, wanted) = (layer.convolution(), layer.results());
    let mut arguments =
        vec![("x", Argument::F32(layer.inputs.clone())), ("taps", Argument::F32(layer.taps.clone()))];
    arguments.extend(slots_and_positions(&layer.batch));
    arguments.push(("conv_state", Argument::Output(bytes_of(&layer.conv_state))));
    arguments.push(("y", output(wanted.convolved.len())));
    let call = Call::new("convolve", run, arguments);
    *SHAPE.write().unwrap() = Some(op);
    each_level(|level, threads| {
        let left = call.run(&[layer.batch.rows()], level, threads);
        compare(&format!("conv_state {level:?} {op:?}"), &to_f32(&left[0]), &near(wanted.conv_state.clone()));
        compare(&format!("convolved {level:?} {op:?}"), &to_f32(&left[1]), &near(wanted.convolved.clone()));
    });
}

fn check_delta_rule(layer: &DeltaLayer) {
    kernel_under_test!(SHAPE, ops::DeltaRule, cpu::delta_rule);
    let (op, wanted) = (layer.step.rule, layer.results());
    let floats = |numbers: &[f32]| Argument::F32(numbers.to_vec());
    let mut arguments = vec![
        ("convolved", Argument::F32(rounded(wanted.convolved))),
        ("inputs", floats(&layer.inputs)),
        ("a_log", floats(&layer.a_log)),
        ("dt_bias", floats(&layer.dt_bias)),
        ("gain", floats(&layer.gain)),
    ];
    arguments.extend(slots_and_positions(&layer.batch));
    arguments.push(("recurrent_state", Argument::Output(bytes_of(&layer.recurrent_state))));
    arguments.push(("heads", output(wanted.heads.len())));
    let call = Call::new("delta_rule", run, arguments);
    *SHAPE.write().unwrap() = Some(op);
    each_level(|level, threads| {
        let left = call.run(&[layer.batch.rows()], level, threads);
        let state = near(wanted.recurrent_state.clone());
        compare(&format!("recurrent_state {level:?} {op:?}"), &to_f32(&left[0]), &state);
        compare(&format!("heads {level:?} {op:?}"), &to_f32(&left[1]), &near(wanted.heads.clone()));
    });
}

#[test]
fn delta_step_processes_one_row_of_a_slot() {
    kernel_under_test!(SHAPE, ops::DeltaStep, cpu::delta_step);
    let mut random = Random(14);
    for step in delta_steps() {
        for batch in step_rows() {
            let layer = DeltaLayer::random(&mut random, step, batch);
            let wanted = layer.results();
            let mut arguments = vec![
                ("inputs", Argument::F32(layer.inputs)),
                ("taps", Argument::F32(layer.taps)),
                ("a_log", Argument::F32(layer.a_log)),
                ("dt_bias", Argument::F32(layer.dt_bias)),
                ("gain", Argument::F32(layer.gain)),
            ];
            arguments.extend(slots_and_positions(&layer.batch));
            arguments.extend([
                ("conv_state", Argument::Output(bytes_of(&layer.conv_state))),
                ("recurrent_state", Argument::Output(bytes_of(&layer.recurrent_state))),
                ("heads", output(wanted.heads.len())),
            ]);
            let call = Call::new("delta_step", run, arguments);
            let wanted = [wanted.conv_state, wanted.recurrent_state, wanted.heads].map(near);
            *SHAPE.write().unwrap() = Some(step);
            each_level(|level, threads| {
                let left = call.run(&[layer.batch.rows()], level, threads);
                for (bytes, wanted) in left.iter().zip(&wanted) {
                    compare(&format!("{level:?} {step:?}"), &to_f32(bytes), wanted);
                }
            });
        }
    }
}
