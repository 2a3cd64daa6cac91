//! The interface between the runtime and the generated `model.rs`.
//!
//! A generated model has constants, weights (spans of the weight file), state and scratch (spans of two
//! buffers), and three functions. In outline:
//!
//! ```ignore
//! pub struct Llama { embed: Q8_0, layers: Vec<Layer>, final_gain: Span<f32>, caches: Vec<Cache>, context: u32, layout: Layout }
//!
//! pub static INFO: ModelInfo = ModelInfo { name: "llama", vocabulary: 32_000, /* ... */ };
//!
//! impl Llama {
//!     pub fn load(weights: &WeightFile, context: u32, slots: u32) -> Result<Box<dyn Model>, Error> {
//!         let embed: Q8_0 = weights.matrix("embed", VOCAB_SIZE, HIDDEN_SIZE)?;
//!         // ... one line per weight
//!         let mut state = StateLayout::new(slots);
//!         let keys: Span<f16> = state.kv_cache(NUM_KV_HEADS, context, HEAD_DIM);
//!         // ... two lines per layer
//!         let layout = Layout::new(&INFO, state, SCRATCH_BYTES, LOGITS);
//!         Ok(Box::new(Llama { embed, layers, final_gain, caches, context, layout }))
//!     }
//! }
//!
//! impl Model for Llama {
//!     fn info(&self) -> &'static Info { &INFO }
//!
//!     fn layout(&self) -> &Layout { &self.layout }
//!
//!     fn forward(&self, pass: &mut dyn Pass, rows: &Batch) {
//!         kernels::embed(pass, self.embed, rows.ids, STREAM, rows.count);
//!         for (layer, cache) in self.layers.iter().zip(&self.caches) { /* ... */ }
//!     }
//!
//!     fn head(&self, pass: &mut dyn Pass, schedule: Schedule, wanted: &LogitRows) {
//!         pass.barrier();
//!         kernels::final_norm(pass, STREAM, self.final_gain, wanted.row_indices, NORMED, wanted.rows);
//!         // ... head -> LOGITS, argmax or sample -> wanted.next_tokens
//!     }
//! }
//! ```

pub mod memory;
pub mod state;

use crate::device::{Buffer, Pass, Schedule, Span};
use crate::error::Error;
use crate::model::state::StateLayout;
use crate::offload::ExpertWeights;
use crate::sampling::device_sampling::DeviceSampling;
use crate::weights::WeightFile;

/// A compiled model.
pub trait Model: Send + Sync {
    /// Constants that do not depend on context length and slots.
    fn info(&self) -> &'static ModelInfo;

    /// Buffer sizes, and the spans that the host reads and writes.
    fn layout(&self) -> &Layout;

    /// Encodes the embedding and all layers for these rows.
    fn forward(&self, pass: &mut dyn Pass, rows: &Batch);

    /// Encodes the final norm, the head and the choice of the next token for some of these rows. The schedule
    /// is that of [`Model::forward`]. The head follows it in the same pass or in a later one, so it begins
    /// with a barrier.
    fn head(&self, pass: &mut dyn Pass, schedule: Schedule, wanted: &LogitRows);
}

/// Constructs a model: looks its weights up and lays its state out. The arguments are the context length and
/// the number of slots.
pub type LoadModel = fn(&WeightFile, u32, u32) -> Result<Box<dyn Model>, Error>;

/// The rows of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The schedule that computes them.
    pub schedule: Schedule,
    /// Number of rows: 1 in [`Schedule::Decode`], 1 to `chunk` in [`Schedule::Batch`].
    pub count: u32,
    /// The largest position plus 1.
    pub max_length: u32,
    /// Whether all rows belong to one slot.
    pub is_single_slot: bool,
    /// `[count]` Token ids.
    pub ids: Span<u32>,
    /// `[count]` Slots.
    pub slots: Span<u32>,
    /// `[count]` Positions in the slots.
    pub positions: Span<u32>,
}

/// The rows that get logits, and how their next tokens are chosen.
#[derive(Clone, Copy, Debug)]
pub struct LogitRows {
    /// Number of rows: 1 in [`Schedule::Decode`], 1 to `head_rows` in [`Schedule::Batch`].
    pub rows: u32,
    /// `[rows]` Row indices in the batch of [`Model::forward`].
    pub row_indices: Span<u32>,
    /// `[rows, DeviceSampling::WORDS]` Sampling parameters; `None` for greedy.
    pub sampling: Option<Span<u32>>,
    /// `[rows]` Output: the next token ids.
    pub next_tokens: Span<u32>,
}

