//! y = W x + bias with f32 products, for statistics over many tokens, where exact sums do not matter.
//!
//! Sums are f32 within a block of columns, in several lanes, and f64 over blocks. The order of sums does not
//! depend on the number of threads.

use forge_ir::{Diagnostic, WeightId, WeightRows};
use std::ops::Range;

/// Weight rows decoded at once.
const BLOCK: usize = 64;

/// Columns multiplied at once: a block of weights fits L2, and four rows of x fit L1.
const COLUMNS: usize = 512;

/// Independent accumulators per dot product: a vector register.
const LANES: usize = if cfg!(target_feature = "avx") { 8 } else { 4 };

/// Rows of x that are multiplied at once.
const ROWS: usize = 4;

/// Rows of x, padded with zeros to whole lanes.
pub(crate) struct PaddedF32 {
    rows: usize,
    width: usize,
    padded: usize,
    data: Vec<f32>,
}

impl PaddedF32 {
    pub(crate) fn new(width: usize, data: &[f32]) -> PaddedF32 {
        let (padded, mut rows) = (width.next_multiple_of(LANES), 0);
        let mut all = Vec::with_capacity(data.len() / width.max(1) * padded);
        for row in data.chunks_exact(width.max(1)) {
            rows += 1;
            all.extend(row);
            all.resize(rows * padded, 0.0);
        }
        PaddedF32 { rows, width, padded, data: all }
    }
}

/// Results of some outputs: for each output, one value per row of x.
pub(crate) fn part(
    weights: &dyn WeightRows,
    weight: WeightId,
    outputs: Range<usize>,
    x: &PaddedF32,
) -> Result<Vec<f64>, Diagnostic> {
    let mut sums = vec![0.0; outputs.len() * x.rows];
    let mut decoded = vec![0.0_f32; BLOCK * x.width];
    let mut padded = vec![0.0_f32; BLOCK * x.padded];
    for (start, sums) in outputs.clone().step_by(BLOCK).zip(sums.chunks_mut((BLOCK * x.rows).max(1))) {
        let rows = start..outputs.end.min(start + BLOCK);
        let decoded = &mut decoded[..rows.len() * x.width];
        weights.rows(weight, rows, decoded)?;
        for (row, padded) in decoded.chunks_exact(x.width).zip(padded.chunks_exact_mut(x.padded)) {
            padded[..x.width].copy_from_slice(row);
        }
        for first in (0..x.padded).step_by(COLUMNS) {
            let columns = first..x.padded.min(first + COLUMNS);
            accumulate(&padded, x, &columns, sums);
        }
    }
    Ok(sums)
}

/// Adds the products over some columns: some rows of x at a time with every weight row.
fn accumulate(weights: &[f32], x: &PaddedF32, columns: &Range<usize>, sums: &mut [f64]) {
    let rows = || weights.chunks_exact(x.padded).map(|row| &row[columns.clone()]);
    let input = |row: usize| &x.data[row * x.padded..][columns.clone()];
    let (mut row, count) = (0, x.rows);
    while row + ROWS <= count {
        let xs: [&[f32]; ROWS] = std::array::from_fn(|next| input(row + next));
        for (weight, sums) in rows().zip(sums.chunks_exact_mut(count)) {
            let products = dots(weight, xs);
            sums[row..row + ROWS]
                .iter_mut()
                .zip(products)
                .for_each(|(sum, product)| *sum += f64::from(product));
        }
        row += ROWS;
    }
    for row in row..count {
        let input = input(row);
        for (weight, sum) in rows().zip(sums.iter_mut().skip(row).step_by(count)) {
            let [product, ..] = dots(weight, [input; ROWS]);
            *sum += f64::from(product);
        }
    }
}

/// Dot products of one weight row with rows of x. Lengths are multiples of the lane count.
fn dots(weight: &[f32], xs: [&[f32]; ROWS]) -> [f32; ROWS] {
    let (weight, _) = weight.as_chunks::<LANES>();
    let [a, b, c, d] = xs.map(|x| x.as_chunks::<LANES>().0);
    let [mut of_a, mut of_b, mut of_c, mut of_d] = [[0.0; LANES]; ROWS];
    for ((((weight, a), b), c), d) in weight.iter().zip(a).zip(b).zip(c).zip(d) {
        add(&mut of_a, weight, a);
        add(&mut of_b, weight, b);
        add(&mut of_c, weight, c);
        add(&mut of_d, weight, d);
    }
    [of_a, of_b, of_c, of_d].map(|lanes| lanes.iter().sum())
}

/// Adds products lane by lane.
fn add(sums: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] += a[lane] * b[lane];
    }
}
