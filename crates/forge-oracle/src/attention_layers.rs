//! Attention layers that cover the options of its operations: the samples of their tests.

use crate::batch::Batch;
use crate::kv_cache::KvCache;
use crate::random::Random;
use crate::rope::{dynamic_ntk, long_rope, rope_parameters};
use forge_ops::{
    Append, Attend, AttendCombine, Format, Gates, HeadNorm, KvSource, Pairing, Prologue, Rope, RopeAppend,
    RopeParameters,
};

/// The heads of an attention layer, its KV cache and its options.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "fields of the operations that the layer has")]
pub struct AttentionLayer {
    pub query_heads: usize,
    pub key_heads: usize,
    pub width: usize,
    pub cache: Format,
    pub ring: Option<usize>,
    pub scale: f32,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub sinks: bool,
    /// Whether the heads are multiplied by sigmoids of gates, which are the last columns of a row of qkv.
    pub gated: bool,
    pub kv_source: KvSource,
    pub norm: Option<HeadNorm>,
    pub rope: RopeParameters,
    /// Positions of a slot.
    pub context: usize,
}

/// Slots of a layer's KV cache.
pub const SLOTS: usize = 2;

/// Positions of a slot, for most layers.
pub const CONTEXT: usize = 160;

impl AttentionLayer {
    /// A layer of these heads without options, whose RoPE rotates all channels.
    pub fn plain(query_heads: usize, key_heads: usize, width: usize, cache: Format) -> AttentionLayer {
        AttentionLayer {
            query_heads,
            key_heads,
            width,
            cache,
            ring: None,
            scale: 2.0 / (width as f32).sqrt(),
            window: None,
            softcap: None,
            sinks: false,
            gated: false,
            kv_source: KvSource::KeysAndValues,
            norm: None,
            rope: rope_parameters(width / 2, Pairing::Half, 1.0),
            context: CONTEXT,
        }
    }

    /// Attention over prepared queries and a filled cache.
    pub fn attend(&self) -> Attend {
        let AttentionLayer {
            query_heads, key_heads, width, cache, ring, scale, window, softcap, sinks, ..
        } = *self;
        let (gates, prologue) = (self.gates(), None);
        Attend { query_heads, key_heads, width, cache, ring, scale, window, softcap, sinks, gates, prologue }
    }

    /// Attention that prepares its row.
    pub fn attend_with_prologue(&self) -> Attend {
        let (kv_source, norm, rope) = (self.kv_source, self.norm, self.rope.clone());
        Attend { prologue: Some(Prologue { kv_source, norm, rope }), ..self.attend() }
    }

    /// The combination of its splits.
    pub fn combine(&self) -> AttendCombine {
        AttendCombine { query_heads: self.query_heads, width: self.width, gates: self.gates() }
    }

    /// RoPE of its queries.
    pub fn rope(&self) -> Rope {
        Rope { heads: self.query_heads, width: self.width, rope: self.rope.clone() }
    }

    /// The append of keys and values.
    pub fn append(&self) -> Append {
        let AttentionLayer { key_heads, width, cache, ring, .. } = *self;
        Append { key_heads, width, cache, ring }
    }

    /// Preparation of rows, and their append.
    pub fn rope_append(&self) -> RopeAppend {
        let AttentionLayer { query_heads, key_heads, width, cache, ring, kv_source, norm, .. } = *self;
        let rope = self.rope.clone();
        RopeAppend { query_heads, key_heads, width, cache, ring, kv_source, norm, rope }
    }

    /// Whether rows have keys and values to append.
    pub fn appends(&self) -> bool {
        self.kv_source != KvSource::Nothing
    }

    fn gates(&self) -> Option<Gates> {
        let pitch = self.row_width();
        self.gated.then(|| Gates { pitch, first: pitch - self.query_heads * self.width })
    }

    /// Query heads per KV head.
    pub fn group(&self) -> usize {
        self.query_heads / self.key_heads
    }

    /// Elements of a row of qkv.
    pub fn row_width(&self) -> usize {
        self.kv_source.row_heads(self.query_heads, self.key_heads) * self.width
    }

    /// Elements of a row of queries.
    pub fn query_width(&self) -> usize {
        self.query_heads * self.width
    }

