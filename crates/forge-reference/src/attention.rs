//! Attention by definition: every row attends to the rows of its own slot up to itself.

use crate::parallel::parallel_ranges;
use crate::rows::{Row, Values};
use forge_ir::{Pairing, RopeParameters};

/// The shape of an attention node.
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) queries: usize,
    /// Key and value heads.
    pub(crate) keys: usize,
    /// Channels of a head.
    pub(crate) width: usize,
    /// Multiplies q·k.
    pub(crate) scale: f32,
    /// Positions that a row sees, including its own.
    pub(crate) window: usize,
    /// Softcap of scores.
    pub(crate) softcap: Option<f32>,
    /// One more score per query head, without a value.
    pub(crate) sinks: Option<Vec<f32>>,
}

/// c · tanh(x / c)
pub(crate) fn capped(x: f64, cap: f32) -> f64 {
    f64::from(cap) * (x / f64::from(cap)).tanh()
}

/// For every row and query head, softmax(scale * q·k) v.
///
/// The batch contains all rows of each slot, so its keys and values are the whole state.
pub(crate) fn attention(heads: &Heads, rows: &[Row], [q, k, v]: [&Values; 3]) -> Values {
    let each = rows.len() * heads.queries * heads.width * 2;
    let parts = parallel_ranges(rows.len(), each, |range| {
        let mut out = Vec::with_capacity(range.len() * q.width);
        for row in range {
            let seen: Vec<usize> = (0..rows.len())
                .filter(|other| {
                    let (other, row) = (rows[*other], rows[row]);
                    other.slot == row.slot
                        && other.position <= row.position
                        && (row.position - other.position) < heads.window
                })
                .collect();
            for head in 0..heads.queries {
                out.extend(one(heads, head, q.row(row), &seen, k, v));
            }
        }
        out
    });
    Values { width: q.width, data: parts.concat() }
}

fn one(heads: &Heads, head: usize, q: &[f32], seen: &[usize], k: &Values, v: &Values) -> Vec<f32> {
    let shared = head / (heads.queries / heads.keys);
    let channels = shared * heads.width..(shared + 1) * heads.width;
    let q = &q[head * heads.width..(head + 1) * heads.width];
    let score = |row: &usize| {
        let k = &k.row(*row)[channels.clone()];
        let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let score = dot * f64::from(heads.scale);
        heads.softcap.map_or(score, |cap| capped(score, cap))
    };
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let sink = heads.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
    mixed(&scores, sink, heads.width, seen.iter().map(|row| &v.row(*row)[channels.clone()]))
}

