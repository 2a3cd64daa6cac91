//! Causal convolutions and delta rules: outputs, and the recurrent state of each slot.

use crate::{Input, Kernels, Random, SLOTS, bytes_of, compare, to_f32, to_f64};
use forge_kernels::Spec;
use forge_kernels::spec::{ChunkLayout, Kernel};
use forge_ops::{Activation, CausalConv, DeltaChunks, DeltaRule, DeltaStep, Format, GatedRmsNorm};

#[path = "../../../forge-device/tests/support/mixer.rs"]
mod mixer;

/// Rows of two slots: one continues at position 5, is interrupted by one that starts, and continues; the
/// other continues for long.
const ROWS: [(u32, u32); 27] = {
    let mut rows = [(1, 5), (1, 6), (0, 0), (0, 1), (0, 2), (1, 7), (0, 3)].as_slice();
    let mut all = [(0, 0); 27];
    let mut row = 0;
    while row < all.len() {
        all[row] = match rows {
            [first, rest @ ..] => {
                rows = rest;
                *first
            }
            [] => (0, row as u32 - 3),
        };
        row += 1;
    }
    all
};

fn column(of: impl Fn(&(u32, u32)) -> u32) -> Vec<u32> {
    ROWS.iter().map(of).collect()
}

#[test]
fn convolution_continues_from_the_state_of_its_slot() {
    let mut random = Random(11);
    let shapes = [(300, 4), (32, 2), (50, 5)].map(|(width, taps)| CausalConv {
        width,
        taps,
        pitch: width,
        activation: None,
    });
    let kernels = Kernels::of(shapes.iter().cloned().map(Spec::Convolve));
    for (index, shape) in shapes.iter().enumerate() {
        let CausalConv { width, taps: count, .. } = *shape;
        let (x, taps) = (random.floats(ROWS.len() * width), random.floats(width * count));
        let before = random.floats(SLOTS * count * width);
        let bindings = [
            ("x", Input::F32(&x)),
            ("taps", Input::F32(&taps)),
            ("slots", Input::U32(&column(|row| row.0))),
            ("positions", Input::U32(&column(|row| row.1))),
            ("conv_state", Input::Bytes(&bytes_of(&before, Format::F32))),
            ("y", Input::Uninitialized(ROWS.len() * width * 4)),
        ];
        let left = kernels.run(index, &[("rows", ROWS.len())], &bindings);
        let (mut conv_state, mut expected) = (to_f64(&before), Vec::new());
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            let (slot, position) = (*slot as usize, *position as usize);
            for channel in 0..width {
                let place = |position: usize| (slot * count + position % count) * width + channel;
                conv_state[place(position)] = f64::from(x[row * width + channel]);
                let seen = (0..count.min(position + 1)).map(|back| {
                    conv_state[place(position - back)] * f64::from(taps[(channel + 1) * count - 1 - back])
                });
                expected.push(seen.sum());
            }
        }
        compare(shape, &to_f32(&left[0], Format::F32), &conv_state, 0.0);
        compare(shape, &to_f32(&left[1], Format::F32), &expected, 1e-6);
    }
}

#[test]
fn delta_rule_matches_the_reference_row_by_row() {
    let mut random = Random(12);
    let shapes = [(2, 4, 10, 6), (1, 1, 16, 8), (3, 3, 128, 32), (1, 3, 7, 11), (2, 2, 20, 16)].map(
        |(key_heads, heads, keys, values)| DeltaRule {
            key_heads,
            heads,
            keys,
            values,
            scale: 0.25,
            epsilon: 1e-6,
            gated: None,
        },
    );
    let kernels = Kernels::of(shapes.iter().flat_map(all_variants));
    for (index, shape) in shapes.iter().enumerate() {
        let DeltaRule { key_heads, heads, keys, values, scale, epsilon, .. } = *shape;
        let rows = ROWS.len();
        let [query, key] = [0; 2].map(|_| random.floats(rows * key_heads * keys));
        let value = random.floats(rows * heads * values);
        // From full decay to none: time steps from -200 to 200.
        let dt: Vec<f32> = random.floats(rows * heads).iter().map(|x| 200.0 * x * x * x).collect();
        let beta: Vec<f32> = random.floats(rows * heads).iter().map(|x| x.abs()).collect();
        let [a_log, dt_bias] = [0; 2].map(|_| random.floats(heads));
        let before = random.floats(SLOTS * heads * values * keys);
        let bindings = [
            ("query", Input::F32(&query)),
            ("key", Input::F32(&key)),
            ("value", Input::F32(&value)),
            ("dt", Input::F32(&dt)),
            ("beta", Input::F32(&beta)),
            ("a_log", Input::F32(&a_log)),
            ("dt_bias", Input::F32(&dt_bias)),
            ("slots", Input::U32(&column(|row| row.0))),
            ("positions", Input::U32(&column(|row| row.1))),
            ("recurrent_state", Input::Bytes(&bytes_of(&before, Format::F32))),
            ("heads", Input::Uninitialized(rows * heads * values * 4)),
        ];
        let (mut state, mut expected) = (to_f64(&before), vec![0.0; rows * heads * values]);
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            for head in 0..heads {
                let unit = |x: &[f32]| -> Vec<f64> {
                    let part = to_f64(&x[(row * key_heads + head / (heads / key_heads)) * keys..][..keys]);
                    let length = (part.iter().map(|x| x * x).sum::<f64>() + f64::from(epsilon)).sqrt();
                    part.iter().map(|x| x / length).collect()
                };
                let (q, k, of_head) = (unit(&query), unit(&key), row * heads + head);
                let softplus = (f64::from(dt[of_head]) + f64::from(dt_bias[head])).exp().ln_1p();
                let decay = (-f64::from(a_log[head]).exp() * softplus).exp();
                let columns = &mut state[(*slot as usize * heads + head) * values * keys..][..values * keys];
                for (number, column) in columns.chunks_exact_mut(keys).enumerate() {
                    let kept = if *position == 0 { 0.0 } else { decay };
                    column.iter_mut().for_each(|s| *s *= kept);
                    let ask =
                        |column: &[f64], by: &[f64]| column.iter().zip(by).map(|(s, x)| s * x).sum::<f64>();
                    let unknown = f64::from(value[of_head * values + number]) - ask(column, &k);
                    let delta = f64::from(beta[of_head]) * unknown;
                    column.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
                    expected[of_head * values + number] = f64::from(scale) * ask(column, &q);
                }
            }
        }
        for variant in 0..VARIANTS {
            let left = kernels.run(VARIANTS * index + variant, &[("rows", rows)], &bindings);
            compare(shape, &to_f32(&left[0], Format::F32), &state, 4e-6);
            compare(shape, &to_f32(&left[1], Format::F32), &expected, 4e-6);
        }
    }
}

