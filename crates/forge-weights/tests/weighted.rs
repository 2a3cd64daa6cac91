//! Quantization that minimizes weighted errors.

use forge_ir::Format;
use forge_weights::{RangeError, decode_row, encode_row, encode_row_weighted};
use proptest::prelude::*;

const FORMATS: [&str; 16] = [
    "q8_0",
    "q5_0",
    "q4_0",
    "q6_k",
    "q5_k",
    "q4_k",
    "affine8",
    "affine6",
    "affine5",
    "affine4",
    "affine3",
    "affine2",
    "affine4_32",
    "affine2_128",
    "affine4_bf16",
    "affine3_32_bf16",
];

/// The values of a row after encoding, with weights or without.
fn stored(format: Format, row: &[f32], weights: Option<&[f32]>) -> Result<Vec<f32>, RangeError> {
    let mut planes = format.plane_bytes(row.len()).map(|bytes| vec![0xa5; bytes]);
    let [codes, scales] = &mut planes;
    match weights {
        Some(weights) => encode_row_weighted(format, row, weights, [codes, scales])?,
        None => encode_row(format, row, [codes, scales])?,
    }
    let mut out = vec![f32::NAN; row.len()];
    decode_row(format, [&planes[0], &planes[1]], &mut out);
    Ok(out)
}

/// The weighted sum of squared errors.
fn error(row: &[f32], stored: &[f32], weights: &[f32]) -> f64 {
    let one =
        |((x, y), weight): ((&f32, &f32), &f32)| f64::from(*weight) * (f64::from(*x) - f64::from(*y)).powi(2);
    row.iter().zip(stored).zip(weights).map(one).sum()
}

/// About normally distributed values: sums of twelve uniform ones.
fn normal(seed: u32, count: usize) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// Weights of columns: a few large ones, as activations have.
fn activations(columns: usize) -> Vec<f32> {
    normal(977, columns).into_iter().map(|x| (1.2 * x).exp()).collect()
}

#[test]
fn weighted_quantization_has_a_lower_weighted_error() {
    let columns = 1024;
    let weights = activations(columns);
    let (mut with, mut without) = ([0.0; FORMATS.len()], [0.0; FORMATS.len()]);
    for seed in 0..24 {
        let row = normal(seed, columns);
        for (index, name) in FORMATS.iter().enumerate() {
            let format = Format::from_name(name).expect("a format");
            with[index] += error(&row, &stored(format, &row, Some(&weights)).unwrap(), &weights);
            without[index] += error(&row, &stored(format, &row, None).unwrap(), &weights);
        }
    }
    for (index, name) in FORMATS.iter().enumerate() {
        let ratio = with[index] / without[index];
        println!("{name}: {ratio:.4}");
        // Few levels leave more to choose: the range, and what is rounded away.
        let bound = match Format::from_name(name).and_then(|format| format.bits()) {
            _ if name.starts_with("q8") => 0.999,
            Some(bits) if bits.count() <= 4 => 0.9,
            Some(bits) if bits.count() <= 6 => 0.95,
            _ => 0.97,
        };
        assert!(ratio < bound, "{name}: {ratio}");
    }
}

#[test]
fn equal_weights_are_no_worse_than_none() {
    let columns = 768;
    for name in FORMATS {
        let format = Format::from_name(name).expect("a format");
        let (mut with, mut without) = (0.0, 0.0);
        for seed in 100..116 {
            let row = normal(seed, columns);
            let equal = vec![1.0; columns];
            with += error(&row, &stored(format, &row, Some(&equal)).unwrap(), &equal);
            without += error(&row, &stored(format, &row, None).unwrap(), &equal);
        }
        println!("{name}: {:.4}", with / without);
        assert!(with <= without, "{name}: {with} {without}");
    }
}

#[test]
fn columns_without_weight_do_not_spoil_a_row() {
    for name in FORMATS {
        let format = Format::from_name(name).expect("a format");
        let row = normal(7, 512);
        let found = stored(format, &row, Some(&[0.0; 512])).unwrap();
        assert!(found.iter().all(|x| x.is_finite() && x.abs() < 10.0), "{name}: {found:?}");
        // An outlier of no importance does not widen the range.
        let mut row = normal(8, 512);
        row[40] = 50.0;
        let mut weights = vec![1.0; 512];
        weights[40] = 1e-6;
        let with = error(&row, &stored(format, &row, Some(&weights)).unwrap(), &weights);
        let without = error(&row, &stored(format, &row, None).unwrap(), &weights);
        assert!(with < 0.999 * without || name == "q8_0" && with <= without, "{name}: {with} {without}");
    }
}

#[test]
fn weighted_rows_fail_as_others_do() {
    for name in FORMATS {
        let format = Format::from_name(name).expect("a format");
        let ones = [1.0; 512];
        let mut row = normal(9, 512);
        row[300] = f32::NAN;
        assert_eq!(stored(format, &row, Some(&ones)), Err(RangeError::NotFinite { column: 300 }), "{name}");
        row[300] = 1e30;
        let both = [stored(format, &row, Some(&ones)), stored(format, &row, None)];
        assert_eq!(both[0].is_err(), both[1].is_err(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_row_is_stored_within_its_range(
        exponent in -30_i32..12,
        columns in 1_usize..300,
        seed in 0_u32..1000,
        constant: bool,
    ) {
        let unit = 2_f32.powi(exponent);
        let row: Vec<f32> = normal(seed, columns).into_iter().map(|x| unit * if constant { 3.0 } else { x }).collect();
        let weights = activations(columns);
        let largest = row.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        for name in FORMATS {
            let format = Format::from_name(name).unwrap();
            if !format.takes(columns) {
                continue;
            }
            let found = stored(format, &row, Some(&weights)).unwrap();
            // Half an f16 step at the smallest, as scales and offsets are f16.
            let most = 2.0 * largest + 260.0 * 2_f32.powi(-24);
            prop_assert!(found.iter().all(|x| x.abs() <= most), "{} {}: {:?}", name, largest, found);
            let without = error(&row, &stored(format, &row, None).unwrap(), &weights);
            let with = error(&row, &found, &weights);
            let least = f64::from(unit).powi(2) * columns as f64 * 1e-6 + 1e-12;
            // The fit of affine formats starts from the encoding without weights, and only improves it.
            let most = if name.starts_with("affine") { 1.0001 } else { 1.3 };
            prop_assert!(with <= most * without + least, "{}: {} {}", name, with, without);
        }
    }
}
