//! Multi-head latent attention.

use crate::attention::{dot, weighted_values};
use crate::attention_layers::{CONTEXT, SLOTS};
use crate::batch::Batch;
use crate::compare::{Expected, term, to_f64};
use crate::kv_cache::KvCache;
use crate::matrix::Matrix;
use crate::norm::normed;
use crate::random::Random;
use crate::rope::{dynamic_ntk, long_rope, rope_parameters, rotated};
use forge_ops::{
    AttendCombine, Format, MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns, MlaLoadLatents,
    MlaPrepare, Pairing, PerHeadLinear, RopeParameters,
};

/// Where the parts of an input row are.
#[derive(Clone, Copy, Debug)]
pub enum InputRows {
    /// In three buffers, each with further columns.
    Apart,
    /// In one buffer: queries, latent and key, after other columns.
    Together,
    /// In one buffer: latent, key and queries.
    LatentFirst,
}

/// The sizes of an MLA layer, and its options.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields of the operations that the layer has")]
pub struct MlaLayer {
    pub heads: usize,
    pub width: usize,
    pub rope_width: usize,
    pub cache: Format,
    pub rope: RopeParameters,
    pub rows: InputRows,
}

/// Factor of the scores.
const SCALE: f32 = 0.4;

impl MlaLayer {
    /// Elements of a position in the cache.
    pub fn record(&self) -> usize {
        self.width + self.rope_width
    }

    /// Elements of a row of RoPE queries.
    pub fn rope_queries(&self) -> usize {
        self.heads * self.rope_width
    }

    fn columns(&self) -> MlaColumns {
        let (queries, record) = (self.rope_queries(), self.record());
        let together = |pitch, q_rope_first, latent_first| MlaColumns {
            queries_pitch: pitch,
            q_rope_first,
            latent_pitch: pitch,
            latent_first,
            key_pitch: pitch,
            key_first: latent_first + self.width,
        };
        match self.rows {
            InputRows::Together => together(3 + queries + record, 3, 3 + queries),
            InputRows::LatentFirst => together(record + queries, record, 0),
            InputRows::Apart => MlaColumns {
                queries_pitch: queries,
                q_rope_first: 0,
                latent_pitch: 5 + self.width,
                latent_first: 5,
                key_pitch: self.rope_width + 2,
                key_first: 0,
            },
        }
    }

    /// Preparation of a row.
    pub fn prepare(&self) -> MlaPrepare {
        let (heads, columns, rope) = (self.heads, self.columns(), self.rope.clone());
        MlaPrepare { heads, columns, epsilon: 1e-6, rope }
    }

    /// The append of rows, prepared already or not.
    pub fn append(&self, prepare: Option<MlaPrepare>) -> MlaAppend {
        let MlaLayer { width, rope_width, cache, .. } = *self;
        MlaAppend { width, rope_width, cache, prepare }
    }

    /// Attention, with or without preparation of its row.
    pub fn attend(&self, prologue: Option<MlaPrepare>) -> MlaAttention {
        let MlaLayer { heads, width, rope_width, cache, .. } = *self;
        MlaAttention { heads, width, rope_width, cache, scale: SCALE, prologue }
    }

    /// The combination of its splits.
    pub fn combine(&self) -> AttendCombine {
        AttendCombine { query_heads: self.heads, width: self.width, gates: None }
    }

    /// Loading of a KV tile.
    pub fn load_latents(&self) -> MlaLoadLatents {
        let MlaLayer { width, rope_width, cache, .. } = *self;
        MlaLoadLatents { width, rope_width, cache }
    }

    /// The cache of its latents and RoPE keys.
    pub fn kv_cache(&self) -> KvCache {
        let (width, format) = (self.record(), self.cache);
        KvCache { slots: SLOTS, heads: 1, context: CONTEXT, width, format, ring: None }
    }

    /// Random rows of latents and of RoPE keys, prepared already, and what is appended to the cache.
    pub fn prepared_rows(&self, random: &mut Random, rows: usize) -> ([Vec<f32>; 2], Vec<f64>) {
        let [latent, key] = [self.width, self.rope_width].map(|width| random.floats(rows * width));
        let parts = latent.chunks_exact(self.width).zip(key.chunks_exact(self.rope_width));
        let records = parts.flat_map(|(latent, key)| to_f64(&[latent, key].concat())).collect();
        ([latent, key], records)
    }

