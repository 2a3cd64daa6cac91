//! The seam between the runtime and the generated `model.rs`: what a model tells, and what it is asked to do.
//!
//! A generated model has constants, weights (spans of the weight file), state and scratch (spans of two buffers it
//! lays out itself) and three functions. In outline:
//!
//! ```ignore
//! pub struct Llama { embed: Q8_0, layers: Vec<Layer>, final_gain: Span<f32>, caches: Vec<Cache>, context: u32, layout: Layout }
//!
//! pub static INFO: Info = Info { name: "llama", vocabulary: 32_000, /* ... */ };
//!
//! impl Llama {
//!     pub fn load(weights: &WeightFile, context: u32, slots: u32) -> Result<Box<dyn Model>, Error> {
//!         let embed: Q8_0 = weights.matrix("embed", VOCABULARY, HIDDEN)?;
//!         // ... one line a weight
//!         let mut state = State::new(slots);
//!         let keys: Span<f16> = state.cache(KEY_HEADS, context, HEAD);
//!         // ... two lines a layer
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
//!     fn forward(&self, pass: &mut dyn Pass, rows: &Rows) {
//!         kernels::embed(pass, self.embed, rows.ids, STREAM, rows.count);
//!         for (layer, cache) in self.layers.iter().zip(&self.caches) { /* ... */ }
//!     }
//!
//!     fn head(&self, pass: &mut dyn Pass, program: Program, wanted: &Wanted) {
//!         pass.barrier();
//!         kernels::final_norm(pass, STREAM, self.final_gain, wanted.wanted, NORMED, wanted.rows);
//!         // ... head -> LOGITS, argmax or sample -> wanted.next
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
    /// What is true of it whatever the context and the number of slots.
    fn info(&self) -> &'static ModelInfo;

    /// Sizes of its buffers, and where the host writes and reads.
    fn layout(&self) -> &Layout;

    /// Encodes the embedding and all layers for these rows.
    fn forward(&self, pass: &mut dyn Pass, rows: &Batch);

    /// Encodes the final norm, the head and the choice of the next id for some of them. The program is that of [`Model::forward`], which it
    /// follows in one pass or in a later pass of its own, so it begins with a barrier.
    fn head(&self, pass: &mut dyn Pass, schedule: Schedule, wanted: &LogitRows);
}

/// Looks a model's weights up and lays its state out for so many slots (the last argument) of a context length.
pub type LoadModel = fn(&WeightFile, u32, u32) -> Result<Box<dyn Model>, Error>;

/// Rows: how many, what computes them, and where it is said what they are.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// What computes them.
    pub schedule: Schedule,
    /// One of [`Schedule::Decode`], `1 ..= INFO.chunk` of [`Schedule::Batch`].
    pub count: u32,
    /// The largest position among them, plus 1.
    pub longest: u32,
    /// Whether all are known to be of one slot.
    pub of_one_slot: bool,
    /// `[count]` The id of each.
    pub ids: Span<u32>,
    /// `[count]` The slot of each.
    pub slots: Span<u32>,
    /// `[count]` The position of each in its slot.
    pub positions: Span<u32>,
}

/// Rows that get logits, how the next id is chosen, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct LogitRows {
    /// One of [`Schedule::Decode`], `1 ..= INFO.head_rows` of [`Schedule::Batch`].
    pub rows: u32,
    /// `[rows]` Which of the rows that [`Model::forward`] was given.
    pub wanted: Span<u32>,
    /// `[rows, Draw::WORDS]` How the next id of each is drawn; none where it is that of the largest logit.
    pub draws: Option<Span<u32>>,
    /// `[rows]` The id that comes next of each.
    pub next: Span<u32>,
}

/// What the compiler knows of a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// What people call it.
    pub name: &'static str,
    /// The architecture it was read from.
    pub architecture: &'static str,
    /// Numbers in its weights.
    pub parameters: u64,
    /// Logits a row; ids are below it.
    pub vocabulary: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Layers.
    pub layers: u32,
    /// The longest context that it may be run with.
    pub context: u32,
    /// Rows that a pass takes at most.
    pub chunk: u32,
    /// Rows that get logits in one pass at most.
    pub head_rows: u32,
    /// The id that begins a text, where there is one.
    pub begin: Option<u32>,
    /// Ids that end a text.
    pub end: &'static [u32],
    /// Format and bytes of all weights in that format, widest first.
    pub formats: &'static [(&'static str, u64)],
    /// The format of cached keys and values.
    pub cache: &'static str,
    /// Bytes of state for one position of one slot, in layers that keep every position.
    pub state_bytes_per_position: u64,
    /// What layers that see the last positions only keep, if the context is long enough for them to keep less than all.
    pub rings: &'static [Ring],
    /// Bytes that a slot has beside, however long its text is: those of memories.
    pub memory_bytes: u64,
    /// What one decoded token costs.
    pub decode: Cost,
    /// What a pass of `chunk` rows costs.
    pub prefill: Cost,
    /// Steps of layers at decode beyond the five that any layer has, and why each is a dispatch of its own.
    pub beyond: &'static [(&'static str, &'static str)],
}

