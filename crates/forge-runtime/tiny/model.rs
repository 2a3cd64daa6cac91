//! The tiny model: 2 layers, the second of which sees 20 positions · hidden 40 · 4 query heads over 2 key/value heads of 10 · feed-forward 24 · vocabulary 50.

use crate::kernels;
use crate::runtime::cpu::{Q4_0, Q8_0};
use crate::runtime::device::{Buffer, Pass, Schedule, Span};
use crate::runtime::error::Error;
use crate::runtime::model::state::StateLayout;
use crate::runtime::model::{
    Batch, Cost, Layout, LogitRows, Model, ModelInfo, PredictedDecode, SlidingCache,
};
use crate::runtime::weights::{Matrix, WeightFile};
use half::f16;

// ── Shape ──────────────────────────────────────────────────────────────────────────────────────
pub const LAYERS: usize = 2;
pub const HIDDEN: usize = 40;
pub const QUERY_HEADS: usize = 4;
pub const KEY_HEADS: usize = 2;
pub const HEAD: usize = 10;
pub const INNER: usize = 24;
pub const VOCABULARY: usize = 50;
const CHUNK: usize = 8;
const HEAD_ROWS: usize = 4;
pub const WINDOW: usize = 20;
pub const RING: usize = 64;

// ── Weights ────────────────────────────────────────────────────────────────────────────────────
pub struct Layer {
    attention_gain: Span<f32>, // [40]
    qkv: Matrix<Q4_0>,         // [80, 40]
    output: Matrix<Q8_0>,      // [40, 40]
    mlp_gain: Span<f32>,       // [40]
    gate_up: Matrix<Q8_0>,     // [48, 40]
    down: Matrix<Q8_0>,        // [40, 24]
}

// ── State ──────────────────────────────────────────────────────────────────────────────────────
struct Cache {
    keys: Span<f16>,   // [slot, kv head, position, 10]
    values: Span<f16>, // the same
    capacity: u32,     // positions
}

// ── Scratch ────────────────────────────────────────────────────────────────────────────────────
const STREAM: Span<f32> = Span::new(Buffer::Scratch, 0, CHUNK * HIDDEN * 4);
const NORMED: Span<f32> = Span::new(Buffer::Scratch, 1280, CHUNK * HIDDEN * 4);
const QKV: Span<f32> = Span::new(Buffer::Scratch, 2560, CHUNK * 80 * 4);
const Q: Span<f32> = Span::new(Buffer::Scratch, 5120, CHUNK * 40 * 4);
const HEADS: Span<f32> = Span::new(Buffer::Scratch, 6400, CHUNK * 40 * 4);
const INNER_ROWS: Span<f32> = Span::new(Buffer::Scratch, 7680, CHUNK * INNER * 4);
const PARTIALS: Span<f32> = Span::new(Buffer::Scratch, 8448, CHUNK * QUERY_HEADS * 2 * 12 * 4);
const LOGITS: Span<f32> = Span::new(Buffer::Scratch, 11520, HEAD_ROWS * VOCABULARY * 4);
const SCRATCH_BYTES: usize = 12320;

pub struct Tiny {
    embed: Matrix<Q8_0>, // [50, 40]
    layers: Vec<Layer>,
    final_gain: Span<f32>, // [40]
    head: Matrix<Q8_0>,    // [50, 40]
    caches: Vec<Cache>,
    context: u32,
    layout: Layout,
}

pub(crate) static INFO: ModelInfo = ModelInfo {
    name: "tiny",
    architecture: "TinyForCausalLM",
    parameters: 18_400,
    vocabulary: VOCABULARY as u32,
    hidden: HIDDEN as u32,
    layers: LAYERS as u32,
    context: 64,
    prefill_chunk: CHUNK as u32,
    head_rows: HEAD_ROWS as u32,
    decode_rows: 1,
    independent_rows: 1,
    max_decoded_rows: 1,
    bos: Some(1),
    eos: &[2],
    formats: &[("f32", 800), ("q8_0", 19_400), ("q4_0", 5760)],
    kv_cache_format: "f16",
    kv_bytes_per_token: 80,
    sliding_caches: &[SlidingCache { window: WINDOW as u32, positions: RING as u32, bytes_per_position: 80 }],
    recurrent_state_bytes: 0,
    decode: Cost {
        dispatches: 22,
        barriers: 21,
        bytes_read: 22_560,
        operations: 10_000,
        dispatches_per_layer: &[9, 9],
        extra_when_split: &[0, 0],
    },
    prefill: Cost {
        dispatches: 22,
        barriers: 21,
        bytes_read: 22_560,
        operations: 10_000,
        dispatches_per_layer: &[9, 9],
        extra_when_split: &[0, 0],
    },
    predicted: PredictedDecode { chip: "m4-max", context: 64, tokens_per_second: &[(1, 100.0), (2, 190.0)] },
    extra_dispatches: &[("attention_norm", "written by hand, without fusions")],
};

