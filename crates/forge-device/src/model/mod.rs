//! The interface between the runtime and the generated `model.rs`.
//!
//! A generated model has constants, weights (spans of the weight file), state and scratch (spans of two
//! buffers), and three functions. In outline:
//!
//! ```ignore
//! pub struct Llama { embed: Matrix<Q8_0>, layers: Vec<Layer>, final_gain: Span<f32>, caches: Vec<Cache>, context: u32, layout: Layout }
//!
//! pub static INFO: ModelInfo = ModelInfo { name: "llama", vocabulary: 32_000, /* ... */ };
//!
//! impl Llama {
//!     pub fn load(weights: &WeightFile, context: u32, slots: u32) -> Result<Box<dyn Model>, Error> {
//!         let embed: Matrix<Q8_0> = weights.matrix("embed", VOCAB_SIZE, HIDDEN_SIZE)?;
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

pub(crate) mod arena;
pub(crate) mod info;
pub(crate) mod layout;
pub mod memory;
pub mod state;

pub use crate::model::arena::Arena;
pub use crate::model::info::{Cost, ModelInfo, PredictedDecode, SlidingCache};
pub use crate::model::layout::{Batch, Layout, LogitRows, TokenRing};

use crate::device::{Pass, Schedule};
use crate::error::Error;
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
