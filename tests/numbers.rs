//! Numbers in the output of programs.

use serde_json::Value;

/// A JSON array of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
}

/// A JSON array of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().map(|id| id.as_u64().unwrap_or(u64::MAX) as u32).collect()
}

/// Token ids as a command-line argument.
pub fn id_list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The standard deviation.
pub fn deviation(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / numbers.len() as f64).sqrt()
}

/// The largest difference of two lists, in standard deviations of the second. NaN is as far as can be.
pub fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many logits as tokens");
    let worst = found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
    worst / deviation(expected)
}

/// The root mean square of the differences of two lists, up to a constant, in standard deviations of the second. NaN is as
/// far as can be.
pub fn rms_distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many logits as tokens");
    let differences: Vec<f64> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
    let distance = deviation(&differences) / deviation(expected);
    if distance.is_nan() { f64::INFINITY } else { distance }
}
