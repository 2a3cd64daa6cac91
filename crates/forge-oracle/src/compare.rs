//! Comparison of what a kernel computed with what is expected. The tolerance is the caller's, since devices
//! differ in it.

use std::fmt::Debug;

/// An expected value, and the magnitude that its tolerance is relative to: usually the sum of the magnitudes
/// of its terms, in proportion to which a sum in f32 is inexact.
pub type Expected = (f64, f64);

/// Compares values: each may be off by `tolerance` times its magnitude.
///
/// # Panics
///
/// If one differs by more.
pub fn compare(what: impl Debug, found: &[f32], expected: &[Expected], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what:?}");
    for (index, (&found, &(expected, magnitude))) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            f64::from(found) == expected || error <= tolerance * magnitude + 1e-30,
            "{what:?}: number {index} is {found}, not {expected} ({error:e} of {magnitude})"
        );
    }
}

/// Values with a tolerance relative to themselves, or to `least` if they are less than that.
pub fn relative(values: impl IntoIterator<Item = f64>, least: f64) -> Vec<Expected> {
    values.into_iter().map(|value| (value, value.abs().max(least))).collect()
}

/// Values with the same tolerance.
pub fn absolute(values: impl IntoIterator<Item = f64>, magnitude: f64) -> Vec<Expected> {
    values.into_iter().map(|value| (value, magnitude)).collect()
}

/// The values, without their magnitudes.
pub fn values_of(expected: &[Expected]) -> impl Iterator<Item = f64> {
    expected.iter().map(|(value, _)| *value)
}

/// Values in f64.
pub fn to_f64(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().copied().map(f64::from).collect()
}

/// Values rounded to f32.
pub fn to_f32(numbers: impl IntoIterator<Item = f64>) -> Vec<f32> {
    numbers.into_iter().map(|number| number as f32).collect()
}

/// A product with its magnitude, for factors without error.
pub fn product(a: f32, b: f32) -> Expected {
    let product = f64::from(a) * f64::from(b);
    (product, product.abs())
}

/// The sum of two values, whose magnitudes add up.
pub fn sum((a, of_a): Expected, (b, of_b): Expected) -> Expected {
    (a + b, of_a + of_b)
}

/// A value times a number without error.
pub fn scaled((value, magnitude): Expected, factor: f64) -> Expected {
    (value * factor, magnitude * factor.abs())
}

/// A value without error as a term of a sum.
pub fn term(value: f32) -> Expected {
    (f64::from(value), f64::from(value).abs())
}
