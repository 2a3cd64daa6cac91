//! CPU kernels of causal convolutions and delta rules against plain f64, for every ISA level of this machine:
//! outputs, and the recurrent state of each slot.

#[macro_use]
mod support;
#[path = "support/mixer.rs"]
mod mixer;

use forge_device::cpu;
use forge_device::ops;
use support::{Argument, NAN, Random, bytes_of, compare, each_level, kernel, run_kernel, to_f32};

/// Rows of two slots: one continues at position 5, is interrupted by one that starts, and continues.
const ROWS: [(u32, u32); 7] = [(1, 5), (1, 6), (0, 0), (0, 1), (0, 2), (1, 7), (0, 3)];
const SLOTS: usize = 2;
const SCALARS: [u32; 1] = [ROWS.len() as u32];

fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

fn column(of: impl Fn(&(u32, u32)) -> u32) -> Argument {
    Argument::U32(ROWS.iter().map(of).collect())
}

/// The tolerance of values of about 1: four ULP of f32, for terms that cancel.
fn near(numbers: &[f64]) -> Vec<(f64, f64)> {
    numbers.iter().map(|x| (*x, 4.0_f64.max(x.abs()))).collect()
}

#[test]
fn convolutions_read_the_conv_state_of_their_slot() {
    kernel_under_test!(SHAPE, ops::CausalConv, cpu::convolve);
    let mut random = Random(11);
    for (width, count) in [(300, 4), (1, 2), (50, 5)] {
        let (x, taps) = (random.floats(ROWS.len() * width), random.floats(width * count));
        let before = random.floats(SLOTS * count * width);
        let mut conv_state: Vec<(f64, f64)> = to_f64(&before).into_iter().map(|x| (x, 0.0)).collect();
        let mut wanted = Vec::new();
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            let (slot, position) = (*slot as usize, *position as usize);
            for channel in 0..width {
                let place = |position: usize| (slot * count + position % count) * width + channel;
                conv_state[place(position)].0 = f64::from(x[row * width + channel]);
                let term = |back: usize| {
                    conv_state[place(position - back)].0 * f64::from(taps[(channel + 1) * count - 1 - back])
                };
                let terms: Vec<f64> = (0..count.min(position + 1)).map(term).collect();
                wanted.push((terms.iter().sum(), terms.iter().map(|term| term.abs()).sum()));
            }
        }
        let kernel = kernel("convolve", vec!["x", "taps", "slots", "positions", "conv_state", "y"], run);
        let arguments = [
            Argument::F32(x),
            Argument::F32(taps),
            column(|row| row.0),
            column(|row| row.1),
            Argument::Output(bytes_of(&before)),
            Argument::Output(NAN.repeat(ROWS.len() * width)),
        ];
        *SHAPE.write().unwrap() =
            Some(ops::CausalConv { width, taps: count, pitch: width, activation: None });
        each_level(|level, threads| {
            let left = run_kernel(kernel, &arguments, &SCALARS, level, threads);
            compare(&format!("conv_state {level:?} {width}"), &to_f32(&left[0]), &conv_state);
            compare(&format!("{level:?} {width}"), &to_f32(&left[1]), &wanted);
        });
    }
}

#[test]
fn the_state_is_updated_row_by_row() {
    kernel_under_test!(SHAPE, ops::DeltaRule, cpu::delta_rule);
    let mut random = Random(12);
    for (key_heads, heads, keys, values) in [(2, 4, 10, 6), (1, 1, 16, 8), (3, 3, 128, 32), (1, 3, 7, 11)] {
        let (scale, epsilon, rows) = (0.25, 1e-6, ROWS.len());
        let [query, key] = [0; 2].map(|_| random.floats(rows * key_heads * keys));
        let value = random.floats(rows * heads * values);
        // From full decay to none: time steps from -200 to 200.
        let dt: Vec<f32> = random.floats(rows * heads).iter().map(|x| 200.0 * x * x * x).collect();
        let beta: Vec<f32> = random.floats(rows * heads).iter().map(|x| x.abs()).collect();
        let [a_log, dt_bias] = [0; 2].map(|_| random.floats(heads));
        let before = random.floats(SLOTS * heads * values * keys);
        let (mut recurrent_state, mut output) = (to_f64(&before), vec![0.0; rows * heads * values]);
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
                let columns =
                    &mut recurrent_state[(*slot as usize * heads + head) * values * keys..][..values * keys];
                for (number, column) in columns.chunks_exact_mut(keys).enumerate() {
                    let kept = if *position == 0 { 0.0 } else { decay };
                    column.iter_mut().for_each(|s| *s *= kept);
                    let dot =
                        |column: &[f64], by: &[f64]| column.iter().zip(by).map(|(s, x)| s * x).sum::<f64>();
                    let difference = f64::from(value[of_head * values + number]) - dot(column, &k);
                    let update = f64::from(beta[of_head]) * difference;
                    column.iter_mut().zip(&k).for_each(|(s, k)| *s += update * k);
                    output[of_head * values + number] = f64::from(scale) * dot(column, &q);
                }
            }
        }
        let names = [
            "query",
            "key",
            "value",
            "dt",
            "beta",
            "a_log",
            "dt_bias",
            "slots",
            "positions",
            "recurrent_state",
            "heads",
        ];
        let kernel = kernel("delta_rule", names.to_vec(), run);
        let inputs = [query, key, value, dt, beta, a_log, dt_bias].map(Argument::F32);
        let outputs =
            [Argument::Output(bytes_of(&before)), Argument::Output(NAN.repeat(rows * heads * values))];
        let arguments: Vec<Argument> =
            inputs.into_iter().chain([column(|row| row.0), column(|row| row.1)]).chain(outputs).collect();
        *SHAPE.write().unwrap() =
            Some(ops::DeltaRule { key_heads, heads, keys, values, scale, epsilon, gated: None });
        each_level(|level, threads| {
            let left = run_kernel(kernel, &arguments, &SCALARS, level, threads);
            compare(&format!("recurrent_state {level:?} {keys}"), &to_f32(&left[0]), &near(&recurrent_state));
            compare(&format!("{level:?} {keys}"), &to_f32(&left[1]), &near(&output));
        });
    }
}

