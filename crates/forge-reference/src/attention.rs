//! Attention of every row over the rows of its own slot up to itself, by the definition.

use crate::rows::{Row, Values};
use crate::share::share;
use forge_ir::{Pairing, Rotation};

/// The shape of an attention node.
pub(crate) struct Heads {
    /// Heads of the queries.
    pub(crate) queries: usize,
    /// Heads of keys and of values.
    pub(crate) keys: usize,
    /// Width of a head.
    pub(crate) width: usize,
    /// Multiplies q·k.
    pub(crate) scale: f32,
}

/// For every row and query head, softmax(scale * q·k) v.
///
/// All rows of a slot are in this batch, so the keys and values at hand are the whole state.
pub(crate) fn attention(heads: &Heads, rows: &[Row], [q, k, v]: [&Values; 3]) -> Values {
    let each = rows.len() * heads.queries * heads.width * 2;
    let parts = share(rows.len(), each, |range| {
        let mut out = Vec::with_capacity(range.len() * q.width);
        for row in range {
            let seen: Vec<usize> = (0..rows.len())
                .filter(|other| {
                    rows[*other].slot == rows[row].slot && rows[*other].position <= rows[row].position
                })
                .collect();
            for head in 0..heads.queries {
                out.extend(one(heads, head, q.row(row), &seen, k, v));
            }
        }
        out
    });
    Values { width: q.width, numbers: parts.concat() }
}

fn one(heads: &Heads, head: usize, q: &[f32], seen: &[usize], k: &Values, v: &Values) -> Vec<f32> {
    let shared = head / (heads.queries / heads.keys);
    let channels = shared * heads.width..(shared + 1) * heads.width;
    let q = &q[head * heads.width..(head + 1) * heads.width];
    let score = |row: &usize| {
        let k = &k.row(*row)[channels.clone()];
        let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        dot * f64::from(heads.scale)
    };
    let scores: Vec<f64> = seen.iter().map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut sums = vec![0.0; heads.width];
    for (row, weight) in seen.iter().zip(&weights) {
        let v = &v.row(*row)[channels.clone()];
        sums.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * f64::from(*v));
    }
    sums.into_iter().map(|sum| (sum / total) as f32).collect()
}

/// Every head of x turned by its row's position. The angle is a product of f32, as the models' authors compute it.
pub(crate) fn rotate(x: &Values, rows: &[Row], width: usize, rotation: &Rotation) -> Values {
    let mut y = x.clone();
    let pairs = rotation.frequencies.len();
    for (row, vector) in rows.iter().zip(y.numbers.chunks_exact_mut(x.width.max(1))) {
        for (pair, frequency) in rotation.frequencies.iter().enumerate() {
            let angle = f64::from(row.position as f32 * frequency);
            let sine = f64::from(angle.sin() as f32 * rotation.magnitude);
            let cosine = f64::from(angle.cos() as f32 * rotation.magnitude);
            let (first, second) = match rotation.pairing {
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
