//! Convolution and delta rule by definition, row after row.
//!
//! The batch contains all rows of each slot from position 0 on, so states start at zero and their final
//! values are not needed.

use crate::parallel::parallel_ranges;
use crate::rows::{Row, Values};
use forge_ir::RecurrentState;

/// For every row, each channel's last values, ending with its own, times the channel's taps.
pub(crate) fn convolve(x: &Values, rows: &[Row], taps: &[f32], count: usize) -> Values {
    let mut data = Vec::with_capacity(x.data.len());
    for (index, row) in rows.iter().enumerate() {
        // The preceding rows of its slot, starting with itself.
        let seen: Vec<&[f32]> = (0..=index)
            .rev()
            .filter(|other| rows[*other].slot == row.slot)
            .take(count)
            .map(|other| x.row(other))
            .collect();
        data.extend((0..x.width).map(|channel| {
            let taps = &taps[channel * count..(channel + 1) * count];
            let each = seen.iter().zip(taps.iter().rev());
            each.map(|(row, tap)| f64::from(row[channel]) * f64::from(*tap)).sum::<f64>() as f32
        }));
    }
    Values { width: x.width, data }
}

/// exp(-exp(a_log) * ln(1 + exp(x + dt_bias)))
pub(crate) fn decay(x: &Values, a_log: &[f32], dt_bias: &[f32]) -> Values {
    let one = |x: &f32, a_log: &f32, dt_bias: &f32| {
        let time = softplus(f64::from(*x) + f64::from(*dt_bias));
        (-f64::from(*a_log).exp() * time).exp() as f32
    };
    let row = |row: &[f32]| -> Vec<f32> {
        row.iter()
            .zip(a_log.iter().zip(dt_bias))
            .map(|(x, (a_log, dt_bias))| one(x, a_log, dt_bias))
            .collect()
    };
    Values { width: x.width, data: x.rows().flat_map(row).collect() }
}