/// A delta rule row by row, and in chunks of each size.
fn all_variants(rule: &DeltaRule) -> [Spec; VARIANTS] {
    let chunks =
        |rows| Spec::DeltaChunks(Kernel { op: DeltaChunks { rule: *rule }, layout: ChunkLayout { rows } });
    [Spec::DeltaRule(*rule), chunks(8), chunks(16)]
}

const VARIANTS: usize = 3;

/// Mixers with and without shared key heads, at sizes that are and are not multiples of the vector width.
fn mixers() -> [mixer::Shape; 5] {
    [(2, 4, 10, 6), (1, 1, 16, 8), (2, 2, 128, 32), (1, 3, 7, 11), (1, 2, 12, 3)].map(
        |(key_heads, heads, keys, values)| {
            let (scale, epsilon, norm_epsilon) = (0.25, 1e-6, 1e-5);
            mixer::Shape { key_heads, heads, keys, values, taps: 4, scale, epsilon, norm_epsilon }
        },
    )
}

fn rule(shape: &mixer::Shape) -> DeltaRule {
    let mixer::Shape { key_heads, heads, keys, values, scale, epsilon, norm_epsilon, .. } = *shape;
    DeltaRule { key_heads, heads, keys, values, scale, epsilon, gated: Some(norm_epsilon) }
}

fn weights(random: &mut Random, shape: &mixer::Shape) -> mixer::Weights {
    mixer::Weights {
        taps: random.floats(shape.channels() * shape.taps),
        a_log: random.floats(shape.heads),
        dt_bias: random.floats(shape.heads),
        gain: random.floats(shape.values),
    }
}