/// Mixers with and without shared key heads, at sizes that are and are not multiples of the vector width.
fn mixers() -> [mixer::Shape; 4] {
    [(2, 4, 10, 6), (1, 1, 16, 8), (2, 2, 128, 32), (1, 3, 7, 11)].map(|(key_heads, heads, keys, values)| {
        let (scale, epsilon, norm_epsilon) = (0.25, 1e-6, 1e-5);
        mixer::Shape { key_heads, heads, keys, values, taps: 4, scale, epsilon, norm_epsilon }
    })
}

fn weights(random: &mut Random, shape: &mixer::Shape) -> mixer::Weights {
    mixer::Weights {
        taps: random.floats(shape.channels() * shape.taps),
        a_log: random.floats(shape.heads),
        dt_bias: random.floats(shape.heads),
        gain: random.floats(shape.values),
    }
}

fn rule(shape: &mixer::Shape) -> ops::DeltaRule {
    let mixer::Shape { key_heads, heads, keys, values, scale, epsilon, norm_epsilon, .. } = *shape;
    ops::DeltaRule { key_heads, heads, keys, values, scale, epsilon, gated: Some(norm_epsilon) }
}

#[test]
fn delta_rule_convolves_updates_and_gates() {
    kernel_under_test!(CONVOLVE, ops::CausalConv, cpu::convolve);
    let convolve = kernel("convolve", vec!["x", "taps", "slots", "positions", "conv_state", "y"], run);
    let mut random = Random(13);
    for shape in mixers() {
        let (weights, rows) = (weights(&mut random, &shape), ROWS.len());
        let inputs = random.floats(rows * shape.inputs());
        let of_slot = shape.taps * shape.channels();
        let conv_state_before = random.floats(SLOTS * of_slot);
        let before = random.floats(SLOTS * shape.recurrent_state());
        let (mut conv_state, mut recurrent_state) = (to_f64(&conv_state_before), to_f64(&before));
        let (mut convolved, mut output) = (Vec::new(), Vec::new());
        for (row, (slot, position)) in ROWS.iter().enumerate() {
            let (slot, position) = (*slot as usize, *position as usize);
            let row = &inputs[row * shape.inputs()..(row + 1) * shape.inputs()];
            let conv_state = &mut conv_state[slot * of_slot..(slot + 1) * of_slot];
            let made = mixer::convolve(&shape, &weights.taps, row, conv_state, position);
            let recurrent_state =
                &mut recurrent_state[slot * shape.recurrent_state()..(slot + 1) * shape.recurrent_state()];
            output.extend(mixer::update_state(
                &shape,
                &weights,
                [&made, &to_f64(row)],
                recurrent_state,
                position,
            ));
            convolved.extend(made);
        }
        let as_f32: Vec<f32> = convolved.iter().map(|x| *x as f32).collect();

        *CONVOLVE.write().unwrap() = Some(ops::CausalConv {
            width: shape.channels(),
            taps: shape.taps,
            pitch: shape.inputs(),
            activation: Some(ops::Activation::Silu),
        });
        let arguments = [
            Argument::F32(inputs.clone()),
            Argument::F32(weights.taps.clone()),
            column(|row| row.0),
            column(|row| row.1),
            Argument::Output(bytes_of(&conv_state_before)),
            Argument::Output(NAN.repeat(rows * shape.channels())),
        ];
        each_level(|level, threads| {
            let left = run_kernel(convolve, &arguments, &SCALARS, level, threads);
            compare(&format!("conv_state {shape:?}"), &to_f32(&left[0]), &near(&conv_state));
            compare(&format!("convolved {shape:?}"), &to_f32(&left[1]), &near(&convolved));
        });
        check_delta_rule(&shape, &weights, [as_f32, inputs, before], [&recurrent_state, &output]);
    }
}