    /// The cache of its keys, and that of its values.
    pub fn kv_cache(&self) -> KvCache {
        let AttentionLayer { key_heads: heads, context, width, cache: format, ring, .. } = *self;
        KvCache { slots: SLOTS, heads, context, width, format, ring }
    }

    /// Random inputs of this many rows.
    pub fn inputs(&self, random: &mut Random, rows: usize) -> AttentionInputs {
        AttentionInputs {
            qkv: random.floats(rows * self.row_width()),
            gains: [0; 2].map(|_| random.floats(self.width)),
            sinks: random.floats(self.query_heads).into_iter().map(|sink| 3.0 * sink).collect(),
        }
    }

    /// Rows of one slot each, whose prologues run in one pass: at the start, within and at the end of a window
    /// or ring, far from it; in each of two slots, and in both.
    pub fn decode_batches(&self) -> Vec<Batch> {
        let last = self.context as u32 - 1;
        let far = last.saturating_sub(10);
        let mut rows = vec![vec![(1, 0)], vec![(0, 0)], vec![(1, far)], vec![(1, last)]];
        rows.extend((last > 18).then(|| vec![(0, 18)]));
        rows.extend((last > 3).then(|| vec![(1, far), (0, 3)]));
        rows.iter().map(|rows| Batch::of(rows)).collect()
    }
}

/// Inputs of a layer's rows.
#[derive(Clone)]
pub struct AttentionInputs {
    /// Rows before preparation; also the gates of a gated layer.
    pub qkv: Vec<f32>,
    /// The gains of queries and of keys.
    pub gains: [Vec<f32>; 2],
    /// The sinks of query heads.
    pub sinks: Vec<f32>,
}

impl AttentionInputs {
    /// The gains, as [`prepare`](crate::attention::prepare) takes them.
    pub fn gains(&self) -> [&[f32]; 2] {
        self.gains.each_ref().map(|gain| &gain[..])
    }
}

