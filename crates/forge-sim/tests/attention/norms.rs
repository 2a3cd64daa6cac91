//! Norms and elementwise functions.

use crate::{Input, Kernels, compare};
use forge_kernels::Spec;
use forge_ops::Elementwise;
use forge_oracle::elementwise::{FUNCTIONS, elementwise, spread};
use forge_oracle::norm::{
    gained, layer_norm, layer_norms, norm_add, norm_adds, partial_squares, rms_norm, rms_norms, taken_rows,
};
use forge_oracle::{Random, values_of};

#[test]
fn layer_norm_matches_the_reference() {
    let mut random = Random(6);
    let norms = layer_norms();
    let kernels = Kernels::of(norms.iter().map(|(_, norm)| Spec::LayerNorm(*norm)));
    for (index, (rows, norm)) in norms.iter().enumerate() {
        let width = norm.width;
        // Values far from 0, so that a variance computed as E[x²] − E[x]² cancels.
        let x: Vec<f32> = random.floats(rows * width).into_iter().map(|x| x + 300.0).collect();
        let [gain, bias] = [0; 2].map(|_| random.floats(width));
        let taken = taken_rows(*rows, norm.gather);
        let bindings = [
            ("x", Input::F32(&x)),
            ("gain", Input::F32(&gain)),
            ("bias", Input::F32(&bias)),
            ("wanted", Input::U32(&taken)),
            ("y", Input::Uninitialized(taken.len() * width * 4)),
        ];
        let y = kernels.run(index, &[("rows", taken.len())], &bindings);
        // The rounding error of the mean of values around 300.
        compare(norm, &y[0], layer_norm(norm, &x, [&gain, &bias], &taken), 1e-4);
    }
}

#[test]
fn norm_with_residual_add_matches_the_reference() {
    let mut random = Random(7);
    let norms = norm_adds();
    let kernels = Kernels::of(norms.iter().map(|(_, norm)| Spec::NormAdd(*norm)));
    for (index, (rows, norm)) in norms.iter().enumerate() {
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
        let sums = norm_add(norm, &x, &norm_gain, factor[0], &stream);
        compare(norm, &written[0], values_of(&sums), 2e-6);
        let Some(squares) = norm.squares else { continue };
        if squares.gain {
            compare(norm, &written[1], values_of(&gained(&sums, &gain)), 2e-6);
        }
        let partials = partial_squares(squares, &sums);
        compare(norm, &written[written.len() - 1], values_of(&partials), 2e-6);
    }
}

#[test]
fn norms_and_elementwise_functions_match_the_reference() {
    let mut random = Random(1);
    let norms = rms_norms();
    let (rows, width) = (3, 300);
    let functions = FUNCTIONS.map(|function| Elementwise { function, width });
    let specs = norms.iter().map(|(_, norm)| Spec::RmsNorm(*norm));
    let kernels = Kernels::of(specs.chain(functions.map(Spec::Elementwise)));
    for (index, (rows, norm)) in norms.iter().enumerate() {
        let row = norm.width * norm.parts;
        let (x, gain) = (random.floats(rows * row), random.floats(norm.width));
        let taken = taken_rows(*rows, norm.gather);
        let bindings = [
            ("x", Input::F32(&x)),
            ("gain", Input::F32(&gain)),
            ("wanted", Input::U32(&taken)),
            ("y", Input::Uninitialized(taken.len() * row * 4)),
        ];
        let y = kernels.run(index, &[("rows", taken.len())], &bindings);
        compare(norm, &y[0], rms_norm(norm, &x, &gain, &taken), 2e-6);
    }
    // From tiny values to far beyond where exp overflows.
    let a: Vec<f32> = (0..rows * width).map(|i| random.number() * 10f32.powi((i % 30) as i32 - 4)).collect();
    let b = random.floats(rows * width);
    for (index, op) in functions.iter().enumerate() {
        let b = &b[..rows * width / spread(op, rows)];
        let bindings =
            [("a", Input::F32(&a)), ("b", Input::F32(b)), ("y", Input::Uninitialized(rows * width * 4))];
        let y = kernels.run(norms.len() + index, &[("rows", rows)], &bindings);
        compare(op, &y[0], values_of(&elementwise(op, &a, b)), 1e-6);
    }
}
