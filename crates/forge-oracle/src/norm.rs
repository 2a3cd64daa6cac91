//! Norms.

use crate::compare::{Expected, scaled, sum, term, to_f64};
use forge_ops::{LayerNorm, NormAdd, RmsNorm, Squares};

/// The factor of an RMSNorm: the inverse root of the mean of squares.
pub fn inverse_rms(sum_of_squares: f64, count: usize, epsilon: f32) -> f64 {
    1.0 / (sum_of_squares / count as f64 + f64::from(epsilon)).sqrt()
}

/// RMSNorm of a vector.
pub fn normed(x: &[f64], gain: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let factor = inverse_rms(x.iter().map(|v| v * v).sum(), x.len(), epsilon);
    x.iter().enumerate().map(|(i, v)| v * factor * gain.map_or(1.0, |gain| f64::from(gain[i]))).collect()
}

/// The rows of x that a norm takes: all, or with `gather` the last, the first and the last again.
pub fn taken_rows(rows: usize, gather: bool) -> Vec<u32> {
    let last = rows as u32 - 1;
    if gather { vec![last, 0, last] } else { (0..=last).collect() }
}

/// [`RmsNorm`] of these rows of x.
pub fn rms_norm(op: &RmsNorm, x: &[f32], gain: &[f32], rows: &[u32]) -> Vec<f64> {
    let width = op.parts * op.width;
    let row = |row: &u32| &x[*row as usize * op.pitch.unwrap_or(width)..][..width];
    let parts = rows.iter().flat_map(|at| row(at).chunks_exact(op.width));
    parts.flat_map(|part| normed(&to_f64(part), op.gain.then_some(gain), op.epsilon)).collect()
}

/// [`LayerNorm`] of these rows of x.
pub fn layer_norm(op: &LayerNorm, x: &[f32], [gain, bias]: [&[f32]; 2], rows: &[u32]) -> Vec<f64> {
    let of_row = |row: &u32| {
        let row = to_f64(&x[*row as usize * op.width..][..op.width]);
        let mean = row.iter().sum::<f64>() / op.width as f64;
        let centered: Vec<f64> = row.iter().map(|x| x - mean).collect();
        let plus = |i: usize| if op.bias { f64::from(bias[i]) } else { 0.0 };
        let normed = normed(&centered, Some(gain), op.epsilon).into_iter().enumerate();
        normed.map(|(i, y)| y + plus(i)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of_row).collect()
}

/// `stream` after [`NormAdd`].
pub fn norm_add(op: &NormAdd, x: &[f32], norm_gain: &[f32], factor: f32, stream: &[f32]) -> Vec<Expected> {
    let gain = op.gain.then_some(norm_gain);
    let added = x.chunks_exact(op.width).flat_map(|row| normed(&to_f64(row), gain, op.epsilon));
    let factor = if op.factor { f64::from(factor) } else { 1.0 };
    let sums = stream.iter().zip(added).map(|(h, x)| sum(term(*h), (x, x.abs())));
    sums.map(|sum| scaled(sum, factor)).collect()
}

/// Each value times its gain.
pub fn gained(values: &[Expected], gain: &[f32]) -> Vec<Expected> {
    values.iter().zip(gain).map(|(value, gain)| scaled(*value, f64::from(*gain))).collect()
}

/// The partial sums of squares of one row: the first is that of the whole row.
pub fn partial_squares(squares: Squares, values: &[Expected]) -> Vec<Expected> {
    let mut partials = vec![(0.0, 0.0); squares.partials];
    let square = |&(value, magnitude): &Expected| (value * value, 2.0 * magnitude * magnitude);
    partials[0] = values.iter().map(square).fold((0.0, 0.0), sum);
    partials
}

/// Norms of odd and of usual sizes, with the number of rows. Those that gather do so from three rows at least.
pub fn rms_norms() -> Vec<(usize, RmsNorm)> {
    let norm = |(rows, width, parts, gain, gather)| {
        (rows, RmsNorm { width, parts, epsilon: 1e-5, gain, gather, pitch: None })
    };
    [
        (1, 1, 1, true, false),
        (2, 7, 1, false, false),
        (3, 64, 1, true, true),
        (5, 100, 1, true, true),
        (3, 100, 1, true, false),
        (1, 4096, 1, true, false),
        (3, 1030, 1, false, true),
        (40, 33, 1, true, false),
        (3, 20, 5, true, false),
        (3, 20, 3, true, false),
        (6, 128, 3, false, true),
        (3, 136, 2, true, true),
    ]
    .map(norm)
    .into()
}

/// Layer norms of odd and of usual sizes, with the number of rows.
pub fn layer_norms() -> Vec<(usize, LayerNorm)> {
    let norm = |(rows, width, bias, gather)| (rows, LayerNorm { width, epsilon: 1e-5, bias, gather });
    [
        (1, 1, true, false),
        (3, 4, false, false),
        (2, 7, false, false),
        (3, 33, true, true),
        (3, 64, true, true),
        (5, 100, false, true),
        (3, 100, true, false),
        (3, 1030, false, true),
        (1, 4096, true, false),
    ]
    .map(norm)
    .into()
}

/// Norms that are added, with the number of rows: with and without what a deferred norm needs.
pub fn norm_adds() -> Vec<(usize, NormAdd)> {
    let squares = |partials, gain| Some(Squares { partials, gain });
    let norm = |(rows, width, gain, factor, squares)| {
        (rows, NormAdd { width, epsilon: 1e-5, gain, factor, squares })
    };
    [
        (1, 1, true, false, None),
        (5, 100, true, false, None),
        (3, 33, false, true, None),
        (3, 1030, false, true, None),
        (1, 33, true, true, squares(5, true)),
        (1, 70, true, true, squares(5, true)),
        (1, 64, false, true, squares(1, false)),
        (1, 2500, true, false, squares(150, true)),
        (1, 4096, true, false, squares(1, false)),
    ]
    .map(norm)
    .into()
}