/// Sizes and options that cover every branch of the kernels.
pub fn samples() -> Vec<AttentionLayer> {
    use AttentionLayer as Layer;
    use Format::{F16, F32, Q8_0};
    use KvSource::{Keys, KeysValuesAndGates, Nothing};
    use Pairing::{Half, Interleaved};
    let plain = Layer::plain;
    let rope = rope_parameters;
    let norm = Some(HeadNorm { epsilon: 1e-6, after_rope: false, values: false });
    let norm_after_rope = Some(HeadNorm { epsilon: 1e-6, after_rope: true, values: false });
    let of_values = Some(HeadNorm { epsilon: 1e-2, after_rope: false, values: true });
    let long = |original| long_rope(rope(8, Half, 1.25), original);
    let dynamic = |original| dynamic_ntk(rope(8, Half, 1.0), original, 3.5);
    // Scores that differ more.
    let sharp = |layer: Layer, context| Layer { scale: 1.5 * layer.scale, context, ..layer };
    let mut samples = vec![
        Layer { norm, ..plain(4, 2, 128, F16) },
        Layer { norm, rope: rope(7, Half, 1.25), ..plain(9, 3, 20, F32) },
        Layer {
            norm,
            window: Some(19),
            softcap: Some(2.0),
            sinks: true,
            rope: rope(20, Interleaved, 1.0),
            ..plain(10, 2, 80, F16)
        },
        Layer { window: Some(1000), softcap: Some(1.0), norm, ..plain(2, 2, 256, F32) },
        Layer { sinks: true, ..plain(13, 1, 6, F16) },
        Layer { window: Some(1), sinks: true, ..plain(3, 3, 64, F32) },
        plain(2, 2, 96, F16),
        // QK norm after RoPE, full and partial.
        Layer { norm: norm_after_rope, ..plain(4, 2, 16, F32) },
        Layer { norm: norm_after_rope, rope: rope(5, Interleaved, 1.0), ..plain(3, 1, 20, F16) },
        // Long-context frequencies, for a context just beyond their limit and for one at it; and dynamic
        // scaling, likewise.
        Layer { rope: long(CONTEXT - 1), ..plain(4, 2, 16, F32) },
        Layer { norm, rope: long(CONTEXT), ..plain(4, 2, 16, F32) },
        Layer { norm, rope: dynamic(CONTEXT / 3), ..plain(4, 2, 16, F32) },
        Layer { rope: dynamic(CONTEXT), ..plain(4, 2, 16, F32) },
        // Rings: of exactly the positions that a pass of 58 rows needs, and of more than the context.
        Layer {
            norm,
            window: Some(19),
            ring: Some(76),
            softcap: Some(2.0),
            sinks: true,
            rope: rope(20, Interleaved, 1.0),
            ..plain(10, 2, 80, F16)
        },
        Layer { window: Some(7), ring: Some(67), ..plain(4, 2, 18, F32) },
        Layer { window: Some(40), ring: Some(1000), rope: long(CONTEXT - 1), ..plain(4, 2, 16, F32) },
        // The RoPE frequencies depend on the context length, not on the size of the ring.
        Layer { window: Some(12), ring: Some(72), rope: dynamic(CONTEXT / 3), ..plain(4, 2, 16, F16) },
        // q8_0 caches: every alignment of records, heads of one scale and of several, rings.
        Layer { norm, ..plain(4, 2, 128, Q8_0) },
        Layer { rope: rope(20, Interleaved, 1.0), ..plain(6, 2, 64, Q8_0) },
        Layer { sinks: true, rope: rope(11, Half, 1.0), ..plain(3, 1, 32, Q8_0) },
        Layer {
            norm: norm_after_rope,
            window: Some(19),
            ring: Some(76),
            softcap: Some(2.0),
            ..plain(5, 1, 96, Q8_0)
        },
        Layer { window: Some(40), ..plain(2, 2, 256, Q8_0) },
        // Values with a norm, computed from the key heads; and queries only.
        Layer { norm: of_values, rope: rope(5, Half, 1.0), ..plain(4, 2, 20, F32) },
        Layer {
            norm: of_values.map(|norm| HeadNorm { after_rope: true, ..norm }),
            kv_source: Keys,
            ..plain(6, 3, 64, Q8_0)
        },
        Layer { kv_source: Keys, rope: rope(3, Half, 1.0), ..plain(5, 1, 18, F16) },
        Layer { norm: of_values, kv_source: Keys, window: Some(19), ring: Some(76), ..plain(4, 2, 96, F16) },
        Layer { norm, kv_source: Nothing, rope: rope(5, Half, 1.0), ..plain(4, 2, 20, F32) },
        Layer {
            norm: norm_after_rope,
            kv_source: Nothing,
            window: Some(19),
            ring: Some(76),
            sinks: true,
            ..plain(5, 1, 96, Q8_0)
        },
        Layer { kv_source: Nothing, ..plain(3, 3, 64, F16) },
        // Heads without RoPE.
        Layer { rope: RopeParameters::none(), ..plain(4, 2, 20, F32) },
        Layer { norm, rope: RopeParameters::none(), ..plain(5, 1, 96, Q8_0) },
        Layer { norm: of_values, kv_source: Keys, rope: RopeParameters::none(), ..plain(6, 3, 18, F16) },
        Layer { norm, kv_source: Nothing, rope: RopeParameters::none(), ..plain(3, 3, 64, F16) },
        // Gates: with and without a prologue, and with heads that do not fit in threadgroup memory.
        Layer {
            gated: true,
            kv_source: KeysValuesAndGates,
            norm,
            rope: rope(5, Half, 1.0),
            ..plain(4, 2, 20, F32)
        },
        Layer {
            gated: true,
            kv_source: KeysValuesAndGates,
            window: Some(19),
            ring: Some(76),
            sinks: true,
            ..plain(5, 1, 96, Q8_0)
        },
        Layer { gated: true, kv_source: KeysValuesAndGates, ..plain(9, 1, 256, F16) },
        // Heads of two packets per lane: with prepared queries, with queries in threadgroup memory, and with
        // values computed from keys.
        Layer { norm: of_values, kv_source: Keys, rope: rope(64, Half, 1.0), ..plain(4, 1, 512, F16) },
        Layer { norm, softcap: Some(2.0), ..plain(3, 1, 512, F32) },
        Layer { sinks: true, ..plain(8, 1, 512, F16) },
        Layer { window: Some(40), norm: of_values, ..plain(2, 2, 512, Q8_0) },
        // Queries that do not fit in threadgroup memory, and therefore have no prologue.
        Layer { sinks: true, ..plain(9, 1, 256, F16) },
        Layer { softcap: Some(1.0), ..plain(18, 1, 126, F32) },
    ];
    let gates = |layer| Layer { gated: true, kv_source: KeysValuesAndGates, ..layer };
    // Other contexts, from a single position to more than a block of them.
    samples.extend([
        sharp(plain(4, 4, 2, F32), 1),
        sharp(plain(4, 2, 16, F32), 70),
        sharp(plain(9, 3, 64, F16), 300),
        sharp(Layer { norm, rope: rope(5, Interleaved, 1.0), ..plain(8, 1, 10, F16) }, 65),
        sharp(Layer { norm, ..plain(4, 2, 128, F32) }, 64),
        sharp(Layer { rope: rope(16, Half, 1.25), ..plain(5, 1, 48, F16) }, 200),
        sharp(plain(7, 7, 80, F32), 129),
        sharp(plain(8, 1, 512, F16), 70),
        sharp(Layer { norm, window: Some(500), ..plain(32, 1, 256, F16) }, 40),
        sharp(Layer { rope: rope(128, Interleaved, 1.0), ..plain(4, 2, 512, F32) }, 40),
        sharp(Layer { rope: RopeParameters::none(), ..plain(2, 2, 30, F32) }, 100),
        sharp(Layer { window: Some(1), sinks: true, ..plain(4, 2, 16, F32) }, 70),
        sharp(Layer { window: Some(65), softcap: Some(0.5), norm, ..plain(4, 2, 18, F16) }, 300),
        sharp(
            Layer { window: Some(1000), softcap: Some(2.0), sinks: true, ..gates(plain(4, 2, 18, F16)) },
            300,
        ),
        sharp(Layer { window: Some(7), sinks: true, rope: rope(7, Half, 1.0), ..plain(6, 2, 20, F32) }, 200),
        sharp(Layer { window: Some(40), softcap: Some(1.0), sinks: true, ..plain(2, 1, 64, F16) }, 90),
        Layer {
            window: Some(64),
            softcap: Some(2.0),
            sinks: true,
            norm,
            rope: rope(7, Half, 1.0),
            context: 256,
            ..plain(6, 2, 20, F32)
        },
        Layer {
            window: Some(1),
            sinks: true,
            rope: rope(64, Interleaved, 1.0),
            context: 256,
            ..plain(3, 3, 128, F16)
        },
        Layer { norm, window: Some(500), context: 256, ..plain(8, 1, 64, F16) },
        Layer { rope: rope(128, Interleaved, 1.0), context: 12, ..plain(2, 1, 256, F32) },
        Layer { rope: RopeParameters::none(), context: 12, ..plain(2, 1, 6, F32) },
        Layer { kv_source: Keys, rope: rope(64, Interleaved, 1.0), ..plain(3, 3, 128, F16) },
        Layer { norm: of_values, ..plain(4, 2, 16, F16) },
        Layer {
            kv_source: Keys,
            norm: of_values,
            window: Some(64),
            sinks: true,
            rope: rope(7, Half, 1.0),
            ..plain(6, 2, 20, F32)
        },
        Layer {
            kv_source: Nothing,
            window: Some(64),
            softcap: Some(2.0),
            sinks: true,
            rope: rope(7, Half, 1.0),
            context: 256,
            ..plain(6, 2, 20, F32)
        },
        Layer { kv_source: Nothing, norm, ..plain(4, 2, 16, F16) },
        Layer { norm, ..gates(plain(4, 2, 16, F16)) },
        Layer {
            window: Some(64),
            sinks: true,
            rope: RopeParameters::none(),
            context: 256,
            ..gates(plain(6, 2, 20, F32))
        },
        Layer { norm: norm_after_rope, rope: rope(8, Half, 1.0), ..plain(4, 2, 18, F32) },
        Layer { kv_source: Keys, norm: of_values, context: 12, ..plain(6, 3, 16, F32) },
    ]);
    samples
}