impl ModelInfo {
    /// Ids all over the vocabulary, the same every time: a text to measure with.
    pub fn some_ids(&self, count: u32) -> Vec<u32> {
        (0..count).map(|i| (u64::from(i) * 2_654_435_761 % u64::from(self.vocabulary)) as u32).collect()
    }
}

/// The caches of layers that see the last positions only. Position p lies at `p % positions`, so of a slot that has
/// held n positions they keep those from `n - positions` on.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Positions that a row of these layers sees, its own included.
    pub window: u32,
    /// Positions that they keep at most: a window, and what else a pass may bring before its first row has seen its own.
    pub positions: u32,
    /// Bytes of all of them for one position of one slot.
    pub bytes_per_position: u64,
}

impl Ring {
    /// Positions that a slot has room for here.
    pub const fn capacity(&self, context: u32) -> u32 {
        if context < self.positions { context } else { self.positions }
    }

    /// Whether a slot that has held `most` positions still has here what a row at position `length` sees: all that it
    /// looks back on, `length - window + 1` to `length - 1`, or nothing.
    pub const fn reaches(&self, most: u32, length: u32) -> bool {
        let oldest = most.saturating_sub(self.positions);
        length == 0 || (length + 1).saturating_sub(self.window) >= oldest
    }
}

/// What a pass costs, as planned.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Dispatches, embedding and head included.
    pub dispatches: u32,
    /// Barriers.
    pub barriers: u32,
    /// Bytes that have to be read from memory at least: weights, and state at the first position.
    pub bytes_read: u64,
    /// Additions and multiplications.
    pub operations: u64,
    /// Dispatches of each layer.
    pub dispatches_per_layer: &'static [u32],
    /// More dispatches of each layer where the cache is split.
    pub more_when_split: &'static [u32],
}

/// Sizes of a model's buffers, and the spans through which the host and the model talk.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Where what slots remember lies.
    pub state: StateLayout,
    /// Bytes of [`Buffer::Scratch`].
    pub scratch_bytes: usize,
    /// Bytes of [`Buffer::Rows`].
    pub rows_bytes: usize,
    /// `[chunk]` The id of each row.
    pub ids: Span<u32>,
    /// `[chunk]` The slot of each row.
    pub slots: Span<u32>,
    /// `[chunk]` The position of each row in its slot.
    pub positions: Span<u32>,
    /// `[head_rows]` Which rows get logits.
    pub wanted: Span<u32>,
    /// `[head_rows, Draw::WORDS]` How the next id of each of these is drawn, if by chance.
    pub draws: Span<u32>,
    /// `[head_rows]` The next id of each of these.
    pub next: Span<u32>,
    /// Where ids follow each other without the host.
    pub wheel: TokenRing,
    /// `[head_rows, vocabulary]`
    pub logits: Span<f32>,
    /// The matrices of the experts of each layer that has any.
    pub experts: Vec<ExpertWeights>,
    /// `[experts]` Which matrix of a stack is each expert's: its own, as the engine says once. A device that streams experts tells
    /// kernels of others in its place.
    pub seats: Span<u32>,
}

