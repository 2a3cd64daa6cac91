//! y = W x + bias with exact products: f32 products are exact in f64, and sums are f64.
//!
//! Weights are decoded one block of rows at a time and used for every row of x before the next block is read.

use crate::linear_f32;
use crate::linear_f32::PaddedF32;
use crate::parallel::parallel_ranges;
use crate::rows::Values;
use forge_ir::{Diagnostic, WeightId, WeightRows};
use std::ops::Range;

/// Weight rows decoded at once.
const BLOCK: usize = 64;

/// Columns multiplied at once: with four rows of x they fit L1.
const COLUMNS: usize = 512;

/// Independent accumulators per dot product.
const LANES: usize = 4;

/// Precision of products and sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Exact products, and f64 sums.
    F64,
    /// f32 products and sums, several times as fast.
    F32,
}

/// The product with some rows of a weight, plus a bias.
pub(crate) fn linear(
    (weights, precision): (&dyn WeightRows, Precision),
    weight: WeightId,
    rows: Range<usize>,
    bias: Option<&[f32]>,
    x: &Values,
) -> Result<Values, Diagnostic> {
    let (count, outputs) = (x.rows().count(), rows.len());
    let each = count * x.width;
    let range_of = |range: Range<usize>| rows.start + range.start..rows.start + range.end;
    let parts = match precision {
        Precision::F64 => {
            let x = PaddedF64::new(x);
            parallel_ranges(outputs, each, |range| part(weights, weight, range_of(range), &x))
        }
        Precision::F32 => {
            let x = PaddedF32::new(x.width, &x.data);
            parallel_ranges(outputs, each, |range| linear_f32::part(weights, weight, range_of(range), &x))
        }
    };
    let mut y = vec![0.0; count * outputs];
    let mut output = 0;
    for part in parts {
        for sums in part?.chunks_exact(count.max(1)) {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
            for (row, sum) in sums.iter().enumerate() {
                y[row * outputs + output] = (sum + bias) as f32;
            }
            output += 1;
        }
    }
    Ok(Values { width: outputs, data: y })
}

/// x in f64, rows padded with zeros to whole lanes.
struct PaddedF64 {
    rows: usize,
    width: usize,
    padded: usize,
    data: Vec<f64>,
}

impl PaddedF64 {
    fn new(x: &Values) -> PaddedF64 {
        let (padded, mut rows) = (x.width.next_multiple_of(LANES), 0);
        let mut data = Vec::with_capacity(x.data.len() / x.width.max(1) * padded);
        for row in x.rows() {
            rows += 1;
            data.extend(row.iter().map(|x| f64::from(*x)));
            data.resize(rows * padded, 0.0);
        }
        PaddedF64 { rows, width: x.width, padded, data }
    }

    fn columns(&self, row: usize, columns: &Range<usize>) -> &[f64] {
        &self.data[row * self.padded..][columns.clone()]
    }
}

/// Results of some outputs: for each output, one value per row of x.
fn part(
    weights: &dyn WeightRows,
    weight: WeightId,
    outputs: Range<usize>,
    x: &PaddedF64,
) -> Result<Vec<f64>, Diagnostic> {
    let mut sums = vec![0.0; outputs.len() * x.rows];
    let mut narrow = vec![0.0_f32; BLOCK * x.width];
    let mut wide = vec![0.0_f64; BLOCK * COLUMNS];
    for (start, sums) in outputs.clone().step_by(BLOCK).zip(sums.chunks_mut((BLOCK * x.rows).max(1))) {
        let rows = start..outputs.end.min(start + BLOCK);
        let narrow = &mut narrow[..rows.len() * x.width];
        weights.rows(weight, rows, narrow)?;
        for first in (0..x.padded).step_by(COLUMNS) {
            let columns = first..x.padded.min(first + COLUMNS);
            for (row, wide) in narrow.chunks_exact(x.width).zip(wide.chunks_exact_mut(COLUMNS)) {
                let row = &row[first..columns.end.min(x.width)];
                wide[row.len()..].fill(0.0);
                wide.iter_mut().zip(row).for_each(|(wide, narrow)| *wide = f64::from(*narrow));
            }
            accumulate(&wide, x, &columns, sums);
        }
    }
    Ok(sums)
}

