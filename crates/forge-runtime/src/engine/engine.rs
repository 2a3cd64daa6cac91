//! The engine: runs batches of tokens through a model on a device and returns logits or token ids.
//!
//! A row is a token with its slot and position. The engine runs rows in passes of at most `chunk` rows,
//! tracks the length of each slot, and rejects invalid rows before anything is computed.
//!
//! A model has a decode schedule, optimized for one row per slot, and a batch schedule for any rows. They
//! round differently ([`Schedule`]). Which one computes a row depends only on the rows of its own slot, so that
//! a sequence's results do not depend on the other slots:
//! - With one slot, a pass of one row is decoded.
//! - With several slots, the only row of its slot in a pass is decoded, up to [`ModelInfo::decode_rows`] such
//!   rows in one pass, if the model and the device support it ([`Device::decodes_batches`]). Otherwise, and with
//!   more than [`MAX_DECODED_ROWS`] such rows, only the batch schedule is used.
//!
//! A slot can be rewound to an earlier position. This fails if a sliding-window cache has been overwritten
//! there ([`SlidingCache`]), or if a recurrent state is past that position; the slot then restarts at 0.
//! [`Engine::truncate`] returns how much is kept, and is the only place that decides. What can be rewound can
//! also be copied to another slot.
//!
//! If tokens are chosen on the device, it can decode several in a row: see
//! [`MultiStepDecoder`](crate::engine::MultiStepDecoder).

use crate::device::{Buffer, Device, Schedule, Span};
use crate::engine::output::{OutputKind, Row, StepOutput};
use crate::error::Error;
use crate::model::{Batch, Layout, Model, ModelInfo, SlidingCache};
use crate::sampling::device_sampling::DeviceSampling;

/// Maximum rows of a batch that are decoded in passes of [`ModelInfo::decode_rows`]. With more, one batch pass is
/// faster, and results depend on the number of rows.
const MAX_DECODED_ROWS: usize = 64;

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotState {
    /// Tokens in the slot.
    pub(super) len: u32,
    /// The longest length since the slot was empty; the cache has been written up to here.
    pub(super) high_water: u32,
    /// The position that recurrent states are at. They cannot step back.
    pub(super) state_pos: u32,
}

/// A snapshot of a slot's recurrent states at one length.
#[derive(Clone, Debug)]
struct StateSnapshot {
    length: u32,
    states: Vec<Vec<u8>>,
}

/// A model on a device, with the state of each slot.
pub struct Engine<D = Box<dyn Device>> {
    pub(super) model: Box<dyn Model>,
    pub(super) device: D,
    pub(super) context: u32,
    pub(super) slots: Vec<SlotState>,
    /// A recurrent state snapshot for each slot.
    snapshots: Vec<Option<StateSnapshot>>,
}

impl<D: Device> Engine<D> {
    /// An engine with empty slots. `model` is laid out for this context and number of slots, and `device` has
    /// buffers for its layout.
    pub fn new(model: Box<dyn Model>, device: D, context: u32, slots: u32) -> Engine<D> {
        let (slots, snapshots) = (vec![SlotState::default(); slots as usize], vec![None; slots as usize]);
        let mut engine = Engine { model, device, context, slots, snapshots };
        let expert_slots = engine.model.layout().expert_slots;
        if expert_slots.bytes > 0 {
            engine.write(expert_slots, 0..(expert_slots.bytes / size_of::<u32>()) as u32);
        }
        engine
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// The same engine on a wrapped device.
    pub fn map_device<E: Device>(self, made: impl FnOnce(D) -> E) -> Engine<E> {
        let Engine { model, device, context, slots, snapshots } = self;
        Engine { model, device: made(device), context, slots, snapshots }
    }

    /// Drops the model and returns the device.
    pub fn into_device(self) -> D {
        self.device
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// Constants of the model.
    pub fn info(&self) -> &'static ModelInfo {
        self.model.info()
    }

    /// Context length of a slot in tokens.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Length of `slot` in tokens.
    pub fn length(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.len)
    }