impl Layout {
    /// Lays [`Buffer::Rows`] out, what the host writes before what it reads; the rest is as given.
    pub fn new(info: &ModelInfo, state: StateLayout, scratch_bytes: usize, logits: Span<f32>) -> Layout {
        let mut rows = Arena::new(Buffer::Rows);
        let (chunk, head_rows) = (info.chunk as usize, info.head_rows as usize);
        let [ids, slots, positions] = [rows.take(chunk), rows.take(chunk), rows.take(chunk)];
        let wanted = rows.take(head_rows);
        let draws = rows.take(head_rows * DeviceSampling::WORDS);
        let [positions_of_wheel, draws_of_wheel, ids_of_wheel] =
            [1, DeviceSampling::WORDS, 1].map(|words| rows.take(TokenRing::PLACES * words));
        let wheel = TokenRing { ids: ids_of_wheel, positions: positions_of_wheel, draws: draws_of_wheel };
        let next = rows.take(head_rows);
        let (rows_bytes, seats, experts) = (rows.bytes(), rows.take(0), Vec::new());
        Layout {
            state,
            scratch_bytes,
            rows_bytes,
            ids,
            slots,
            positions,
            wanted,
            draws,
            next,
            wheel,
            logits,
            experts,
            seats,
        }
    }

    /// The same, of a model with experts.
    pub fn with_experts(self, experts: Vec<ExpertWeights>) -> Layout {
        let most = experts.iter().map(|stacks| stacks.experts).max().unwrap_or(0);
        let seats: Span<u32> = Span::new(Buffer::Rows, self.seats.offset, most * size_of::<u32>());
        Layout { experts, seats, rows_bytes: seats.offset + seats.bytes, ..self }
    }

    /// The first `count` rows of what the host writes, whose slots are not known.
    pub const fn rows(&self, schedule: Schedule, count: u32, longest: u32) -> Batch {
        let (ids, slots) = (self.ids.first(count as usize), self.slots.first(count as usize));
        let (of_one_slot, positions) = (count == 1, self.positions.first(count as usize));
        Batch { schedule, count, longest, of_one_slot, ids, slots, positions }
    }

    /// The first `rows` of those that the host names, of which the next ids are drawn or the most probable.
    pub fn heads(&self, rows: u32, are_drawn: bool) -> LogitRows {
        let (wanted, next) = (self.wanted.first(rows as usize), self.next.first(rows as usize));
        let draws = are_drawn.then(|| self.draws.first(rows as usize * DeviceSampling::WORDS));
        LogitRows { rows, wanted, draws, next }
    }
}

/// Places of lone rows one after the other: the id that a row gives is that of the next place, after the last the first again.
/// Slot and wanted row are those of the first row of a batch.
#[derive(Clone, Copy, Debug)]
pub struct TokenRing {
    /// `[PLACES]` The id of each, which the host writes or the row before it gives.
    pub ids: Span<u32>,
    /// `[PLACES]` The position of each.
    pub positions: Span<u32>,
    /// `[PLACES, Draw::WORDS]` How the id after each is drawn, if by chance.
    pub draws: Span<u32>,
}

impl TokenRing {
    /// As many ids as are on their way at most: those that a row still reads are not written over.
    pub const PLACES: usize = 16;

    /// What a row at a place, of a position, reads and gives; the id after it is drawn or the most probable.
    pub fn row(
        &self,
        layout: &Layout,
        schedule: Schedule,
        (place, position): (usize, u32),
        is_drawn: bool,
    ) -> (Batch, LogitRows) {
        let (ids, positions) = (self.ids.part(place, 1), self.positions.part(place, 1));
        let slots = layout.slots.first(1);
        let next = self.ids.part((place + 1) % TokenRing::PLACES, 1);
        let (longest, of_one_slot) = (position + 1, true);
        let rows = Batch { schedule, count: 1, longest, of_one_slot, ids, slots, positions };
        let draws = is_drawn.then(|| self.draws.part(place * DeviceSampling::WORDS, DeviceSampling::WORDS));
        (rows, LogitRows { rows: 1, wanted: layout.wanted.first(1), draws, next })
    }
}

/// Hands out spans of a buffer one after another, each on a multiple of 256 bytes.
#[derive(Clone, Debug)]
pub struct Arena {
    buffer: Buffer,
    used: usize,
}

impl Arena {
    /// What every span's offset is a multiple of: enough for any device's loads and bindings.
    pub const ALIGNMENT: usize = 256;

    /// An arena of `buffer`, from its start.
    pub const fn new(buffer: Buffer) -> Arena {
        Arena { buffer, used: 0 }
    }

    /// Space for `count` elements.
    pub const fn take<T>(&mut self, count: usize) -> Span<T> {
        let offset = self.used.next_multiple_of(Arena::ALIGNMENT);
        let bytes = count * size_of::<T>();
        self.used = offset + bytes;
        Span::new(self.buffer, offset, bytes)
    }

    /// Bytes handed out so far, the gaps between spans included.
    pub const fn bytes(&self) -> usize {
        self.used
    }
}