/// Constants of a compiled model.
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// The model's name.
    pub name: &'static str,
    /// The architecture in the checkpoint's config.
    pub architecture: &'static str,
    /// Number of parameters.
    pub parameters: u64,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// Hidden size: width of the residual stream.
    pub hidden: u32,
    /// Number of layers.
    pub layers: u32,
    /// The maximum context length in tokens.
    pub context: u32,
    /// Maximum rows in a pass.
    pub prefill_chunk: u32,
    /// Maximum rows with logits in a pass.
    pub head_rows: u32,
    /// The begin-of-text token, if there is one.
    pub bos: Option<u32>,
    /// The end-of-text tokens.
    pub eos: &'static [u32],
    /// Weight formats with their bytes, widest format first.
    pub formats: &'static [(&'static str, u64)],
    /// The KV cache format.
    pub kv_cache_format: &'static str,
    /// Bytes of KV cache per token and slot, in layers that keep every position.
    pub kv_bytes_per_token: u64,
    /// The sliding-window caches, with their bytes per token.
    pub sliding_caches: &'static [SlidingCache],
    /// Bytes of recurrent state per slot, independent of length.
    pub recurrent_state_bytes: u64,
    /// The cost of one decoded token.
    pub decode: Cost,
    /// The cost of a pass of `chunk` rows.
    pub prefill: Cost,
    /// Dispatches of a layer beyond five, each with the reason why it is not fused.
    pub extra_dispatches: &'static [(&'static str, &'static str)],
}

impl ModelInfo {
    /// A deterministic token sequence spread over the vocabulary, for measurements.
    pub fn test_tokens(&self, count: u32) -> Vec<u32> {
        (0..count).map(|i| (u64::from(i) * 2_654_435_761 % u64::from(self.vocabulary)) as u32).collect()
    }
}

/// The sliding-window caches of one window size: ring buffers. Position p is stored at `p % positions`. A
/// slot that has held n positions keeps those from `n - positions` on.
#[derive(Clone, Copy, Debug)]
pub struct SlidingCache {
    /// The window: positions that a row sees, its own included.
    pub window: u32,
    /// Capacity: the window, plus the rows that a pass may append before its first row is computed.
    pub positions: u32,
    /// Bytes of all these caches per position and slot.
    pub bytes_per_position: u64,
}

impl SlidingCache {
    /// Capacity for a context length.
    pub const fn capacity(&self, context: u32) -> u32 {
        if context < self.positions { context } else { self.positions }
    }

    /// Whether a slot that has held `most` positions can be rewound to `length`: the positions that the next
    /// row sees, `length - window + 1` to `length - 1`, have not been overwritten.
    pub const fn can_rewind(&self, most: u32, length: u32) -> bool {
        let oldest = most.saturating_sub(self.positions);
        length == 0 || (length + 1).saturating_sub(self.window) >= oldest
    }
}

/// The planned cost of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Number of dispatches, embedding and head included.
    pub dispatches: u32,
    /// Number of barriers.
    pub barriers: u32,
    /// Bytes of weights and state read from memory at least, at position 0.
    pub bytes_read: u64,
    /// Number of additions and multiplications.
    pub operations: u64,
    /// Dispatches of each layer.
    pub dispatches_per_layer: &'static [u32],
    /// Extra dispatches of each layer with split KV.
    pub extra_when_split: &'static [u32],
}

/// Buffer sizes, and the spans shared by host and model.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Layout of the KV cache and recurrent states.
    pub state: StateLayout,
    /// Bytes of [`Buffer::Scratch`].
    pub scratch_bytes: usize,
    /// Bytes of [`Buffer::Rows`].
    pub rows_bytes: usize,
    /// `[chunk]` Token ids of the rows.
    pub ids: Span<u32>,
    /// `[chunk]` Slots of the rows.
    pub slots: Span<u32>,
    /// `[chunk]` Positions of the rows.
    pub positions: Span<u32>,
    /// `[head_rows]` Indices of the rows that get logits.
    pub row_indices: Span<u32>,
    /// `[head_rows, DeviceSampling::WORDS]` Sampling parameters of these rows.
    pub sampling: Span<u32>,
    /// `[head_rows]` Next token ids of these rows.
    pub next_tokens: Span<u32>,
    /// Token ring of multi-step decode.
    pub token_ring: TokenRing,
    /// `[head_rows, vocabulary]` Logits.
    pub logits: Span<f32>,
    /// The expert matrices of each MoE layer.
    pub experts: Vec<ExpertWeights>,
    /// `[experts]` The cache slot of each expert. The engine writes the identity; a device that streams
    /// experts writes cache slots.
    pub expert_slots: Span<u32>,
}

