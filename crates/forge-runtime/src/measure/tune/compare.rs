//! Compares the outputs of two kernels. Layouts add products in different orders, so sums may differ by the
//! rounding of f32 additions. Per-threadgroup results are compared by their use: partial sums of squares by
//! their total, argmax candidates by their logit, KV splits after they are combined. Cache entries and expert
//! routes must be bitwise identical.

use forge_device::device::Binding;
use forge_device::tuning_space::ErrorModel;

/// The outputs of a dispatch: buffer name, binding and bytes.
pub(crate) type OutputSnapshot = Vec<(&'static str, Binding, Vec<u8>)>;

/// The buffer of partial results that a combine kernel reads.
pub(crate) const PARTIALS: &str = "partials";

/// Outputs that must be bitwise identical.
const EXACT: [&str; 3] = ["keys", "values", "routes"];

/// A difference between expected and actual output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputDifference {
    /// The kernel's name for the buffer.
    pub buffer: &'static str,
    /// The largest difference, relative to the root mean square of the expected output.
    pub distance: f64,
    /// The tolerance.
    pub bound: f64,
}

/// The tolerance for sums of products added in different orders, relative to their root mean square. Each
/// addition rounds by at most half a unit of 2⁻²³ in either order. Tensor cores truncate where additions
/// round, and may differ by more. On an H200, sums of 2048 f16 products split in two differ by 1.6 units per
/// product. Such a layout is reported and not chosen.
///
/// Attention has two sums: scores, over the channels of a head, and values, over the visible positions. A
/// weight is e to the power of a score, so its relative error is the score's absolute error. Scores are
/// assumed to be about 1. With larger scores a correct layout may be rejected.
pub(crate) fn bound(sums: ErrorModel, positions: u32) -> f64 {
    let added = match sums {
        ErrorModel::Products(count) => count,
        // A 16-bit code is off by 2⁻¹⁶ of the largest value of its block, and results by a few times that.
        ErrorModel::Codes(count) => count.max(1 << 12),
        ErrorModel::Attention { width, window } => width + positions.min(window.unwrap_or(positions)),
    };
    f64::from(added.max(8)) * 2.0_f64.powi(-23)
}

/// The first buffer whose contents differ.
pub(crate) fn difference(
    own: &OutputSnapshot,
    others: &OutputSnapshot,
    bound: f64,
) -> Option<OutputDifference> {
    let compared = own.iter().zip(others).filter(|((buffer, ..), _)| *buffer != PARTIALS);
    let compared = compared.map(|((buffer, _, own), (_, _, other))| {
        if EXACT.contains(buffer) {
            let distance = if own == other { 0.0 } else { f64::INFINITY };
            return OutputDifference { buffer, distance, bound: 0.0 };
        }
        let [own, other] = [own, other].map(|bytes| numbers(buffer, bytes));
        OutputDifference { buffer, distance: distance(&own, &other), bound }
    });
    compared.into_iter().find(|it| it.distance.is_nan() || it.distance > it.bound)
}

/// The values of a buffer.
fn numbers(buffer: &str, bytes: &[u8]) -> Vec<f64> {
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
    let float = |word| f64::from(f32::from_bits(word));
    match buffer {
        "squares_out" => vec![words.map(float).sum()],
        // Pairs of a sortable key of the logit and the lowest output with that logit.
        "candidates" => words.step_by(2).map(|key| float(unordered(key))).collect(),
        _ => words.map(float).collect(),
    }
}

/// Inverts the sortable key of a float: flips the sign bit of positive numbers, and every bit of negative
/// ones.
fn unordered(key: u32) -> u32 {
    if key >> 31 == 1 { key ^ (1 << 31) } else { !key }
}

/// The largest difference relative to the root mean square of the expected values: 0 if bitwise identical,
/// NaN if only one side is NaN.
fn distance(own: &[f64], other: &[f64]) -> f64 {
    let is_same = |(a, b): &(&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    let mut differing = own.iter().zip(other).filter(|pair| !is_same(pair)).peekable();
    if differing.peek().is_none() {
        return 0.0;
    }
    let finite = own.iter().filter(|number| number.is_finite());
    let size = (finite.map(|number| number * number).sum::<f64>() / own.len().max(1) as f64).sqrt();
    differing.fold(0.0, |most: f64, (a, b)| {
        let off = (a - b).abs() / size;
        if most.is_nan() || off.is_nan() { f64::NAN } else { most.max(off) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_device::device::Buffer;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn distance_is_relative_to_the_root_mean_square() {
        let nan = f64::NAN;
        assert_eq!(distance(&[3.0, nan, -4.0], &[3.0, nan, -4.0]), 0.0);
        assert_eq!(distance(&[1.0, 1.0, -1.0, 1.0], &[1.0, 1.5, -1.0, 1.0]), 0.5);
        assert!(distance(&[1.0, nan], &[1.0, 1.0]).is_nan());
        assert!(distance(&[0.0, 0.0], &[0.0, 1.0]) > 1.0);
    }

    #[test]
    fn caches_and_routes_are_exact_and_partials_are_ignored() {
        let binding = Binding { buffer: Buffer::Scratch, offset: 0, bytes: 8, written: true };
        let cases = [
            ("y", [1.0, 1.0], [1.0, 1.0 + 1e-6], false),
            ("y", [1.0, 1.0], [1.0, 1.0 + 1e-4], true),
            // Small integers next to floats: a relative error would hide a wrong expert id.
            ("routes", [f32::from_bits(3), 0.5], [f32::from_bits(4), 0.5], true),
            ("keys", [1.0, 1.0], [1.0, 1.0 + 1e-6], true),
            ("values", [1.0, 1.0], [1.0, 1.0], false),
            ("partials", [1.0, 1.0], [2.0, 1.0], false),
        ];
        for (buffer, own, other, differs) in cases {
            let [own, other] = [own, other].map(|numbers| vec![(buffer, binding, bytes(&numbers))]);
            let found = difference(&own, &other, bound(ErrorModel::Products(64), 1));
            assert_eq!(found.map(|it| it.buffer), differs.then_some(buffer), "{buffer}");
        }
    }

    #[test]
    fn attention_tolerance_adds_scores_and_values() {
        let of = |width, window, positions| {
            bound(ErrorModel::Attention { width, window }, positions) * 2.0_f64.powi(23)
        };
        assert_eq!([of(64, None, 500), of(64, Some(100), 500), of(64, Some(100), 50)], [564.0, 164.0, 114.0]);
    }

    #[test]
    fn partials_are_compared_after_reduction() {
        let [two, one] =
            [&[1.0, 3.0, 0.0][..], &[4.0, 0.0, 0.0]].map(|squares| numbers("squares_out", &bytes(squares)));
        assert_eq!(two, one);
        assert_ne!(numbers("y", &bytes(&[1.0, 3.0])), numbers("y", &bytes(&[4.0, 0.0])));
        let key = |number: f32| {
            let bits = number.to_bits();
            if bits >> 31 == 1 { !bits } else { bits ^ (1 << 31) }
        };
        assert!(key(-2.0) < key(-1.0) && key(-1.0) < key(0.5));
        let words: Vec<u8> = [key(-2.0), 7, key(0.5), 9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(numbers("candidates", &words), [-2.0, 0.5]);
    }
}