    /// Random rows, and what their preparation makes of them.
    pub fn inputs(&self, random: &mut Random, batch: &Batch) -> MlaInputs {
        let (rows, columns) = (batch.rows(), self.columns());
        let queries = random.floats(rows * columns.queries_pitch);
        let (latent, key) = match self.rows {
            InputRows::Apart => {
                (random.floats(rows * columns.latent_pitch), random.floats(rows * columns.key_pitch))
            }
            _ => (queries.clone(), queries.clone()),
        };
        let gain = random.floats(self.width);
        let q = random.floats(rows * self.heads * self.width);
        let (mut q_rope, mut records) = (Vec::new(), Vec::new());
        for (row, &position) in batch.positions.iter().enumerate() {
            let part = |x: &[f32], pitch: usize, first: usize, count: usize| {
                to_f64(&x[row * pitch + first..][..count])
            };
            let rotated = |head: &[f64]| rotated(head, &self.rope, CONTEXT, position);
            let heads = part(&queries, columns.queries_pitch, columns.q_rope_first, self.rope_queries());
            q_rope.extend(heads.chunks_exact(self.rope_width).flat_map(rotated));
            let of_latent = part(&latent, columns.latent_pitch, columns.latent_first, self.width);
            records.extend(normed(&of_latent, Some(&gain), 1e-6));
            records.extend(rotated(&part(&key, columns.key_pitch, columns.key_first, self.rope_width)));
        }
        MlaInputs { q, queries, latent, key, gain, q_rope, records }
    }
}

/// Inputs of a layer's rows, and their expected preparation.
pub struct MlaInputs {
    /// Queries for latents, `[row, head, width]`.
    pub q: Vec<f32>,
    /// The buffer with the RoPE queries.
    pub queries: Vec<f32>,
    /// The buffer with the latents.
    pub latent: Vec<f32>,
    /// The buffer with the RoPE keys.
    pub key: Vec<f32>,
    /// Gain of the latents' norm.
    pub gain: Vec<f32>,
    /// RoPE queries as prepared, `[row, head, rope_width]`.
    pub q_rope: Vec<f64>,
    /// What is appended to the cache, `[row, width + rope_width]`.
    pub records: Vec<f64>,
}

/// Heads of every row after [`MlaAttention`] over a cache of latents, given prepared queries.
pub fn mla_attention(
    op: &MlaAttention,
    cache: &KvCache,
    q: &[f32],
    q_rope: &[f64],
    latents: &[f32],
    batch: &Batch,
) -> Vec<Expected> {
    let queries = q.chunks_exact(op.width).zip(q_rope.chunks_exact(op.rope_width)).enumerate();
    let head = |(index, (q, q_rope)): (usize, (&[f32], &[f64]))| {
        let row = index / op.heads;
        let (slot, position) = (batch.slots[row], batch.positions[row] as usize);
        let query = [&to_f64(q), q_rope].concat();
        let record = |p: usize| &latents[cache.place(slot, 0, p)..][..cache.width];
        let scores: Vec<f64> = (0..=position).map(|p| f64::from(op.scale) * dot(&query, record(p))).collect();
        weighted_values(&scores, None, |p| &record(p)[..op.width])
    };
    queries.flat_map(head).collect()
}

/// Keys and values of all positions, expanded from latents, and queries of the last rows.
pub struct ExpandedInputs {
    /// Position of the first row.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// Queries of all heads, in rows of `queries_pitch`.
    pub q: Vec<f32>,
    /// RoPE queries, `[row, head, rope_width]`.
    pub q_rope: Vec<f32>,
    /// Keys, `[position, head, keys]`.
    pub keys: Vec<f32>,
    /// RoPE keys, `[position, rope_width]`.
    pub k_rope: Vec<f32>,
    /// Values, `[position, head, values]`.
    pub values: Vec<f32>,
}

impl ExpandedInputs {
    /// Random inputs for `rows` rows from position `first` on.
    pub fn random(
        random: &mut Random,
        op: &MlaAttentionExpanded,
        rows: usize,
        first: usize,
    ) -> ExpandedInputs {
        let q = random.floats(rows * op.queries_pitch);
        let q_rope = random.floats(rows * op.heads * op.rope_width);
        let [keys, k_rope, values] = [op.heads * op.keys, op.rope_width, op.heads * op.values]
            .map(|width| random.floats((first + rows) * width));
        ExpandedInputs { first, rows, q, q_rope, keys, k_rope, values }
    }

    /// Positions of the rows.
    pub fn positions(&self) -> Vec<u32> {
        (self.first as u32..(self.first + self.rows) as u32).collect()
    }
}