/// ln(1 + exp(x)) without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The delta rule's output: the recurrent state read with the row's query, after the update with its key and
/// value.
///
/// The last argument has queries, keys, values, decay and beta.
pub(crate) fn delta_rule(
    recurrent_state: &RecurrentState,
    [scale, epsilon]: [f32; 2],
    rows: &[Row],
    [q, k, v, decay, strength]: [&Values; 5],
) -> Values {
    let RecurrentState { heads, keys, values } = *recurrent_state;
    let group = heads / (k.width / keys);
    let slots = rows.iter().map(|row| row.slot + 1).max().unwrap_or(0);
    let of_heads = parallel_ranges(heads, rows.len() * keys * values * 6, |range| {
        let mut output = Vec::new();
        for head in range {
            let part = |x: &Values, row: usize, index: usize, width: usize| -> Vec<f64> {
                x.row(row)[index * width..(index + 1) * width].iter().map(|x| f64::from(*x)).collect()
            };
            let unit = |x: Vec<f64>| -> Vec<f64> {
                let length = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(epsilon)).sqrt();
                x.into_iter().map(|x| x / length).collect()
            };
            // Per slot: key channels by value channels.
            let mut recurrent_states = vec![vec![0.0_f64; keys * values]; slots];
            for (index, row) in rows.iter().enumerate() {
                let [q, k] = [q, k].map(|x| unit(part(x, index, head / group, keys)));
                let v = part(v, index, head, values);
                let [decay, strength] = [decay, strength].map(|x| f64::from(x.row(index)[head]));
                let recurrent_state = &mut recurrent_states[row.slot];
                recurrent_state.iter_mut().for_each(|s| *s *= decay);
                let read_out = |recurrent_state: &[f64], by: &[f64]| -> Vec<f64> {
                    let column = |value: usize| {
                        (0..keys).map(|key| recurrent_state[key * values + value] * by[key]).sum()
                    };
                    (0..values).map(column).collect()
                };
                let known = read_out(recurrent_state, &k);
                for (key, recurrent_state) in k.iter().zip(recurrent_state.chunks_exact_mut(values)) {
                    for (s, (v, known)) in recurrent_state.iter_mut().zip(v.iter().zip(&known)) {
                        *s += key * strength * (v - known);
                    }
                }
                output
                    .extend(read_out(recurrent_state, &q).into_iter().map(|x| (x * f64::from(scale)) as f32));
            }
        }
        output
    });
    // Ordered by head and row; the result is ordered by row and head.
    let by_head = of_heads.concat();
    let part = |row: usize, head: usize| &by_head[(head * rows.len() + row) * values..][..values];
    let all = (0..rows.len()).flat_map(|row| (0..heads).map(move |head| (row, head)));
    let data = all.flat_map(|(row, head)| part(row, head)).copied().collect();
    Values { width: heads * values, data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::of_slot;

    /// Interleaved rows of two slots: 0, 1, 0, 1, 0.
    fn interleaved_rows() -> Vec<Row> {
        let rows: Vec<Row> = of_slot(0, &[0; 3]).chain(of_slot(1, &[0; 2])).collect();
        [0, 3, 1, 4, 2].map(|index: usize| rows[index]).to_vec()
    }

    #[test]
    fn convolution_reads_the_previous_rows_of_its_slot() {
        let x = Values { width: 2, data: vec![1., 10., 5., 50., 2., 20., 6., 60., 3., 30.] };
        // The first channel weighs its own value once and the previous one 100 times; the second uses the
        // value three rows back.
        let taps = [0., 100., 1., 1., 0., 0.];
        let y = convolve(&x, &interleaved_rows(), &taps, 3);
        assert_eq!(y.data, [1., 0., 5., 0., 102., 0., 506., 0., 203., 10.]);
    }

    #[test]
    fn decay_is_a_factor_between_0_and_1() {
        let x = Values { width: 2, data: vec![0.0, 1.0, -1000.0, 1000.0] };
        let left = decay(&x, &[0.0, 2_f32.ln()], &[0.0, -1.0]).data;
        let near = |found: f32, expected: f64| {
            assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}")
        };
        near(left[0], 0.5);
        near(left[1], 0.25);
        near(left[2], 1.0);
        near(left[3], 0.0);
        assert!((softplus(1000.0) - 1000.0).abs() < 1e-9 && softplus(-1000.0) == 0.0);
    }

    #[test]
    fn delta_rule_stores_the_difference_and_decays() {
        // One head of two key channels and one value channel. Keys are normalized: lengths 3 and 1 have one
        // direction.
        let recurrent_state = RecurrentState { heads: 1, keys: 2, values: 1 };
        let of = |width, data: &[f32]| Values { width, data: data.to_vec() };
        let rows: Vec<Row> = of_slot(0, &[0; 4]).collect();
        let keys = of(2, &[3., 0., 1., 0., 0., 2., 1., 0.]);
        let queries = of(2, &[1., 0., 1., 0., 1., 0., 1., 0.]);
        let values = of(1, &[8., 8., 4., 0.]);
        let output_with = |decay: [f32; 4], strength: [f32; 4]| {
            let inputs = [&queries, &keys, &values, &of(1, &decay), &of(1, &strength)];
            delta_rule(&recurrent_state, [1.0, 1e-30], &rows, inputs).data
        };
        assert_eq!(
            output_with([1.0; 4], [1.0; 4]),
            [8., 8., 8., 0.],
            "a known value leaves the state unchanged"
        );
        assert_eq!(output_with([1.0; 4], [0.5; 4]), [4., 6., 6., 3.]);
        assert_eq!(output_with([0.5; 4], [1., 0., 1., 0.]), [8., 4., 2., 1.]);
    }

    #[test]
    fn slots_and_heads_have_separate_states() {
        let recurrent_state = RecurrentState { heads: 2, keys: 1, values: 2 };
        let rows = interleaved_rows();
        let ones = Values { width: 1, data: vec![1.0; 5] };
        let always = Values { width: 2, data: vec![1.0; 10] };
        let data = (0..5).flat_map(|row| [1., 2., 3., 4.].map(|x| x * 10_f32.powi(row))).collect();
        let values = Values { width: 4, data };
        let inputs = [&ones, &ones, &values, &always, &Values { width: 2, data: vec![0.5; 10] }];
        let output = delta_rule(&recurrent_state, [2.0, 1e-30], &rows, inputs);
        // Each update applies half of the difference, twice for slot 0; its third row applies half of the
        // remainder.
        assert_eq!(output.row(0), [1., 2., 3., 4.]);
        assert_eq!(output.row(1), [10., 20., 30., 40.]);
        assert_eq!(output.row(2), [100.5, 201., 301.5, 402.]);
        assert_eq!(output.row(3), [1005., 2010., 3015., 4020.]);
        assert_eq!(output.row(4), [10050.25, 20100.5, 30150.75, 40201.]);
    }
}
