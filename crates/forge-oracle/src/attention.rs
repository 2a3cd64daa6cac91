//! Attention over a KV cache.

use crate::batch::Batch;
use crate::compare::{Expected, scaled, sum, to_f64};
use crate::elementwise::sigmoid;
use crate::kv_cache::KvCache;
use crate::norm::normed;
use crate::rope::rotated;
use forge_ops::{Attend, Gates, HeadNorm, KvSource, Rope, RopeAppend};

/// [`Rope`] of every head, in slots of this context length.
pub fn rope(op: &Rope, context: usize, x: &[f32], positions: &[u32]) -> Vec<f64> {
    let heads = x.chunks_exact(op.width).enumerate();
    heads.flat_map(|(at, head)| rotated(&to_f64(head), &op.rope, context, positions[at / op.heads])).collect()
}

/// Heads of rows as attention sees them, `[row, head, width]`.
#[derive(Default)]
pub struct PreparedHeads {
    /// Query heads.
    pub queries: Vec<f64>,
    /// Key heads; none if keys are in the cache already.
    pub keys: Vec<f64>,
    /// Value heads; none if values are in the cache already.
    pub values: Vec<f64>,
}

/// QK-norm and RoPE of rows of queries, keys and values.
pub fn prepare(
    op: &RopeAppend,
    context: usize,
    qkv: &[f32],
    [query_gain, key_gain]: [&[f32]; 2],
    positions: &[u32],
) -> PreparedHeads {
    let mut prepared = PreparedHeads::default();
    let [first_key, first_value, row_heads] = op.kv_source.head_offsets(op.query_heads, op.key_heads);
    let key_heads = if op.kv_source == KvSource::Nothing { 0 } else { op.key_heads };
    for (row, &position) in qkv.chunks_exact(row_heads * op.width).zip(positions) {
        let heads = |first: usize, count: usize| {
            (first..first + count).map(|head| to_f64(&row[head * op.width..][..op.width]))
        };
        let norm = |head: Vec<f64>, gain: &[f32], after_rope| match op.norm {
            Some(norm) if norm.after_rope == after_rope => normed(&head, Some(gain), norm.epsilon),
            _ => head,
        };
        let rotate =
            |head, gain| norm(rotated(&norm(head, gain, false), &op.rope, context, position), gain, true);
        let value = |head: Vec<f64>| match op.norm {
            Some(HeadNorm { epsilon, values: true, .. }) => normed(&head, None, epsilon),
            _ => head,
        };
        prepared.queries.extend(heads(0, op.query_heads).flat_map(|head| rotate(head, query_gain)));
        prepared.keys.extend(heads(first_key, key_heads).flat_map(|head| rotate(head, key_gain)));
        prepared.values.extend(heads(first_value, key_heads).flat_map(value));
    }
    prepared
}

/// The query heads of every row after attention over a cache of keys and one of values.
pub fn attend(
    op: &Attend,
    cache: &KvCache,
    q: &[f64],
    [keys, values]: [&[f32]; 2],
    sinks: &[f32],
    batch: &Batch,
) -> Vec<Expected> {
    let mut heads = Vec::with_capacity(q.len());
    for (index, q) in q.chunks_exact(op.width).enumerate() {
        let (row, head) = (index / op.query_heads, index % op.query_heads);
        let (slot, position) = (batch.slots[row], batch.positions[row] as usize);
        let first = op.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let place = |p: usize| cache.place(slot, head / (op.query_heads / op.key_heads), p);
        let score = |p: usize| {
            let score = f64::from(op.scale) * dot(q, &keys[place(p)..]);
            op.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        };
        let scores: Vec<f64> = (first..=position).map(score).collect();
        let sink = op.sinks.then(|| f64::from(sinks[head]));
        heads.extend(weighted_values(&scores, sink, |at| &values[place(first + at)..][..op.width]));
    }
    heads
}

/// The heads of rows, multiplied by the sigmoids of their gates.
pub fn gated_heads(gates: Option<Gates>, heads: Vec<Expected>, rows: &[f32]) -> Vec<Expected> {
    let Some(Gates { pitch, first }) = gates else { return heads };
    let gates = rows.chunks_exact(pitch).flat_map(|row| &row[first..]);
    heads.iter().zip(gates).map(|(head, gate)| scaled(*head, sigmoid(f64::from(*gate)))).collect()
}

/// The product of a query with the start of a key.
pub fn dot(q: &[f64], key: &[f32]) -> f64 {
    q.iter().zip(key).map(|(q, k)| q * f64::from(*k)).sum()
}

/// Values weighted by the softmax of their scores. A sink is a score without a value.
pub fn weighted_values<'a>(
    scores: &[f64],
    sink: Option<f64>,
    value: impl Fn(usize) -> &'a [f32],
) -> Vec<Expected> {
    let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().copied().chain(sink).map(|score| (score - largest).exp()).sum();
    let mut sums = Vec::new();
    for (at, score) in scores.iter().enumerate() {
        let weight = (score - largest).exp() / total;
        let value = value(at);
        sums.resize(value.len(), (0.0, 0.0));
        for (to, &v) in sums.iter_mut().zip(value) {
            let weighted = weight * f64::from(v);
            *to = sum(*to, (weighted, weighted.abs()));
        }
    }
    sums
}