/// Heads of every row after [`MlaAttentionExpanded`] over all tiles.
pub fn attend_expanded(op: &MlaAttentionExpanded, inputs: &ExpandedInputs) -> Vec<Expected> {
    let MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale } = *op;
    let head = |(row, head): (usize, usize)| {
        let q = to_f64(&inputs.q[row * queries_pitch + head * keys..][..keys]);
        let q_rope = to_f64(&inputs.q_rope[(row * heads + head) * rope_width..][..rope_width]);
        let score = |p: usize| {
            let key = dot(&q, &inputs.keys[(p * heads + head) * keys..]);
            f64::from(scale) * (key + dot(&q_rope, &inputs.k_rope[p * rope_width..]))
        };
        let scores: Vec<f64> = (0..=inputs.first + row).map(score).collect();
        weighted_values(&scores, None, |p| &inputs.values[(p * heads + head) * values..][..values])
    };
    (0..inputs.rows).flat_map(|row| (0..heads).map(move |head| (row, head))).flat_map(head).collect()
}

/// [`PerHeadLinear`] of rows.
pub fn per_head_linear(op: &PerHeadLinear, weight: &Matrix, x: &[f32]) -> Vec<Expected> {
    let (taken, outputs) = if op.transposed { (op.rows, op.columns) } else { (op.columns, op.rows) };
    let of_row = |row: &[f32]| {
        let heads = row.chunks_exact(taken).take(op.heads).enumerate();
        let of_head = |(head, part): (usize, &[f32])| {
            let (first, x) = (head * op.rows, part.iter().map(|x| term(*x)).collect::<Vec<_>>());
            let product = |output| match op.transposed {
                true => weight.column_product(first..first + op.rows, output, &x),
                false => weight.row_product(first + output, &x),
            };
            (0..outputs).map(product).collect::<Vec<_>>()
        };
        heads.flat_map(of_head).collect::<Vec<_>>()
    };
    x.chunks_exact(op.pitch).flat_map(of_row).collect()
}

/// Sizes that are and are not multiples of a vector's, with every option.
pub fn samples() -> Vec<MlaLayer> {
    use Format::{F16, F32};
    use InputRows::{Apart, LatentFirst, Together};
    use Pairing::{Half, Interleaved};
    let layer = |heads, width, rope_width, cache, rope, rows| MlaLayer {
        heads,
        width,
        rope_width,
        cache,
        rope,
        rows,
    };
    let rope = rope_parameters;
    vec![
        layer(4, 24, 8, F32, rope(4, Interleaved, 1.25), Apart),
        layer(1, 120, 8, F16, rope(4, Half, 1.0), Together),
        layer(5, 21, 6, F32, rope(2, Half, 1.0), Together),
        layer(19, 130, 64, F16, rope(32, Interleaved, 1.0), Apart),
        layer(2, 300, 80, F32, rope(40, Half, 1.0), Together),
        layer(3, 40, 16, F16, long_rope(rope(8, Half, 1.25), CONTEXT - 1), Apart),
        layer(2, 40, 16, F32, dynamic_ntk(rope(8, Half, 1.0), CONTEXT / 3, 3.5), Together),
        layer(4, 32, 16, F32, rope(8, Interleaved, 1.25), LatentFirst),
        layer(19, 21, 6, F32, rope(3, Interleaved, 1.25), LatentFirst),
        layer(1, 130, 2, F32, rope(1, Interleaved, 1.25), LatentFirst),
    ]
}

/// Rows that attend to latents: at the start, within and far into their slot.
pub fn batches() -> Vec<Batch> {
    let rows: [&[(u32, u32)]; 5] =
        [&[(0, 0)], &[(1, 149)], &[(1, 2), (0, 90)], &[(0, 7), (1, 121)], &[(1, 5), (0, 131)]];
    rows.map(Batch::of).into()
}

/// Rows that are appended, adjacent ones among them.
pub fn appended_rows() -> Batch {
    Batch::of(&[(1, 5), (1, 6), (0, 0), (1, 150), (0, 131)])
}

/// Heads with expanded keys and values; rows of queries are longer than their heads.
pub fn expanded_samples() -> Vec<MlaAttentionExpanded> {
    let sizes =
        [[4, 16, 8, 16], [4, 32, 16, 32], [3, 9, 10, 5], [2, 40, 4, 100], [1, 40, 2, 100], [1, 7, 6, 33]];
    let sample = |[heads, keys, rope_width, values]: [usize; 4]| {
        let queries_pitch = heads * keys + heads;
        MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale: SCALE }
    };
    sizes.map(sample).into()
}

/// Number of rows, position of the first, and positions of a tile.
pub const EXPANDED_ROWS: [[usize; 3]; 5] =
    [[19, 0, 64], [21, 120, 64], [17, 90, 33], [33, 0, 12], [5, 140, 57]];

/// Heads, rows and columns of per-head matrices.
pub const PER_HEAD_SIZES: [[usize; 3]; 5] =
    [[3, 7, 30], [2, 21, 70], [2, 70, 90], [1, 5, 300], [2, 12, 1056]];