#[test]
fn gated_delta_net_layer_matches_the_reference() {
    let mut random = Random(13);
    let convolve = |shape: &mixer::Shape| {
        let (width, taps, pitch) = (shape.channels(), shape.taps, shape.inputs());
        Spec::Convolve(CausalConv { width, taps, pitch, activation: Some(Activation::Silu) })
    };
    let through = |shape: &mixer::Shape| {
        let (heads, values, pitch, first) = (shape.heads, shape.values, shape.inputs(), shape.channels());
        Spec::GatedRmsNorm(GatedRmsNorm { heads, values, pitch, first, epsilon: shape.norm_epsilon })
    };
    let each = |shape: &mixer::Shape| {
        [convolve(shape), through(shape)].into_iter().chain(all_variants(&rule(shape))).collect::<Vec<_>>()
    };
    let kernels = Kernels::of(mixers().iter().flat_map(each));
    let [slots, positions] = [column(|row| row.0), column(|row| row.1)];
    for (index, shape) in mixers().iter().enumerate() {
        let (weights, rows) = (weights(&mut random, shape), ROWS.len());
        let inputs = random.floats(rows * shape.inputs());
        let of_slot = shape.taps * shape.channels();
        let [conv_state_before, before] =
            [SLOTS * of_slot, SLOTS * shape.recurrent_state()].map(|count| random.floats(count));
        let (mut conv_state, mut state) = (to_f64(&conv_state_before), to_f64(&before));
        let (mut convolved, mut expected) = (Vec::new(), Vec::new());
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            let (slot, position) = (*slot as usize, *position as usize);
            let row = &inputs[row * shape.inputs()..(row + 1) * shape.inputs()];
            let conv_state = &mut conv_state[slot * of_slot..(slot + 1) * of_slot];
            let convolved_row = mixer::convolve(shape, &weights.taps, row, conv_state, position);
            let state = &mut state[slot * shape.recurrent_state()..(slot + 1) * shape.recurrent_state()];
            expected.extend(mixer::update_state(
                shape,
                &weights,
                [&convolved_row, &to_f64(row)],
                state,
                position,
            ));
            convolved.extend(convolved_row);
        }
        let scalars = [("rows", rows)];
        let bindings = [
            ("x", Input::F32(&inputs)),
            ("taps", Input::F32(&weights.taps)),
            ("slots", Input::U32(&slots)),
            ("positions", Input::U32(&positions)),
            ("conv_state", Input::Bytes(&bytes_of(&conv_state_before, Format::F32))),
            ("y", Input::Uninitialized(convolved.len() * 4)),
        ];
        let own = index * (VARIANTS + 2);
        let left = kernels.run(own, &scalars, &bindings);
        compare(shape, &to_f32(&left[0], Format::F32), &conv_state, 0.0);
        compare(shape, &to_f32(&left[1], Format::F32), &convolved, 1e-6);

        let as_f32: Vec<f32> = convolved.iter().map(|x| *x as f32).collect();
        let held = bytes_of(&before, Format::F32);
        for variant in 0..VARIANTS {
            let mut bindings = vec![
                ("convolved", Input::F32(&as_f32)),
                ("inputs", Input::F32(&inputs)),
                ("a_log", Input::F32(&weights.a_log)),
                ("dt_bias", Input::F32(&weights.dt_bias)),
                ("slots", Input::U32(&slots)),
                ("positions", Input::U32(&positions)),
                ("recurrent_state", Input::Bytes(&held)),
                ("heads", Input::Uninitialized(expected.len() * 4)),
            ];
            // The row-by-row kernel also norms the heads; the chunked one leaves that to a separate step.
            if variant == 0 {
                bindings.insert(4, ("gain", Input::F32(&weights.gain)));
            }
            let left = kernels.run(own + 2 + variant, &scalars, &bindings);
            compare(shape, &to_f32(&left[0], Format::F32), &state, 4e-6);
            let heads = if variant == 0 {
                to_f32(&left[1], Format::F32)
            } else {
                let bindings = [
                    ("inputs", Input::F32(&inputs)),
                    ("gain", Input::F32(&weights.gain)),
                    ("heads", Input::Bytes(&left[1])),
                ];
                to_f32(&kernels.run(own + 1, &scalars, &bindings)[0], Format::F32)
            };
            compare(shape, &heads, &expected, 4e-6);
        }
    }
}

#[test]
fn single_step_delta_net_matches_the_reference() {
    let mut random = Random(14);
    let step = |shape: &mixer::Shape| Spec::DeltaStep(DeltaStep { rule: rule(shape), taps: shape.taps });
    let kernels = Kernels::of(mixers().iter().map(step));
    for (index, shape) in mixers().iter().enumerate() {
        // One slot continues, the other starts.
        for rows in [[(1_usize, 5_usize), (0, 0)], [(0, 2), (1, 300)]] {
            let weights = weights(&mut random, shape);
            let inputs = random.floats(rows.len() * shape.inputs());
            let of_slot = shape.taps * shape.channels();
            let [conv_state_before, before] =
                [SLOTS * of_slot, SLOTS * shape.recurrent_state()].map(|count| random.floats(count));
            let (mut conv_state, mut state, mut expected) =
                (to_f64(&conv_state_before), to_f64(&before), Vec::new());
            for ((slot, position), row) in rows.iter().zip(inputs.chunks_exact(shape.inputs())) {
                let conv_state = &mut conv_state[slot * of_slot..(slot + 1) * of_slot];
                let convolved_row = mixer::convolve(shape, &weights.taps, row, conv_state, *position);
                let state = &mut state[slot * shape.recurrent_state()..(slot + 1) * shape.recurrent_state()];
                expected.extend(mixer::update_state(
                    shape,
                    &weights,
                    [&convolved_row, &to_f64(row)],
                    state,
                    *position,
                ));
            }
            let bindings = [
                ("inputs", Input::F32(&inputs)),
                ("taps", Input::F32(&weights.taps)),
                ("a_log", Input::F32(&weights.a_log)),
                ("dt_bias", Input::F32(&weights.dt_bias)),
                ("gain", Input::F32(&weights.gain)),
                ("slots", Input::U32(&rows.map(|row| row.0 as u32))),
                ("positions", Input::U32(&rows.map(|row| row.1 as u32))),
                ("conv_state", Input::Bytes(&bytes_of(&conv_state_before, Format::F32))),
                ("recurrent_state", Input::Bytes(&bytes_of(&before, Format::F32))),
                ("heads", Input::Uninitialized(expected.len() * 4)),
            ];
            let left = kernels.run(index, &[("rows", rows.len())], &bindings);
            for (bytes, (expected, bound)) in
                left.iter().zip([(&conv_state, 0.0), (&state, 4e-6), (&expected, 4e-6)])
            {
                compare(shape, &to_f32(bytes, Format::F32), expected, bound);
            }
        }
    }
}