/// Adds the products over some columns: four rows of x at a time with every weight row.
fn accumulate(wide: &[f64], x: &PaddedF64, columns: &Range<usize>, sums: &mut [f64]) {
    let weights = || wide.chunks_exact(COLUMNS).map(|row| &row[..columns.len()]);
    let mut row = 0;
    while row + 4 <= x.rows {
        let xs = [0, 1, 2, 3].map(|next| x.columns(row + next, columns));
        for (weight, sums) in weights().zip(sums.chunks_exact_mut(x.rows)) {
            let products = dots(weight, xs);
            sums[row..row + 4].iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
        }
        row += 4;
    }
    for row in row..x.rows {
        let xs = [x.columns(row, columns)];
        for (weight, sums) in weights().zip(sums.chunks_exact_mut(x.rows)) {
            let [product] = dots(weight, xs);
            sums[row] += product;
        }
    }
}

/// Dot products of one weight row with N rows of x. Lengths are multiples of the lane count.
fn dots<const N: usize>(weight: &[f64], xs: [&[f64]; N]) -> [f64; N] {
    let mut sums = [[0.0; LANES]; N];
    let (weight, _) = weight.as_chunks::<LANES>();
    let xs = xs.map(|x| &x.as_chunks::<LANES>().0[..weight.len()]);
    for (index, weight) in weight.iter().enumerate() {
        for (sums, x) in sums.iter_mut().zip(xs) {
            for lane in 0..LANES {
                sums[lane] += weight[lane] * x[index][lane];
            }
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A matrix of deterministic values.
    struct Rule(usize);

    impl Rule {
        fn at(row: usize, column: usize) -> f32 {
            ((row * 131 + column * 17) as f32 * 0.37).sin()
        }
    }

    impl WeightRows for Rule {
        fn rows(&self, _: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
            for (row, out) in rows.zip(out.chunks_exact_mut(self.0)) {
                out.iter_mut().enumerate().for_each(|(column, out)| *out = Rule::at(row, column));
            }
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn linear_matches_its_definition(rows in 1_usize..10, width in 1_usize..1200, outputs in 1_usize..150, first in 0_usize..99, bias: bool) {
            let data: Vec<f32> = (0..rows * width).map(|index| (index as f32 * 0.11).cos()).collect();
            let bias = bias.then(|| (0..outputs).map(|output| output as f32 * 0.5).collect::<Vec<f32>>());
            let x = Values { width, data };
            let product = |precision| linear((&Rule(width), precision), WeightId(0), first..first + outputs, bias.as_deref(), &x).unwrap();
            let (y, fast) = (product(Precision::F64), product(Precision::F32));
            prop_assert_eq!((y.width, y.data.len()), (outputs, rows * outputs));
            prop_assert_eq!((fast.width, fast.data.len()), (outputs, rows * outputs));
            for row in 0..rows {
                for output in 0..outputs {
                    let product = |(column, x): (usize, &f32)| f64::from(*x) * f64::from(Rule::at(first + output, column));
                    let exact = x.row(row).iter().enumerate().map(product).sum::<f64>()
                        + bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]));
                    let error = (f64::from(y.row(row)[output]) - exact).abs();
                    prop_assert!(error <= exact.abs() * 1e-7 + 1e-12, "{} {}: {}", row, output, error);
                    // Terms are up to 1, and each lane of a block adds up to 128 of them.
                    let error = (f64::from(fast.row(row)[output]) - exact).abs();
                    prop_assert!(error <= 1e-7 * (exact.abs() + 64.0 + width as f64), "{} {}: {} in f32", row, output, error);
                }
            }
        }
    }
}
