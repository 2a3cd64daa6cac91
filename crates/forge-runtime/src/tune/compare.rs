//! Whether two kernels have written the same. A layout says how columns are shared and so in which order products are added: sums
//! are equal as far as singles added in any order are. What is left for each threadgroup is compared as what it is for: squares by
//! their sum, and a candidate for the best logit by its logit.

use super::super::device::Binding;
use super::super::notes::Note;
use super::Product;

/// What was written, and where.
pub(super) type Written = Vec<(Binding, Vec<u8>)>;

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
pub(super) fn bound(product: &Product) -> f64 {
    f64::from(product.inputs.max(8)) * 2.0_f64.powi(-23)
}

/// The first buffer in which two kernels have not written the same.
pub(super) fn difference(
    note: &Note,
    buffers: &'static [&'static str],
    own: &Written,
    others: &Written,
    bound: f64,
) -> Option<Difference> {
    let compared = own.iter().zip(others).map(|((binding, own), (_, other))| {
        let place = note.bindings.iter().position(|it| it == binding).unwrap_or(0);
        let buffer = buffers.get(place).copied().unwrap_or_default();
        let [own, other] = [own, other].map(|bytes| numbers(buffer, bytes));
        Difference { buffer, distance: distance(&own, &other), bound }
    });
    compared.into_iter().find(|it| it.distance.is_nan() || it.distance > bound)
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
