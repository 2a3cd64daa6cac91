//! Norms and elementwise functions.

use crate::{Input, Kernels, Random, compare, normed, to_f32, to_f64};
use forge_kernels::Spec;
use forge_ops::{Activation, Elementwise, Format, Function, LayerNorm, NormAdd, RmsNorm, Squares, UnaryOp};

/// Exact GELU: x times the normal distribution's CDF, integrated numerically.
fn gelu(x: f64) -> f64 {
    let density = |y: f64| (-y * y / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() > 12.0 {
        return x.max(0.0);
    }
    let (end, steps) = (x.abs(), 2000);
    let step = end / f64::from(steps);
    // Simpson's rule.
    let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + i % 2 * 2) };
    let integral = (0..=steps).map(|i| weight(i) * density(f64::from(i) * step)).sum::<f64>() * step / 3.0;
    x * (0.5 + integral * x.signum())
}

#[test]
fn layer_norm_matches_the_reference() {
    let mut random = Random(6);
    let rows = 3;
    let norms = [(100, true, false), (1030, false, true), (33, true, true), (4, false, false)]
        .map(|(width, bias, gather)| LayerNorm { width, epsilon: 1e-5, bias, gather });
    let kernels = Kernels::of(norms.iter().map(|norm| Spec::LayerNorm(*norm)));
    for (index, norm) in norms.iter().enumerate() {
        let width = norm.width;
        // Values far from 0, so that a variance computed as E[x²] − E[x]² cancels.
        let x: Vec<f32> = random.floats(rows * width).into_iter().map(|x| x + 300.0).collect();
        let [gain, bias] = [0; 2].map(|_| random.floats(width));
        let order = if norm.gather { [2, 0, 2] } else { [0, 1, 2] };
        let bindings = [
            ("x", Input::F32(&x)),
            ("gain", Input::F32(&gain)),
            ("bias", Input::F32(&bias)),
            ("wanted", Input::U32(&order)),
            ("y", Input::Uninitialized(rows * width * 4)),
        ];
        let y = kernels.run(index, &[("rows", rows)], &bindings);
        let mut expected = Vec::new();
        for &row in &order {
            let row = to_f64(&x[row as usize * width..][..width]);
            let mean = row.iter().sum::<f64>() / width as f64;
            let rest: Vec<f64> = row.iter().map(|x| x - mean).collect();
            let plus = |i: usize| if norm.bias { f64::from(bias[i]) } else { 0.0 };
            expected.extend(
                normed(&rest, Some(&gain), norm.epsilon).iter().enumerate().map(|(i, y)| y + plus(i)),
            );
        }
        // The rounding error of the mean of values around 300.
        compare(norm, &to_f32(&y[0], Format::F32), &expected, 1e-4);
    }
}

#[test]
fn norm_with_residual_add_matches_the_reference() {
    let mut random = Random(7);
    let cases = [
        (100, 3, true, false, None),
        (1030, 3, false, true, None),
        (33, 1, true, true, Some(Squares { partials: 5, gain: true })),
        (2500, 1, true, false, Some(Squares { partials: 150, gain: true })),
        (64, 1, false, true, Some(Squares { partials: 1, gain: false })),
    ]
    .map(|(width, rows, gain, factor, squares)| {
        (rows, NormAdd { width, epsilon: 1e-5, gain, factor, squares })
    });
    let kernels = Kernels::of(cases.iter().map(|(_, norm)| Spec::NormAdd(*norm)));
    for (index, (rows, norm)) in cases.iter().enumerate() {
        let (rows, width) = (*rows, norm.width);
        let [x, stream] = [0; 2].map(|_| random.floats(rows * width));
        let [norm_gain, gain] = [0; 2].map(|_| random.floats(width));
        let factor = random.floats(1);
        let partials = norm.squares.map_or(0, |squares| squares.partials);
        let bindings = [
            ("x", Input::F32(&x)),
            ("norm_gain", Input::F32(&norm_gain)),
            ("factor", Input::F32(&factor)),
            ("gain", Input::F32(&gain)),
            ("stream", Input::F32(&stream)),
            ("gained", Input::Uninitialized(width * 4)),
            ("squares_out", Input::Uninitialized(partials * 4)),
        ];
        let written = kernels.run(index, &[("rows", rows)], &bindings);
        let own_gain = norm.gain.then_some(&norm_gain[..]);
        let added = x.chunks_exact(width).flat_map(|row| normed(&to_f64(row), own_gain, norm.epsilon));
        let times = if norm.factor { f64::from(factor[0]) } else { 1.0 };
        let sums: Vec<f64> = to_f64(&stream).iter().zip(added).map(|(h, x)| times * (h + x)).collect();
        compare(norm, &to_f32(&written[0], Format::F32), &sums, 2e-6);
        let Some(squares) = norm.squares else { continue };
        let mut rest = written[1..].iter();
        if squares.gain {
            let gained: Vec<f64> = sums.iter().zip(&gain).map(|(sum, gain)| sum * f64::from(*gain)).collect();
            compare(norm, &to_f32(rest.next().unwrap(), Format::F32), &gained, 2e-6);
        }
        let mut outputs = vec![0.0; squares.partials];
        outputs[0] = sums.iter().map(|sum| sum * sum).sum();
        compare(norm, &to_f32(rest.next().unwrap(), Format::F32), &outputs, 2e-6);
    }
}