    /// How many of the first `length` tokens of `slot` can be kept by [`Engine::truncate`]. The result is
    /// `length` limited to the slot's length, or 0 if a sliding-window cache has been overwritten. If
    /// recurrent states are past `length`, it is the length of the snapshot.
    pub fn rewindable(&self, slot: u32, length: u32) -> u32 {
        let Some(&SlotState { len: filled, high_water, state_pos }) = self.slots.get(slot as usize) else {
            return 0;
        };
        let mut length = length.min(filled);
        if self.info().recurrent_state_bytes > 0 && length != state_pos {
            let snapshot_len = self.snapshots[slot as usize].as_ref().map(|snapshot| snapshot.length);
            length = snapshot_len.filter(|snapshot_len| *snapshot_len <= length).unwrap_or(0);
        }
        let reaches = |ring: &SlidingCache| ring.can_rewind(high_water, length);
        if self.info().sliding_caches.iter().all(reaches) { length } else { 0 }
    }

    /// Truncates `slot` to at most `length` tokens and returns how many are kept: [`Engine::rewindable`].
    pub fn truncate(&mut self, slot: u32, length: u32) -> u32 {
        let kept = self.rewindable(slot, length);
        let Some(progress) = self.slots.get_mut(slot as usize) else { return kept };
        progress.len = kept;
        let state_is_ahead = progress.state_pos != kept;
        progress.state_pos = kept;
        if kept == 0 {
            progress.high_water = 0;
        } else if self.info().recurrent_state_bytes > 0 && state_is_ahead {
            self.restore_state(slot);
        }
        kept
    }

    /// Saves a snapshot of the recurrent states of `slot`, replacing the previous one. A model without
    /// recurrent states ignores it.
    pub fn snapshot_state(&mut self, slot: u32) {
        let Some(&SlotState { len: length, state_pos, .. }) = self.slots.get(slot as usize) else { return };
        if self.info().recurrent_state_bytes == 0 || length == 0 || length != state_pos {
            return;
        }
        let states = self.model.layout().state.read_state(&mut self.device, slot);
        self.snapshots[slot as usize] = Some(StateSnapshot { length, states });
    }

    /// Restores the recurrent states of a slot from its snapshot.
    fn restore_state(&mut self, slot: u32) {
        if let Some(StateSnapshot { states, .. }) = &self.snapshots[slot as usize] {
            self.model.layout().state.write_state(&mut self.device, slot, states);
        }
    }

    /// Replaces slot `to` by the first `length` tokens of slot `from` and returns how many were copied:
    /// [`Engine::rewindable`] of `from`. `from` does not change.
    pub fn copy(&mut self, from: u32, to: u32, length: u32) -> u32 {
        if from == to {
            return self.truncate(to, length);
        }
        let kept = self.rewindable(from, length);
        self.truncate(to, 0);
        if kept == 0 || to as usize >= self.slots.len() {
            return 0;
        }
        let SlotState { high_water, state_pos, .. } = self.slots[from as usize];
        let snapshot = self.snapshots[from as usize].clone().filter(|it| it.length <= kept);
        let state = &self.model.layout().state;
        state.copy(&mut self.device, from, to, kept, high_water);
        if state_pos == kept {
            let states = state.read_state(&mut self.device, from);
            state.write_state(&mut self.device, to, &states);
        }
        self.slots[to as usize] = SlotState { len: kept, high_water, state_pos: kept };
        self.snapshots[to as usize] = snapshot;
        if state_pos != kept && self.info().recurrent_state_bytes > 0 {
            self.restore_state(to);
        }
        kept
    }

