//! Whether two kernels have written the same. A layout says how columns are shared and so in which order products are added: sums
//! are equal as far as singles added in any order are. What is left for each threadgroup is compared as what it is for: squares by
//! their sum, and a candidate for the best logit by its logit; shares of a cache when they have been joined. What is no sum that
//! layouts cut differently, what goes to a cache and which experts a row has, is the same to the bit.

use crate::device::Binding;
use crate::measure::tune::candidates::ErrorModel;

/// What was written, by the name that the kernel has for it, and where.
pub(crate) type OutputSnapshot = Vec<(&'static str, Binding, Vec<u8>)>;

/// What kernels leave for one that joins it.
pub(crate) const JOINED: &str = "partials";

/// What kernels write that is no sum.
const EXACT: [&str; 3] = ["keys", "values", "routes"];

/// How far what was written is from what should have been.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The buffer, as the kernel calls it.
    pub buffer: &'static str,
    /// The largest difference, over the root mean square of what should have been written.
    pub distance: f64,
    /// What it may be.
    pub bound: f64,
}

/// What sums of so many products may differ by, over their root mean square, added in one order or another: each addition rounds
/// by half a unit of 2⁻²³ at most, in either. Matrix units cut where additions round, and may be further apart than that: of an
/// H200's, sums of 2048 products of halves that two share are 1.6 units for each product away from those that none share, measured.
/// Such a layout is told of, and not chosen.
///
/// Attention has two such sums: scores, of as many products as a head has channels, and of values as many as positions are seen. A
/// weight is e to the power of a score, and off by as much of itself as the score is off; scores are taken to be of the size of 1.
/// Where they are larger a layout that adds them otherwise may be refused though it is right.
pub(crate) fn bound(sums: ErrorModel, positions: u32) -> f64 {
    let added = match sums {
        ErrorModel::Products(count) => count,
        // A code is off by 2^-16 of the largest of its block, and results by some times that of their size.
        ErrorModel::Codes(count) => count.max(1 << 12),
        ErrorModel::Attention { width, window } => width + positions.min(window.unwrap_or(positions)),
    };
    f64::from(added.max(8)) * 2.0_f64.powi(-23)
}

/// The first buffer in which two kernels have not written the same.
pub(crate) fn difference(own: &OutputSnapshot, others: &OutputSnapshot, bound: f64) -> Option<Difference> {
    let compared = own.iter().zip(others).filter(|((buffer, ..), _)| *buffer != JOINED);
    let compared = compared.map(|((buffer, _, own), (_, _, other))| {
        if EXACT.contains(buffer) {
            let distance = if own == other { 0.0 } else { f64::INFINITY };
            return Difference { buffer, distance, bound: 0.0 };
        }
        let [own, other] = [own, other].map(|bytes| numbers(buffer, bytes));
        Difference { buffer, distance: distance(&own, &other), bound }
    });
    compared.into_iter().find(|it| it.distance.is_nan() || it.distance > it.bound)
}

/// What words of a buffer are.
fn numbers(buffer: &str, bytes: &[u8]) -> Vec<f64> {
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
    let single = |word| f64::from(f32::from_bits(word));
    match buffer {
        "squares_out" => vec![words.map(single).sum()],
        // A key that orders as the logit does, and the lowest output that has it.
        "candidates" => words.step_by(2).map(|key| single(unordered(key))).collect(),
        _ => words.map(single).collect(),
    }
}

/// The bits of the number that a key is of: the sign is turned, and of what is below zero every bit.
fn unordered(key: u32) -> u32 {
    if key >> 31 == 1 { key ^ (1 << 31) } else { !key }
}

/// The largest difference over the root mean square of what should be there: 0 where both are the same to the bit, and not a number where
/// one is none and the other is.
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
    use crate::device::Buffer;

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn numbers_are_the_same_or_so_far_apart() {
        let nan = f64::NAN;
        assert_eq!(distance(&[3.0, nan, -4.0], &[3.0, nan, -4.0]), 0.0);
        assert_eq!(distance(&[1.0, 1.0, -1.0, 1.0], &[1.0, 1.5, -1.0, 1.0]), 0.5);
        assert!(distance(&[1.0, nan], &[1.0, 1.0]).is_nan());
        assert!(distance(&[0.0, 0.0], &[0.0, 1.0]) > 1.0);
    }

    #[test]
    fn what_is_no_sum_is_the_same_to_the_bit_and_shares_are_not_looked_at() {
        let binding = Binding { buffer: Buffer::Scratch, offset: 0, bytes: 8, written: true };
        let cases = [
            ("y", [1.0, 1.0], [1.0, 1.0 + 1e-6], false),
            ("y", [1.0, 1.0], [1.0, 1.0 + 1e-4], true),
            // Words that are small numbers beside another: a share of one expert's number is lost in the size of weights.
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
    fn attention_may_be_off_by_what_scores_and_values_may() {
        let of = |width, window, positions| {
            bound(ErrorModel::Attention { width, window }, positions) * 2.0_f64.powi(23)
        };
        assert_eq!([of(64, None, 500), of(64, Some(100), 500), of(64, Some(100), 50)], [564.0, 164.0, 114.0]);
    }

    #[test]
    fn what_is_left_for_threadgroups_is_compared_as_what_it_is_for() {
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
