//! Layout of a model's buffers, and the spans that the host reads and writes: the rows of a pass and its
//! outputs.

use crate::device::{Buffer, Schedule, Span};
use crate::model::arena::Arena;
use crate::model::info::ModelInfo;
use crate::model::state::StateLayout;
use crate::offload::ExpertWeights;
use crate::sampling::device_sampling::DeviceSampling;

/// The rows of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The schedule that computes them.
    pub schedule: Schedule,
    /// Number of rows: 1 to `decode_rows` in [`Schedule::Decode`], 1 to `chunk` in [`Schedule::Batch`].
    pub count: u32,
    /// The largest position plus 1.
    pub max_length: u32,
    /// Whether all rows belong to one slot.
    pub is_single_slot: bool,
    /// Whether some rows belong to the same slot.
    pub shares_slots: bool,
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
    /// Number of rows: all rows of the pass in [`Schedule::Decode`], 1 to `head_rows` in [`Schedule::Batch`].
    pub rows: u32,
    /// `[rows]` Row indices in the batch of [`Model::forward`](crate::model::Model::forward).
    pub row_indices: Span<u32>,
    /// `[rows, DeviceSampling::WORDS]` Sampling parameters; `None` for greedy.
    pub sampling: Option<Span<u32>>,
    /// `[rows]` Output: the next token ids.
    pub next_tokens: Span<u32>,
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
    /// `[2, chunk]` Token ids of the rows, of two passes in turn.
    pub ids: Span<u32>,
    /// `[2, chunk]` Slots of the rows.
    pub slots: Span<u32>,
    /// `[2, chunk]` Positions of the rows.
    pub positions: Span<u32>,
    /// `[max_logit_rows]` Indices of the rows that get logits.
    pub row_indices: Span<u32>,
    /// `[max_logit_rows, DeviceSampling::WORDS]` Sampling parameters of these rows.
    pub sampling: Span<u32>,
    /// `[max_logit_rows]` Next token ids of these rows.
    pub next_tokens: Span<u32>,
    /// Token ring of multi-step decode.
    pub token_ring: TokenRing,
    /// `[max_logit_rows, vocabulary]` Logits.
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
        let (chunk, logit_rows) = (info.prefill_chunk as usize, info.max_logit_rows());
        let [ids, slots, positions] = [(); 3].map(|()| rows.take(2 * chunk));
        let row_indices = rows.take(logit_rows);
        let sampling = rows.take(logit_rows * DeviceSampling::WORDS);
        let [positions_of_wheel, draws_of_wheel, ids_of_wheel] =
            [1, DeviceSampling::WORDS, 1].map(|words| rows.take(TokenRing::CAPACITY * words));
        let token_ring =
            TokenRing { ids: ids_of_wheel, positions: positions_of_wheel, sampling: draws_of_wheel };
        let next_tokens = rows.take(logit_rows);
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

    /// The first `count` rows, of different slots.
    pub const fn rows(&self, schedule: Schedule, count: u32, longest: u32) -> Batch {
        let (ids, slots) = (self.ids.first(count as usize), self.slots.first(count as usize));
        let (of_one_slot, positions) = (count == 1, self.positions.first(count as usize));
        Batch {
            schedule,
            count,
            max_length: longest,
            is_single_slot: of_one_slot,
            shares_slots: false,
            ids,
            slots,
            positions,
        }
    }

    /// The same rows in the other half of each span, for a pass that begins while another one is in flight.
    pub fn in_second_half(&self, batch: Batch) -> Batch {
        let half = |span: Span<u32>| {
            let all = span.bytes / size_of::<u32>();
            span.part(all / 2, batch.count as usize)
        };
        Batch { ids: half(self.ids), slots: half(self.slots), positions: half(self.positions), ..batch }
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
            shares_slots: false,
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