    /// Checks that `ids` can be appended to `slot`.
    pub fn check(&self, slot: u32, ids: &[u32]) -> Result<(), Error> {
        let Some(&SlotState { len: length, .. }) = self.slots.get(slot as usize) else {
            return Err(Error::usage(format!("slot {slot} is out of range: there are {}", self.slots.len())));
        };
        if ids.is_empty() {
            return Err(Error::usage("no token ids to process"));
        }
        check_vocabulary(self.info(), ids.iter().copied())?;
        let needed = u64::from(length) + ids.len() as u64;
        if needed > u64::from(self.context) {
            let more = match self.context < self.info().context {
                true => {
                    format!("; {} supports --ctx-size up to {}", self.info().name, self.info().context)
                }
                false => String::new(),
            };
            let message = format!("{needed} tokens exceed the context length of {}{more}", self.context);
            return Err(Error::usage(message));
        }
        Ok(())
    }

    /// Runs 1 to `chunk` rows whose positions continue their slots, then the head for the rows in `wanted`.
    /// Returns the logits or the next token of each wanted row. Rows that are decoded and other rows take
    /// separate passes.
    pub fn run_batch(
        &mut self,
        rows: &[Row],
        wanted: &[u32],
        kind: OutputKind<'_>,
    ) -> Result<StepOutput, Error> {
        self.check_rows(rows, wanted)?;
        let draws = match kind {
            OutputKind::Sampled(draws) if draws.len() != wanted.len() => {
                return Err(Error::usage(format!(
                    "{} sampling parameters for {} rows",
                    draws.len(),
                    wanted.len()
                )));
            }
            OutputKind::Sampled(draws) => draws,
            OutputKind::Greedy | OutputKind::Logits => &[],
        };
        let passes = self.passes(rows);
        if let [(schedule, all)] = &passes[..]
            && (*schedule == Schedule::Batch || all.len() == 1)
        {
            return self.run_pass(*schedule, rows, (wanted, draws), kind);
        }
        let mut output = StepOutput::default();
        match kind {
            OutputKind::Logits => output.logits = vec![Vec::new(); wanted.len()],
            OutputKind::Greedy | OutputKind::Sampled(_) => output.next_tokens = vec![0; wanted.len()],
        }
        for (schedule, indices) in passes {
            let of_pass: Vec<Row> = indices.iter().map(|&index| rows[index as usize]).collect();
            // Place in `wanted`, and row of the pass.
            let found = wanted.iter().enumerate().filter_map(|(place, row)| {
                let of_pass = indices.iter().position(|index| index == row)?;
                Some((place, of_pass))
            });
            let found: Vec<(usize, usize)> = found.collect();
            // The head of a decode pass computes all of its rows.
            let heads: Vec<(usize, usize)> = match (schedule, found.first()) {
                (Schedule::Decode, Some(&(first, _))) => (0..of_pass.len())
                    .map(|row| {
                        found.iter().find(|(_, of_pass)| *of_pass == row).copied().unwrap_or((first, row))
                    })
                    .collect(),
                _ => found.clone(),
            };
            let of_heads: Vec<u32> = heads.iter().map(|(_, row)| *row as u32).collect();
            let of_draws: Vec<DeviceSampling> =
                heads.iter().filter_map(|(place, _)| draws.get(*place).cloned()).collect();
            let mut computed = self.run_pass(schedule, &of_pass, (&of_heads, &of_draws), kind)?;
            for (place, row) in found {
                let head = heads.iter().position(|head| *head == (place, row)).unwrap_or(row);
                match kind {
                    OutputKind::Logits => output.logits[place] = std::mem::take(&mut computed.logits[head]),
                    OutputKind::Greedy | OutputKind::Sampled(_) => {
                        output.next_tokens[place] = computed.next_tokens[head];
                    }
                }
            }
        }
        Ok(output)
    }