impl Layout {
    /// Lays out [`Buffer::Rows`]; the other arguments are taken as they are.
    pub fn new(info: &ModelInfo, state: StateLayout, scratch_bytes: usize, logits: Span<f32>) -> Layout {
        let mut rows = Arena::new(Buffer::Rows);
        let (chunk, head_rows) = (info.prefill_chunk as usize, info.head_rows as usize);
        let [ids, slots, positions] = [rows.take(chunk), rows.take(chunk), rows.take(chunk)];
        let row_indices = rows.take(head_rows);
        let sampling = rows.take(head_rows * DeviceSampling::WORDS);
        let [positions_of_wheel, draws_of_wheel, ids_of_wheel] =
            [1, DeviceSampling::WORDS, 1].map(|words| rows.take(TokenRing::CAPACITY * words));
        let token_ring =
            TokenRing { ids: ids_of_wheel, positions: positions_of_wheel, sampling: draws_of_wheel };
        let next_tokens = rows.take(head_rows);
        let (rows_bytes, expert_slots, experts) = (rows.bytes(), rows.take(0), Vec::new());
        Layout {
            state,
            scratch_bytes,
            rows_bytes,
            ids,
            slots,
            positions,
            row_indices,
            sampling,
            next_tokens,
            token_ring,
            logits,
            experts,
            expert_slots,
        }
    }

    /// Adds the experts of an MoE model.
    pub fn with_experts(self, experts: Vec<ExpertWeights>) -> Layout {
        let most = experts.iter().map(|stacks| stacks.experts).max().unwrap_or(0);
        let expert_slots: Span<u32> =
            Span::new(Buffer::Rows, self.expert_slots.offset, most * size_of::<u32>());
        Layout { experts, expert_slots, rows_bytes: expert_slots.offset + expert_slots.bytes, ..self }
    }

    /// The first `count` rows. They are of one slot if `count` is 1.
    pub const fn rows(&self, schedule: Schedule, count: u32, longest: u32) -> Batch {
        let (ids, slots) = (self.ids.first(count as usize), self.slots.first(count as usize));
        let (of_one_slot, positions) = (count == 1, self.positions.first(count as usize));
        Batch { schedule, count, max_length: longest, is_single_slot: of_one_slot, ids, slots, positions }
    }

    /// The first `rows` output rows, sampled or greedy.
    pub fn logit_rows(&self, rows: u32, are_drawn: bool) -> LogitRows {
        let (wanted, next) = (self.row_indices.first(rows as usize), self.next_tokens.first(rows as usize));
        let draws = are_drawn.then(|| self.sampling.first(rows as usize * DeviceSampling::WORDS));
        LogitRows { rows, row_indices: wanted, sampling: draws, next_tokens: next }
    }
}

/// The ring of rows in multi-step decode. A row writes its token id to the entry after its own, and the last
/// entry is followed by the first. Slot and output row are those of the first row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct TokenRing {
    /// `[CAPACITY]` Token ids, written by the host or by the previous row.
    pub ids: Span<u32>,
    /// `[CAPACITY]` Positions.
    pub positions: Span<u32>,
    /// `[CAPACITY, DeviceSampling::WORDS]` Sampling parameters of the token after each row.
    pub sampling: Span<u32>,
}

impl TokenRing {
    /// Ring size: an upper bound on tokens in flight, so that no entry is overwritten before it is read.
    pub const CAPACITY: usize = 16;

    /// The batch and output rows for the row at a ring index and position.
    pub fn row(
        &self,
        layout: &Layout,
        schedule: Schedule,
        (place, position): (usize, u32),
        is_drawn: bool,
    ) -> (Batch, LogitRows) {
        let (ids, positions) = (self.ids.part(place, 1), self.positions.part(place, 1));
        let slots = layout.slots.first(1);
        let next = self.ids.part((place + 1) % TokenRing::CAPACITY, 1);
        let (longest, of_one_slot) = (position + 1, true);
        let rows = Batch {
            schedule,
            count: 1,
            max_length: longest,
            is_single_slot: of_one_slot,
            ids,
            slots,
            positions,
        };
        let draws =
            is_drawn.then(|| self.sampling.part(place * DeviceSampling::WORDS, DeviceSampling::WORDS));
        (
            rows,
            LogitRows {
                rows: 1,
                row_indices: layout.row_indices.first(1),
                sampling: draws,
                next_tokens: next,
            },
        )
    }
}

/// A bump allocator of spans in a buffer, aligned to 256 bytes.
#[derive(Clone, Debug)]
pub struct Arena {
    buffer: Buffer,
    used: usize,
}

impl Arena {
    /// Alignment of every span in bytes; enough for all devices.
    pub const ALIGNMENT: usize = 256;

    /// An empty arena.
    pub const fn new(buffer: Buffer) -> Arena {
        Arena { buffer, used: 0 }
    }

    /// Allocates `count` elements.
    pub const fn take<T>(&mut self, count: usize) -> Span<T> {
        let offset = self.used.next_multiple_of(Arena::ALIGNMENT);
        let bytes = count * size_of::<T>();
        self.used = offset + bytes;
        Span::new(self.buffer, offset, bytes)
    }

    /// Bytes allocated, gaps included.
    pub const fn bytes(&self) -> usize {
        self.used
    }
}