/// Checks the delta rule after the convolution.
fn check_delta_rule(
    shape: &mixer::Shape,
    weights: &mixer::Weights,
    [convolved, inputs, before]: [Vec<f32>; 3],
    [recurrent_state, output]: [&[f64]; 2],
) {
    kernel_under_test!(SHAPE, ops::DeltaRule, cpu::delta_rule);
    let names =
        ["convolved", "inputs", "a_log", "dt_bias", "gain", "slots", "positions", "recurrent_state", "heads"];
    let kernel = kernel("delta_rule", names.to_vec(), run);
    let [a_log, dt_bias, gain] =
        [&weights.a_log, &weights.dt_bias, &weights.gain].map(|it| Argument::F32(it.clone()));
    let arguments = [
        Argument::F32(convolved),
        Argument::F32(inputs),
        a_log,
        dt_bias,
        gain,
        column(|row| row.0),
        column(|row| row.1),
        Argument::Output(bytes_of(&before)),
        Argument::Output(NAN.repeat(output.len())),
    ];
    *SHAPE.write().unwrap() = Some(rule(shape));
    each_level(|level, threads| {
        let left = run_kernel(kernel, &arguments, &SCALARS, level, threads);
        compare(&format!("recurrent_state {shape:?}"), &to_f32(&left[0]), &near(recurrent_state));
        compare(&format!("heads {shape:?}"), &to_f32(&left[1]), &near(output));
    });
}

#[test]
fn delta_step_processes_one_row_of_a_slot() {
    kernel_under_test!(SHAPE, ops::DeltaStep, cpu::delta_step);
    let names = [
        "inputs",
        "taps",
        "a_log",
        "dt_bias",
        "gain",
        "slots",
        "positions",
        "conv_state",
        "recurrent_state",
        "heads",
    ];
    let kernel = kernel("delta_step", names.to_vec(), run);
    let mut random = Random(14);
    for shape in mixers() {
        // One slot continues, the other starts.
        for rows in [[(1_usize, 5_usize), (0, 0)], [(0, 2), (1, 300)]] {
            let weights = weights(&mut random, &shape);
            let inputs = random.floats(rows.len() * shape.inputs());
            let of_slot = shape.taps * shape.channels();
            let [conv_state_before, before] =
                [SLOTS * of_slot, SLOTS * shape.recurrent_state()].map(|count| random.floats(count));
            let (mut conv_state, mut recurrent_state, mut output) =
                (to_f64(&conv_state_before), to_f64(&before), Vec::new());
            for ((slot, position), row) in rows.iter().zip(inputs.chunks_exact(shape.inputs())) {
                let conv_state = &mut conv_state[slot * of_slot..(slot + 1) * of_slot];
                let made = mixer::convolve(&shape, &weights.taps, row, conv_state, *position);
                let recurrent_state = &mut recurrent_state
                    [slot * shape.recurrent_state()..(slot + 1) * shape.recurrent_state()];
                output.extend(mixer::update_state(
                    &shape,
                    &weights,
                    [&made, &to_f64(row)],
                    recurrent_state,
                    *position,
                ));
            }
            let mixer::Weights { taps, a_log, dt_bias, gain } = weights;
            let numbers = [inputs, taps, a_log, dt_bias, gain].map(Argument::F32);
            let words = [rows.map(|row| row.0), rows.map(|row| row.1)]
                .map(|words| Argument::U32(words.iter().map(|word| *word as u32).collect()));
            let outputs = [bytes_of(&conv_state_before), bytes_of(&before), NAN.repeat(output.len())];
            let arguments: Vec<Argument> =
                numbers.into_iter().chain(words).chain(outputs.map(Argument::Output)).collect();
            *SHAPE.write().unwrap() = Some(ops::DeltaStep { rule: rule(&shape), taps: shape.taps });
            each_level(|level, threads| {
                let left = run_kernel(kernel, &arguments, &[rows.len() as u32], level, threads);
                for (bytes, wanted) in left.iter().zip([&conv_state, &recurrent_state, &output]) {
                    compare(&format!("{shape:?}"), &to_f32(bytes), &near(wanted));
                }
            });
        }
    }
}