    /// The passes that compute these rows: the schedule and the indices of each.
    fn passes(&self, rows: &[Row]) -> Vec<(Schedule, Vec<u32>)> {
        let all = 0..rows.len() as u32;
        if self.slots.len() == 1 || !self.decodes_batches() {
            let schedule = self.schedule(rows.len());
            return vec![(schedule, all.collect())];
        }
        let mut rows_of_slot = vec![0_u32; self.slots.len()];
        rows.iter().for_each(|row| rows_of_slot[row.slot as usize] += 1);
        let (decoded, others): (Vec<u32>, Vec<u32>) =
            all.partition(|index| rows_of_slot[rows[*index as usize].slot as usize] == 1);
        let decode_rows = self.info().decode_rows as usize;
        if decoded.len() > MAX_DECODED_ROWS {
            return vec![(Schedule::Batch, (0..rows.len() as u32).collect())];
        }
        let mut passes: Vec<_> =
            decoded.chunks(decode_rows).map(|rows| (Schedule::Decode, rows.to_vec())).collect();
        if !others.is_empty() {
            passes.push((Schedule::Batch, others));
        }
        passes
    }

    /// Whether a decode pass may have rows of several slots.
    fn decodes_batches(&self) -> bool {
        self.info().decode_rows > 1 && self.device.decodes_batches()
    }

    /// Runs one pass and the head for the rows in `wanted`. The first `head_rows` of these are in the same
    /// pass; the others take one pass each `head_rows`. In a decode pass `wanted` is nothing, or all rows.
    fn run_pass(
        &mut self,
        schedule: Schedule,
        rows: &[Row],
        (wanted, draws): (&[u32], &[DeviceSampling]),
        kind: OutputKind<'_>,
    ) -> Result<StepOutput, Error> {
        rows.iter().for_each(|row| self.touch(row.slot, row.position));
        let layout = self.model.layout();
        let &Layout {
            ids,
            slots,
            positions,
            row_indices: places,
            sampling: drawn,
            logits,
            next_tokens: next,
            ..
        } = layout;
        let longest = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        let of_one_slot = rows.iter().all(|row| row.slot == rows[0].slot);
        let all = Batch { is_single_slot: of_one_slot, ..layout.rows(schedule, rows.len() as u32, longest) };
        self.write(ids, rows.iter().map(|row| row.id));
        self.write(slots, rows.iter().map(|row| row.slot));
        self.write(positions, rows.iter().map(|row| row.position));
        let mut fed = StepOutput::default();
        let mut heads = wanted.chunks(self.info().head_rows as usize);
        let mut draws = draws.chunks(self.info().head_rows as usize);
        let mut head = heads.next().unwrap_or(&[]);
        let mut first = true;
        loop {
            if !head.is_empty() {
                self.write(places, head.iter().copied());
            }
            let of_head = draws.next();
            if let Some(draws) = of_head {
                self.write(drawn, draws.iter().flat_map(DeviceSampling::words));
            }
            let model = &self.model;
            self.device
                .run(schedule, &mut |pass| {
                    pass.set_max_length(longest);
                    if first {
                        model.forward(pass, &all);
                    }
                    if !head.is_empty() {
                        model.head(
                            pass,
                            schedule,
                            &model.layout().logit_rows(head.len() as u32, of_head.is_some()),
                        );
                    }
                })
                .map_err(Error::Runtime)?;
            if matches!(kind, OutputKind::Logits) && !head.is_empty() {
                let width = self.info().vocabulary as usize;
                let all = self.read(logits.first(head.len() * width));
                fed.logits.extend(
                    all.chunks_exact(width).map(|row| row.iter().copied().map(f32::from_bits).collect()),
                );
            } else if !head.is_empty() {
                fed.next_tokens.extend(self.read(next.first(head.len())));
            }
            first = false;
            match heads.next() {
                Some(rows) => head = rows,
                None => break,
            }
        }
        for row in rows {
            if let Some(slot) = self.slots.get_mut(row.slot as usize) {
                (slot.len, slot.state_pos) = (row.position + 1, row.position + 1);
            }
        }
        Ok(fed)
    }