#[test]
fn norms_and_elementwise_functions_match_the_reference() {
    let mut random = Random(1);
    let rows = 3;
    let norms =
        [(100, 1, true, false), (1030, 1, false, true), (20, 3, true, false), (136, 2, true, true)].map(
            |(width, parts, gain, gather)| RmsNorm { width, parts, epsilon: 1e-5, gain, gather, pitch: None },
        );
    let functions = [
        Function::Unary(UnaryOp::Activate(Activation::Silu)),
        Function::Unary(UnaryOp::Activate(Activation::GeluTanh)),
        Function::Unary(UnaryOp::Activate(Activation::Gelu)),
        Function::Unary(UnaryOp::Activate(Activation::Relu)),
        Function::Unary(UnaryOp::Activate(Activation::ReluSquared)),
        Function::Unary(UnaryOp::Activate(Activation::Sigmoid)),
        Function::Unary(UnaryOp::Softcap(30.0)),
        Function::Unary(UnaryOp::Scale(-0.22)),
        Function::Multiply,
        Function::ScaleRows,
        Function::ScaleBy,
        Function::Add,
    ];
    let width = 300;
    let kernels = Kernels::of(
        norms
            .iter()
            .map(|norm| Spec::RmsNorm(*norm))
            .chain(functions.map(|function| Spec::Elementwise(Elementwise { function, width }))),
    );
    for (index, norm) in norms.iter().enumerate() {
        let row = norm.width * norm.parts;
        let (x, gain) = (random.floats(rows * row), random.floats(norm.width));
        let order = if norm.gather { [2, 0, 2] } else { [0, 1, 2] };
        let bindings = [
            ("x", Input::F32(&x)),
            ("gain", Input::F32(&gain)),
            ("wanted", Input::U32(&order)),
            ("y", Input::Uninitialized(rows * row * 4)),
        ];
        let y = kernels.run(index, &[("rows", rows)], &bindings);
        let parts = order.iter().flat_map(|&at| x[at as usize * row..][..row].chunks_exact(norm.width));
        let gain = norm.gain.then_some(&gain[..]);
        let expected: Vec<f64> = parts.flat_map(|part| normed(&to_f64(part), gain, norm.epsilon)).collect();
        compare(norm, &to_f32(&y[0], Format::F32), &expected, 2e-6);
    }
    // From tiny values to far beyond where exp overflows.
    let a: Vec<f32> = (0..rows * width).map(|i| random.number() * 10f32.powi((i % 30) as i32 - 4)).collect();
    let b = random.floats(rows * width);
    for (index, function) in functions.iter().enumerate() {
        // One factor per row, one for all rows, or one per element.
        let spread = match function {
            Function::ScaleRows => width,
            Function::ScaleBy => rows * width,
            _ => 1,
        };
        let b = &b[..rows * width / spread];
        let bindings =
            [("a", Input::F32(&a)), ("b", Input::F32(b)), ("y", Input::Uninitialized(rows * width * 4))];
        let y = kernels.run(norms.len() + index, &[("rows", rows)], &bindings);
        let expected = to_f64(&a)
            .into_iter()
            .zip(to_f64(b).into_iter().flat_map(|b| std::iter::repeat_n(b, spread)))
            .map(|(a, b)| match *function {
                Function::Unary(UnaryOp::Activate(Activation::Silu)) => a / (1.0 + (-a).exp()),
                Function::Unary(UnaryOp::Activate(Activation::GeluTanh)) => {
                    // Half of 1 + tanh(u) without cancellation: the logistic function of 2 u.
                    a / (1.0 + (-1.595_769_121_605_730_7 * (a + 0.044715 * a * a * a)).exp())
                }
                Function::Unary(UnaryOp::Activate(Activation::Gelu)) => gelu(a),
                Function::Unary(UnaryOp::Activate(Activation::Relu)) => a.max(0.0),
                // Squares of the largest inputs overflow f32.
                Function::Unary(UnaryOp::Activate(Activation::ReluSquared)) => {
                    f64::from(a.max(0.0).powi(2) as f32)
                }
                Function::Unary(UnaryOp::Activate(Activation::Sigmoid)) => 1.0 / (1.0 + (-a).exp()),
                Function::Unary(UnaryOp::Softcap(cap)) => f64::from(cap) * (a / f64::from(cap)).tanh(),
                Function::Unary(UnaryOp::Scale(factor)) => f64::from(factor) * a,
                Function::Multiply | Function::ScaleRows | Function::ScaleBy => a * b,
                Function::Add => a + b,
            });
        compare(function, &to_f32(&y[0], Format::F32), &expected.collect::<Vec<_>>(), 1e-6);
    }
}
