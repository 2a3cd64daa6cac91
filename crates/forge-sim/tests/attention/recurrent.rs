//! Causal convolutions and delta rules: outputs, and the recurrent state of each slot.

use crate::{Input, Kernels, compare};
use forge_kernels::Spec;
use forge_kernels::spec::{ChunkLayout, Kernel};
use forge_ops::{DeltaChunks, DeltaRule};
use forge_oracle::compare::to_f32 as rounded;
use forge_oracle::recurrent::{
    DeltaInputs, DeltaLayer, SLOTS, convolutions, convolve, delta_inputs, delta_rule, delta_rules,
    delta_steps, rows, step_rows,
};
use forge_oracle::{Random, to_f64, values_of};

/// The bytes of a state.
fn bytes(state: &[f32]) -> Vec<u8> {
    state.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn convolution_continues_from_the_state_of_its_slot() {
    let mut random = Random(11);
    let (batch, samples) = (rows(), convolutions());
    let kernels = Kernels::of(samples.map(Spec::Convolve));
    for (index, op) in samples.iter().enumerate() {
        let (x, taps) = (random.floats(batch.rows() * op.width), random.floats(op.width * op.taps));
        let before = random.floats(SLOTS * op.taps * op.width);
        let bindings = [
            ("x", Input::F32(&x)),
            ("taps", Input::F32(&taps)),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("conv_state", Input::Bytes(&bytes(&before))),
            ("y", Input::Uninitialized(x.len() * 4)),
        ];
        let left = kernels.run(index, &[("rows", batch.rows())], &bindings);
        let mut state = to_f64(&before);
        let expected = convolve(op, &x, &taps, &batch, &mut state);
        compare(op, &left[0], state, 0.0);
        compare(op, &left[1], values_of(&expected), 1e-6);
    }
}

/// A delta rule row by row, and in chunks of each size.
fn all_variants(rule: &DeltaRule) -> [Spec; VARIANTS] {
    let chunks =
        |rows| Spec::DeltaChunks(Kernel { op: DeltaChunks { rule: *rule }, layout: ChunkLayout { rows } });
    [Spec::DeltaRule(*rule), chunks(8), chunks(16)]
}

const VARIANTS: usize = 3;

#[test]
fn delta_rule_matches_the_reference_row_by_row() {
    let mut random = Random(12);
    let (batch, samples) = (rows(), delta_rules());
    let kernels = Kernels::of(samples.iter().flat_map(all_variants));
    for (index, op) in samples.iter().enumerate() {
        let rows = batch.rows();
        let given = delta_inputs(&mut random, op, rows);
        let [a_log, dt_bias] = [0; 2].map(|_| random.floats(op.heads));
        let before = random.floats(SLOTS * op.heads * op.values * op.keys);
        let [query, key, value, dt, beta] = given.each_ref().map(|numbers| Input::F32(numbers));
        let bindings = [
            ("query", query),
            ("key", key),
            ("value", value),
            ("dt", dt),
            ("beta", beta),
            ("a_log", Input::F32(&a_log)),
            ("dt_bias", Input::F32(&dt_bias)),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("recurrent_state", Input::Bytes(&bytes(&before))),
            ("heads", Input::Uninitialized(rows * op.heads * op.values * 4)),
        ];
        let mut state = to_f64(&before);
        let expected = delta_rule(op, &DeltaInputs::of(&given), [&a_log, &dt_bias], &batch, &mut state);
        for variant in 0..VARIANTS {
            let left = kernels.run(VARIANTS * index + variant, &[("rows", rows)], &bindings);
            compare(op, &left[0], state.iter().copied(), 4e-6);
            compare(op, &left[1], expected.iter().copied(), 4e-6);
        }
    }
}

#[test]
fn gated_delta_net_layer_matches_the_reference() {
    let mut random = Random(13);
    let layers = delta_steps().map(|step| DeltaLayer::random(&mut random, step, rows()));
    let kernels = Kernels::of(layers.iter().flat_map(|layer| {
        let own = [Spec::Convolve(layer.convolution()), Spec::GatedRmsNorm(layer.gated_norm())];
        own.into_iter().chain(all_variants(&layer.step.rule))
    }));
    for (index, layer) in layers.iter().enumerate() {
        let (op, batch, expected) = (&layer.step, &layer.batch, layer.results());
        let scalars = [("rows", batch.rows())];
        let bindings = [
            ("x", Input::F32(&layer.inputs)),
            ("taps", Input::F32(&layer.taps)),
            ("slots", Input::U32(&batch.slots)),
            ("positions", Input::U32(&batch.positions)),
            ("conv_state", Input::Bytes(&bytes(&layer.conv_state))),
            ("y", Input::Uninitialized(expected.convolved.len() * 4)),
        ];
        let own = index * (VARIANTS + 2);
        let left = kernels.run(own, &scalars, &bindings);
        compare(op, &left[0], expected.conv_state, 0.0);
        compare(op, &left[1], expected.convolved.iter().copied(), 1e-6);

        let convolved = rounded(expected.convolved);
        let before = bytes(&layer.recurrent_state);
        for variant in 0..VARIANTS {
            let mut bindings = vec![
                ("convolved", Input::F32(&convolved)),
                ("inputs", Input::F32(&layer.inputs)),
                ("a_log", Input::F32(&layer.a_log)),
                ("dt_bias", Input::F32(&layer.dt_bias)),
                ("slots", Input::U32(&batch.slots)),
                ("positions", Input::U32(&batch.positions)),
                ("recurrent_state", Input::Bytes(&before)),
                ("heads", Input::Uninitialized(expected.heads.len() * 4)),
            ];
            // The row-by-row kernel also norms the heads; the chunked one leaves that to a separate step.
            if variant == 0 {
                bindings.insert(4, ("gain", Input::F32(&layer.gain)));
            }
            let mut left = kernels.run(own + 2 + variant, &scalars, &bindings);
            compare(op, &left[0], expected.recurrent_state.iter().copied(), 4e-6);
            if variant > 0 {
                let bindings = [
                    ("inputs", Input::F32(&layer.inputs)),
                    ("gain", Input::F32(&layer.gain)),
                    ("heads", Input::Bytes(&left[1])),
                ];
                left[1] = kernels.run(own + 1, &scalars, &bindings).swap_remove(0);
            }
            compare(op, &left[1], expected.heads.iter().copied(), 4e-6);
        }
    }
}

#[test]
fn single_step_delta_net_matches_the_reference() {
    let mut random = Random(14);
    let kernels = Kernels::of(delta_steps().map(Spec::DeltaStep));
    for (index, step) in delta_steps().into_iter().enumerate() {
        for batch in step_rows() {
            let layer = DeltaLayer::random(&mut random, step, batch);
            let expected = layer.results();
            let bindings = [
                ("inputs", Input::F32(&layer.inputs)),
                ("taps", Input::F32(&layer.taps)),
                ("a_log", Input::F32(&layer.a_log)),
                ("dt_bias", Input::F32(&layer.dt_bias)),
                ("gain", Input::F32(&layer.gain)),
                ("slots", Input::U32(&layer.batch.slots)),
                ("positions", Input::U32(&layer.batch.positions)),
                ("conv_state", Input::Bytes(&bytes(&layer.conv_state))),
                ("recurrent_state", Input::Bytes(&bytes(&layer.recurrent_state))),
                ("heads", Input::Uninitialized(expected.heads.len() * 4)),
            ];
            let left = kernels.run(index, &[("rows", layer.batch.rows())], &bindings);
            compare(&step, &left[0], expected.conv_state, 0.0);
            compare(&step, &left[1], expected.recurrent_state, 4e-6);
            compare(&step, &left[2], expected.heads, 4e-6);
        }
    }
}