    /// Marks a slot before a row is computed. Even if the pass fails, the cache may be written up to this
    /// position and the recurrent state is unknown.
    pub(super) fn touch(&mut self, slot: u32, position: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.state_pos = 0;
            slot.high_water = if position == 0 { 1 } else { slot.high_water.max(position + 1) };
        }
        if let Some(snapshot) = self.snapshots.get_mut(slot as usize) {
            // The row rewrites a part of the snapshot's sequence.
            snapshot.take_if(|snapshot| position < snapshot.length);
        }
    }

    /// The schedule for a number of rows of one slot.
    pub(super) fn schedule(&self, rows: usize) -> Schedule {
        let is_decoded = rows == 1 && (self.slots.len() == 1 || self.decodes_batches());
        if is_decoded { Schedule::Decode } else { Schedule::Batch }
    }

    /// Checks that a pass of these rows can be computed.
    pub(super) fn check_rows(&self, rows: &[Row], wanted: &[u32]) -> Result<(), Error> {
        if rows.is_empty() || rows.len() > self.info().prefill_chunk as usize {
            return Err(Error::usage(format!(
                "a pass of {} rows: 1 to {} are supported",
                rows.len(),
                self.info().prefill_chunk
            )));
        }
        check_vocabulary(self.info(), rows.iter().map(|row| row.id))?;
        for row in rows {
            if row.slot as usize >= self.slots.len() || row.position >= self.context {
                return Err(Error::usage(format!(
                    "out of range: slot {} of {}, position {} of {}",
                    row.slot,
                    self.slots.len(),
                    row.position,
                    self.context
                )));
            }
        }
        let goes_back = |row: &&Row| row.position < self.length(row.slot);
        if let Some(row) =
            rows.iter().filter(goes_back).find(|row| self.rewindable(row.slot, row.position) < row.position)
        {
            return Err(Error::usage(format!(
                "slot {}: cannot rewind to position {}: its sliding-window cache has been overwritten; reprocess the prompt from \
                 position 0",
                row.slot, row.position
            )));
        }
        if self.info().recurrent_state_bytes > 0 {
            self.check_recurrent(rows)?;
        }
        match wanted.iter().find(|&&row| row as usize >= rows.len()) {
            Some(row) => Err(Error::usage(format!(
                "output row {row} is out of range: the pass has {} rows",
                rows.len()
            ))),
            None => Ok(()),
        }
    }

    /// Checks that every row continues the recurrent state of its slot, or starts at position 0.
    fn check_recurrent(&self, rows: &[Row]) -> Result<(), Error> {
        let mut state_positions: Vec<u32> = self.slots.iter().map(|slot| slot.state_pos).collect();
        for row in rows {
            let state_position = &mut state_positions[row.slot as usize];
            if row.position != 0 && row.position != *state_position {
                return Err(Error::usage(format!(
                    "slot {}: cannot resume at position {}: its recurrent state is at position {state_position}; reprocess the \
                     prompt from position 0",
                    row.slot, row.position
                )));
            }
            *state_position = row.position + 1;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, span: Span<u32>, words: impl Iterator<Item = u32>) {
        let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        self.device.write(Buffer::Rows, span.offset, &bytes);
    }

    /// The 32-bit words of a span.
    pub(super) fn read<T>(&mut self, span: Span<T>) -> Vec<u32> {
        let mut bytes = vec![0; span.bytes];
        self.device.read(span.buffer, span.offset, &mut bytes);
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
    }
}

fn check_vocabulary(info: &ModelInfo, mut ids: impl Iterator<Item = u32>) -> Result<(), Error> {
    let vocabulary = info.vocabulary;
    match ids.find(|&id| id >= vocabulary) {
        Some(id) => Err(Error::usage(format!(
            "token id {id} is out of range: {} has token ids 0 to {}",
            info.name,
            vocabulary.saturating_sub(1)
        ))),
        None => Ok(()),
    }
}