impl Tiny {
    pub(crate) fn load(weights: &WeightFile, context: u32, slots: u32) -> Result<Box<dyn Model>, Error> {
        let mut layers = Vec::new();
        for i in 0..LAYERS {
            layers.push(Layer {
                attention_gain: weights.vector(&format!("layers.{i}.attention_gain"), HIDDEN)?,
                qkv: weights.matrix(&format!("layers.{i}.qkv"), 80, HIDDEN)?,
                output: weights.matrix(&format!("layers.{i}.output"), HIDDEN, 40)?,
                mlp_gain: weights.vector(&format!("layers.{i}.mlp_gain"), HIDDEN)?,
                gate_up: weights.matrix(&format!("layers.{i}.gate_up"), 2 * INNER, HIDDEN)?,
                down: weights.matrix(&format!("layers.{i}.down"), HIDDEN, INNER)?,
            });
        }
        let mut state = StateLayout::new(slots);
        let caches = [context, INFO.sliding_caches[0].capacity(context)].map(|capacity| {
            let [keys, values] = [(); 2].map(|()| state.kv_cache(KEY_HEADS, capacity, HEAD));
            Cache { keys, values, capacity }
        });
        Ok(Box::new(Tiny {
            embed: weights.matrix("embed", VOCABULARY, HIDDEN)?,
            layers,
            final_gain: weights.vector("final_gain", HIDDEN)?,
            head: weights.matrix("head", VOCABULARY, HIDDEN)?,
            caches: caches.into(),
            context,
            layout: Layout::new(&INFO, state, SCRATCH_BYTES, LOGITS),
        }))
    }
}

impl Model for Tiny {
    fn info(&self) -> &'static ModelInfo {
        &INFO
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn forward(&self, pass: &mut dyn Pass, rows: &Batch) {
        kernels::embed(pass, self.embed, rows.ids, STREAM, rows.count);
        for (i, (layer, cache)) in self.layers.iter().zip(&self.caches).enumerate() {
            self.layer(pass, layer, cache, i == 1, rows);
        }
    }

    fn head(&self, pass: &mut dyn Pass, _program: Schedule, wanted: &LogitRows) {
        let &LogitRows { rows, row_indices: wanted, sampling: draws, next_tokens: next } = wanted;
        pass.barrier();
        kernels::final_norm(pass, STREAM, self.final_gain, wanted, NORMED, rows);
        pass.barrier();
        kernels::head(pass, self.head, NORMED, LOGITS, rows);
        pass.barrier();
        match draws {
            Some(draws) => kernels::sample(pass, LOGITS, draws, next, rows),
            None => kernels::argmax(pass, LOGITS, next, rows),
        }
    }
}

impl Tiny {
    /// One layer, 9 dispatches.
    fn layer(&self, pass: &mut dyn Pass, layer: &Layer, cache: &Cache, is_ring: bool, rows: &Batch) {
        let &Batch { count: rows, slots, positions, .. } = rows;
        pass.barrier();
        kernels::norm(pass, STREAM, layer.attention_gain, NORMED, rows);
        pass.barrier();
        kernels::qkv(pass, layer.qkv, NORMED, QKV, rows);
        pass.barrier();
        let Cache { keys, values, capacity } = *cache;
        let scalars = [rows, self.context, capacity];
        kernels::rope_append(pass, QKV, slots, positions, Q, keys, values, is_ring, scalars);
        pass.barrier();
        kernels::attend(pass, Q, keys, values, slots, positions, PARTIALS, HEADS, is_ring, scalars);
        pass.barrier();
        kernels::output(pass, layer.output, HEADS, STREAM, rows);
        pass.barrier();
        kernels::norm(pass, STREAM, layer.mlp_gain, NORMED, rows);
        pass.barrier();
        kernels::gate_up(pass, layer.gate_up, NORMED, INNER_ROWS, rows);
        pass.barrier();
        kernels::down(pass, layer.down, INNER_ROWS, STREAM, rows);
    }
}
