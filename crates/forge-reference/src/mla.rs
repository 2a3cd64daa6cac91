//! MLA in absorbed form by definition, and per-head linear layers.

use crate::attention::mixed;
use crate::parallel::parallel_ranges;
use crate::rows::{Row, Values};
use forge_ir::{Diagnostic, LatentCache, WeightId, WeightRows};

/// For every row, each head's matrix, possibly transposed, times its part of x. The weight has shape `of`.
pub(crate) fn per_head_linear(
    weights: &dyn WeightRows,
    weight: WeightId,
    of: [usize; 2],
    (heads, transposed): (usize, bool),
    x: &Values,
) -> Result<Values, Diagnostic> {
    let [rows, columns] = [of[0] / heads, of[1]];
    let (takes, gives) = if transposed { (rows, columns) } else { (columns, rows) };
    let width = heads * gives;
    let mut y = vec![0.0; x.data.len() / x.width.max(1) * width];
    let mut matrix = vec![0.0; rows * columns];
    for head in 0..heads {
        weights.rows(weight, head * rows..(head + 1) * rows, &mut matrix)?;
        let at = |output: usize, input: usize| {
            f64::from(if transposed {
                matrix[input * columns + output]
            } else {
                matrix[output * columns + input]
            })
        };
        for (x, y) in x.rows().zip(y.chunks_exact_mut(width)) {
            let x = &x[head * takes..(head + 1) * takes];
            for (output, y) in y[head * gives..(head + 1) * gives].iter_mut().enumerate() {
                *y = x.iter().enumerate().map(|(input, x)| f64::from(*x) * at(output, input)).sum::<f64>()
                    as f32;
            }
        }
    }
    Ok(Values { width, data: y })
}

/// For every row and head, softmax(scale * (q·c + r·k)) c, where `inputs` are q, r, c and k.
///
/// The batch contains all rows of each slot, so its latents are the whole state.
pub(crate) fn attention(
    latents: &LatentCache,
    (heads, scale): (usize, f32),
    rows: &[Row],
    inputs: &[&Values],
) -> Values {
    let [q, r, c, k] = inputs else { return Values::default() };
    let LatentCache { width, rope_width } = *latents;
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let parts = parallel_ranges(rows.len(), rows.len() * heads * (width + rope_width) * 2, |range| {
        let mut out = Vec::with_capacity(range.len() * q.width);
        for row in range {
            let sees = |other: &usize| {
                rows[*other].slot == rows[row].slot && rows[*other].position <= rows[row].position
            };
            let seen: Vec<usize> = (0..rows.len()).filter(sees).collect();
            for head in 0..heads {
                let q = &q.row(row)[head * width..(head + 1) * width];
                let r = &r.row(row)[head * rope_width..(head + 1) * rope_width];
                let score =
                    |other: &usize| f64::from(scale) * (dot(q, c.row(*other)) + dot(r, k.row(*other)));
                let scores: Vec<f64> = seen.iter().map(score).collect();
                out.extend(mixed(&scores, None, width, seen.iter().map(|other| c.row(*other))));
            }
        }
        out
    });
    Values { width: q.width, data: parts.concat() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    struct Counted;

    impl WeightRows for Counted {
        fn rows(&self, _: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
            let columns = out.len() / rows.len();
            out.iter_mut().enumerate().for_each(|(index, out)| *out = (rows.start * columns + index) as f32);
            Ok(())
        }
    }

    #[test]
    fn each_mla_head_has_its_own_matrix() {
        // [[0, 1, 2], [3, 4, 5]] and [[6, 7, 8], [9, 10, 11]].
        let x = Values { width: 6, data: vec![1., 0., 0., 0., 1., 0., 1., 1., 1., 0., 0., 2.] };
        let y = per_head_linear(&Counted, WeightId(0), [4, 3], (2, false), &x).unwrap();
        assert_eq!((y.width, y.data), (4, vec![0., 3., 7., 10., 3., 12., 16., 22.]));
        let x = Values { width: 4, data: vec![1., 0., 0., 1.] };
        let y = per_head_linear(&Counted, WeightId(0), [4, 3], (2, true), &x).unwrap();
        assert_eq!((y.width, y.data), (6, vec![0., 1., 2., 9., 10., 11.]));
    }

    #[test]
    fn attention_is_causal_within_a_slot() {
        let row = |slot, position| Row { id: 0, slot, position };
        let rows = [row(0, 0), row(1, 0), row(0, 1)];
        let values = |width, data: &[f32]| Values { width, data: data.to_vec() };
        let c = values(1, &[1., 5., 3.]);
        let k = values(1, &[0., 7., (3_f32).ln()]);
        // Scores of the last row: 0 * 1 + 1 * 0 and 0 * 3 + 1 * ln 3, so weights are 1 and 3.
        let (q, r) = (values(1, &[0., 0., 0.]), values(1, &[1., 1., 1.]));
        let latents = LatentCache { width: 1, rope_width: 1 };
        let found = attention(&latents, (1, 1.0), &rows, &[&q, &r, &c, &k]);
        assert_eq!(found.data, [1.0, 5.0, 2.5]);
    }
}
