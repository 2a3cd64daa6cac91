//! Norms and elementwise functions.

use crate::support::{Argument, Call, Random, absolute, compare, each_level, output, relative, to_f32};
use forge_device::cpu::{self};
use forge_device::ops;
use forge_oracle::elementwise::{FUNCTIONS, elementwise, slice_columns, spread};
use forge_oracle::norm::{
    gained, layer_norm, layer_norms, norm_add, norm_adds, partial_squares, rms_norm, rms_norms, taken_rows,
};

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    kernel_under_test!(SHAPE, ops::RmsNorm, cpu::rms_norm);
    let mut random = Random(3);
    for (rows, op) in rms_norms() {
        let (x, gain) = (random.floats(rows * op.parts * op.width), random.floats(op.width));
        let taken = taken_rows(rows, op.gather);
        let wanted = relative(rms_norm(&op, &x, &gain, &taken), 0.0);
        let mut arguments = vec![("x", Argument::F32(x))];
        arguments.extend(op.gain.then_some(("gain", Argument::F32(gain))));
        arguments.extend(op.gather.then(|| ("wanted", Argument::U32(taken.clone()))));
        arguments.push(("y", output(wanted.len())));
        let call = Call::new("rms_norm", run, arguments);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let y = call.run(&[taken.len()], level, threads);
            compare(&format!("{level:?} {rows} {op:?}"), &to_f32(&y[0]), &wanted);
        });
    }
}

#[test]
fn norm_add_is_in_place() {
    kernel_under_test!(SHAPE, ops::NormAdd, cpu::norm_add);
    let mut random = Random(5);
    for (rows, op) in norm_adds() {
        let width = op.width;
        let [x, stream] = [0; 2].map(|_| random.floats(rows * width));
        let [norm_gain, gain] = [0; 2].map(|_| random.floats(width));
        let factor = random.floats(1);
        let sums = norm_add(&op, &x, &norm_gain, factor[0], &stream);
        let gains = op.squares.is_some_and(|squares| squares.gain);
        let bytes = stream.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut arguments = vec![("x", Argument::F32(x))];
        arguments.extend(op.gain.then_some(("norm_gain", Argument::F32(norm_gain))));
        arguments.extend(op.factor.then_some(("factor", Argument::F32(factor))));
        arguments.extend(gains.then(|| ("gain", Argument::F32(gain.clone()))));
        arguments.push(("stream", Argument::Output(bytes)));
        arguments.extend(gains.then(|| ("gained", output(width))));
        arguments.extend(op.squares.map(|squares| ("squares_out", output(squares.partials))));
        let call = Call::new("norm_add", run, arguments);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let what = format!("{level:?} {rows} {op:?}");
            let written = call.run(&[rows], level, threads);
            compare(&what, &to_f32(&written[0]), &sums);
            let Some(squares) = op.squares else { return };
            if gains {
                compare(&what, &to_f32(&written[1]), &gained(&sums, &gain));
            }
            compare(&what, &to_f32(written.last().unwrap()), &partial_squares(squares, &sums));
        });
    }
}

#[test]
fn layer_norm_subtracts_the_mean() {
    kernel_under_test!(SHAPE, ops::LayerNorm, cpu::layer_norm);
    let mut random = Random(14);
    for (rows, op) in layer_norms() {
        let width = op.width;
        let x: Vec<f32> = random.floats(rows * width).into_iter().map(|x| x + 3.0).collect();
        let [gain, bias] = [0; 2].map(|_| random.floats(width));
        let taken = taken_rows(rows, op.gather);
        // The subtracted mean is up to 4.
        let magnitude = 10.0 + if width == 1 { 1.0 / f64::from(op.epsilon).sqrt() } else { 0.0 };
        let wanted = absolute(layer_norm(&op, &x, [&gain, &bias], &taken), magnitude);
        let mut arguments = vec![("x", Argument::F32(x)), ("gain", Argument::F32(gain))];
        arguments.extend(op.bias.then_some(("bias", Argument::F32(bias))));
        arguments.extend(op.gather.then(|| ("wanted", Argument::U32(taken.clone()))));
        arguments.push(("y", output(wanted.len())));
        let call = Call::new("layer_norm", run, arguments);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let y = call.run(&[taken.len()], level, threads);
            compare(&format!("{level:?} {rows} {op:?}"), &to_f32(&y[0]), &wanted);
        });
    }
}

#[test]
fn elementwise_applies_its_function() {
    kernel_under_test!(SHAPE, ops::Elementwise, cpu::elementwise);
    let mut random = Random(8);
    for (rows, width) in [(1, 1), (3, 17), (3, 300), (2, 1500)] {
        // From tiny values to far beyond where the functions saturate.
        let scatter = |x: f32| x * 10_f32.powi((x.to_bits() % 13) as i32 - 8);
        let a: Vec<f32> = random.floats(rows * width).into_iter().map(scatter).collect();
        let b = random.floats(rows * width);
        for function in FUNCTIONS {
            let op = ops::Elementwise { function, width };
            let b = &b[..rows * width / spread(&op, rows)];
            let wanted = elementwise(&op, &a, b);
            let mut arguments = vec![("a", Argument::F32(a.clone()))];
            let is_binary = !matches!(function, ops::Function::Unary(_));
            arguments.extend(is_binary.then(|| ("b", Argument::F32(b.to_vec()))));
            arguments.push(("y", output(rows * width)));
            let call = Call::new("elementwise", run, arguments);
            *SHAPE.write().unwrap() = Some(op);
            each_level(|level, threads| {
                let y = call.run(&[rows], level, threads);
                compare(&format!("{level:?} {rows} {op:?}"), &to_f32(&y[0]), &wanted);
            });
        }
    }
}

#[test]
fn slice_columns_copies_columns() {
    kernel_under_test!(SHAPE, ops::SliceColumns, cpu::slice_columns);
    let mut random = Random(9);
    for (rows, width, of, first) in [(1, 1, 1, 0), (3, 7, 30, 0), (2, 8, 24, 16), (5, 33, 70, 11)] {
        let op = ops::SliceColumns { width, of };
        let x = random.floats(rows * of);
        let wanted = slice_columns(&op, &x, first);
        let call = Call::new("slice_columns", run, [("x", Argument::F32(x)), ("y", output(rows * width))]);
        *SHAPE.write().unwrap() = Some(op);
        each_level(|level, threads| {
            let y = call.run(&[rows, first], level, threads);
            assert_eq!(to_f32(&y[0]), wanted, "{level:?} {rows} {op:?}");
        });
    }
}
