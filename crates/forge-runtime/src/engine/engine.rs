//! The engine: runs batches of tokens through a model on a device and returns logits or token ids.
//!
//! A row is a token with its slot and position. The engine runs rows in passes of at most `chunk` rows,
//! tracks the length of each slot, and rejects invalid rows before anything is computed.
//!
//! A slot can be rewound to an earlier position. This fails if a sliding-window cache has been overwritten
//! there ([`SlidingCache`]), or if a recurrent state is past that position; the slot then restarts at 0.
//! [`Engine::truncate`] returns how much is kept, and is the only place that decides. What can be rewound can
//! also be copied to another slot.
//!
//! If tokens are chosen on the device, it can decode several in a row: see
//! [`MultiStepDecoder`](crate::engine::MultiStepDecoder).

use crate::engine::output::Row;
use forge_device::device::{Buffer, Device, Schedule, Span};
use forge_device::error::Error;
use forge_device::model::{Model, ModelInfo, SlidingCache};

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
    /// Whether the results of a slot never depend on the other slots.
    pub(super) is_reproducible: bool,
}

impl<D: Device> Engine<D> {
    /// An engine with empty slots. `model` is laid out for this context and number of slots, and `device` has
    /// buffers for its layout.
    pub fn new(model: Box<dyn Model>, device: D, context: u32, slots: u32) -> Engine<D> {
        let (slots, snapshots) = (vec![SlotState::default(); slots as usize], vec![None; slots as usize]);
        let mut engine = Engine { model, device, context, slots, snapshots, is_reproducible: false };
        let expert_slots = engine.model.layout().expert_slots;
        if expert_slots.bytes > 0 {
            engine.write(expert_slots, 0..(expert_slots.bytes / size_of::<u32>()) as u32);
        }
        engine
    }

    /// The same engine, in which the results of decoded rows never depend on the number of slots that decode.
    pub fn reproducible(mut self, is_reproducible: bool) -> Engine<D> {
        self.is_reproducible = is_reproducible;
        self
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// The same engine on a wrapped device.
    pub fn map_device<E: Device>(self, made: impl FnOnce(D) -> E) -> Engine<E> {
        let Engine { model, device, context, slots, snapshots, is_reproducible } = self;
        Engine { model, device: made(device), context, slots, snapshots, is_reproducible }
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