/// softmax(scores) times one vector per score. A sink is one more score, without a vector.
pub(crate) fn mixed<'a>(
    scores: &[f64],
    sink: Option<f64>,
    width: usize,
    vectors: impl Iterator<Item = &'a [f32]>,
) -> Vec<f32> {
    let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    let mut sums = vec![0.0; width];
    for (vector, weight) in vectors.zip(&weights) {
        sums.iter_mut().zip(vector).for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    sums.into_iter().map(|sum| (sum / total) as f32).collect()
}

/// RoPE by each row's position, with the frequencies for `context`. The angle is an f32 product, as in the
/// models' own code.
pub(crate) fn apply_rope(
    x: &Values,
    rows: &[Row],
    context: usize,
    width: usize,
    rope: &RopeParameters,
) -> Values {
    let mut y = x.clone();
    let frequencies = rope.within(context);
    let pairs = frequencies.len();
    for (row, vector) in rows.iter().zip(y.data.chunks_exact_mut(x.width.max(1))) {
        for (pair, frequency) in frequencies.iter().enumerate() {
            let angle = f64::from(row.position as f32 * frequency);
            let sine = f64::from(angle.sin() as f32 * rope.magnitude);
            let cosine = f64::from(angle.cos() as f32 * rope.magnitude);
            let (first, second) = match rope.pairing {
                Pairing::Half => (pair, pair + pairs),
                Pairing::Interleaved => (2 * pair, 2 * pair + 1),
            };
            for head in vector.chunks_exact_mut(width) {
                let (a, b) = (f64::from(head[first]), f64::from(head[second]));
                head[first] = (a * cosine - b * sine) as f32;
                head[second] = (b * cosine + a * sine) as f32;
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::of_slot;
    use proptest::prelude::*;

    #[test]
    fn rope_rotates_pairs_and_leaves_the_rest() {
        let quarter = std::f32::consts::FRAC_PI_2;
        let x = Values { width: 12, data: (0..24).map(|x| x as f32).collect() };
        let rows: Vec<Row> = of_slot(0, &[0, 0]).collect();
        // Two heads of six channels, of which four rotate: by a quarter and a half rotation per position.
        let apply_with = |pairing, magnitude| {
            let rope = RopeParameters {
                frequencies: vec![quarter, 2.0 * quarter].into(),
                pairing,
                magnitude,
                long: None,
            };
            let y = apply_rope(&x, &rows, 2, 6, &rope);
            y.data.iter().map(|x| x.round()).collect::<Vec<f32>>()
        };
        let half = apply_with(Pairing::Half, 1.0);
        assert_eq!(half[..12], x.data[..12], "position 0 does not turn");
        assert_eq!(half[12..], [-14., -13., 12., -15., 16., 17., -20., -19., 18., -21., 22., 23.]);
        let interleaved = apply_with(Pairing::Interleaved, 1.0);
        assert_eq!(interleaved[12..], [-13., 12., -14., -15., 16., 17., -19., 18., -20., -21., 22., 23.]);
        assert_eq!(
            apply_with(Pairing::Half, 2.0)[..6],
            [0., 2., 4., 6., 4., 5.],
            "channels past the pairs stay"
        );
    }

    #[test]
    fn attention_is_causal_within_a_slot() {
        let heads = Heads {
            queries: 2,
            keys: 1,
            width: 1,
            scale: 0.0,
            window: usize::MAX,
            softcap: None,
            sinks: None,
        };
        // All scores are equal: every row gets the mean of the values that it sees.
        let values = Values { width: 1, data: vec![1.0, 3.0, 8.0, 100.0, 300.0] };
        let query = Values { width: 2, data: vec![1.0; 10] };
        let rows: Vec<Row> = of_slot(0, &[0, 0, 0]).chain(of_slot(1, &[0, 0])).collect();
        let y = attention(&heads, &rows, [&query, &values, &values]);
        assert_eq!(y.data, [1., 1., 2., 2., 4., 4., 100., 100., 200., 200.]);
        // Rows of two slots may be interleaved.
        let turns: Vec<Row> = [0, 3, 1, 4, 2].map(|index: usize| rows[index]).to_vec();
        let values = Values { width: 1, data: vec![1.0, 100.0, 3.0, 300.0, 8.0] };
        let y = attention(&heads, &turns, [&query, &values, &values]);
        assert_eq!(y.data, [1., 1., 100., 100., 2., 2., 200., 200., 4., 4.]);
    }

    #[test]
    fn sliding_window_includes_the_current_position() {
        let values = Values { width: 1, data: vec![1.0, 3.0, 8.0, 100.0, 300.0] };
        let query = Values { width: 1, data: vec![1.0; 5] };
        let rows: Vec<Row> = of_slot(0, &[0, 0, 0]).chain(of_slot(1, &[0, 0])).collect();
        let seen = |window| {
            let heads =
                Heads { queries: 1, keys: 1, width: 1, scale: 0.0, window, softcap: None, sinks: None };
            attention(&heads, &rows, [&query, &values, &values]).data
        };
        assert_eq!(seen(1), values.data, "a row sees itself");
        assert_eq!(seen(2), [1., 2., 5.5, 100., 200.], "and the one before it, of its own slot");
        assert_eq!(seen(3), [1., 2., 4., 100., 200.]);
    }

    #[test]
    fn attention_sink_adds_to_the_denominator_only() {
        let sinks = Some(vec![0.0, 3_f32.ln()]);
        let heads = Heads { queries: 2, keys: 1, width: 1, scale: 0.0, window: 9, softcap: Some(0.1), sinks };
        let (query, values) = (vec![1.0; 4], vec![6.0, 12.0]);
        let (query, values) = (Values { width: 2, data: query }, Values { width: 1, data: values });
        let rows: Vec<Row> = of_slot(0, &[0, 0]).collect();
        // Scores of 0 have weight 1 each; the sinks have weights 1 and 3, and are not capped.
        let y = attention(&heads, &rows, [&query, &values, &values]);
        assert_eq!(y.data, [6. / 2., 6. / 4., 18. / 3., 18. / 5.]);
    }

    #[test]
    fn softcap_bends_values_near_the_cap() {
        for (x, expected) in [(0.0, 0.0), (50.0, 50.0 * 1_f64.tanh()), (-1e9, -50.0), (0.5, 0.499_983)] {
            assert!((capped(x, 50.0) - expected).abs() < 1e-6, "{x}");
        }
        // Two keys with scores 0 and 4 under a cap of 2: the second has exp(2 tanh 2) times the weight of the
        // first.
        let heads =
            Heads { queries: 1, keys: 1, width: 1, scale: 2.0, window: 9, softcap: Some(2.0), sinks: None };
        let query = Values { width: 1, data: vec![1.0; 2] };
        let keys = Values { width: 1, data: vec![0.0, 2.0] };
        let values = Values { width: 1, data: vec![0.0, 1.0] };
        let rows: Vec<Row> = of_slot(0, &[0, 0]).collect();
        let weight = (2.0 * 2_f64.tanh()).exp();
        let last = attention(&heads, &rows, [&query, &keys, &values]).data[1];
        assert!((f64::from(last) - weight / (1.0 + weight)).abs() < 1e-6, "{last}");
    }

    proptest! {
        #[test]
        fn wide_windows_and_high_softcaps_have_no_effect(
            data in prop::collection::vec(-3_f32..3.0, 8 * 8),
            split in 1_usize..8,
            beyond in 0_usize..3,
        ) {
            let rows: Vec<Row> = of_slot(0, &[0; 8][..split]).chain(of_slot(1, &[0; 8][split..])).collect();
            let part = |first: usize, width: usize| Values {
                width,
                data: data.chunks(8).flat_map(|row| &row[first..first + width]).copied().collect(),
            };
            let inputs = [part(0, 4), part(4, 2), part(6, 2)];
            let result = |window, softcap| {
                let heads = Heads { queries: 2, keys: 1, width: 2, scale: 0.7, window, softcap, sinks: None };
                attention(&heads, &rows, inputs.each_ref()).data
            };
            let plain = result(usize::MAX, None);
            let longest = split.max(8 - split);
            prop_assert_eq!(&result(longest + beyond, None), &plain);
            prop_assert!(longest == 1 || result(longest - 1, None) != plain);
            for (x, y) in result(usize::MAX, Some(1e6)).iter().zip(&plain) {
                prop_assert!((x - y).abs() < 1e-6, "{} became {}", y, x);
            }
        }
    }
}
