//! A model on a device: rows in, logits out.
//!
//! A row is an id with its slot and position. The engine writes rows to the device in passes of at most `chunk`
//! rows, keeps how many positions each slot has, and refuses what does not fit before anything is computed.
//!
//! A model has one program for a single row and one for any number, and they round differently ([`Program`]). An engine of
//! one slot uses both. One of several slots uses the second alone, so that what a text becomes does not depend on which
//! others are there.
//!
//! A slot can go back to an earlier position and take up another text from there. Layers that see the last positions only
//! may have overwritten what a row there would see ([`Ring`]); then the slot has to begin anew, and [`Engine::truncate`]
//! says so. So it has if layers remember a slot by a memory that has learnt more than the text up to there. This is decided here
//! and nowhere else. As far as a slot can go back it can be copied to another.
//!
//! Where ids are chosen on the device, the most probable or one that is drawn, it goes on by itself for a while: see [`Chain`].

pub mod golden;
pub(crate) mod multi_step;

pub use crate::engine::multi_step::MultiStepDecoder;

use crate::device::{Buffer, Device, Schedule, Span};
use crate::error::Error;
use crate::model::{Batch, Layout, Model, ModelInfo, Ring};
use crate::sampling::device_sampling::DeviceSampling;

/// How far a slot has come.
#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    /// Positions that its text has.
    length: u32,
    /// The most that it has had since it was empty: up to there the cache has been written.
    most: u32,
    /// Positions that memories have learnt, which cannot be unlearnt one by one.
    learnt: u32,
}

/// What the memories of a slot were when its text had so many positions.
#[derive(Clone, Debug)]
struct StateSnapshot {
    length: u32,
    memories: Vec<Vec<u8>>,
}

/// A model, its device, and how far each slot has come.
pub struct Engine<D = Box<dyn Device>> {
    model: Box<dyn Model>,
    device: D,
    context: u32,
    slots: Vec<SlotState>,
    /// Of each slot, what it can go back to though its memories have learnt more.
    remembered: Vec<Option<StateSnapshot>>,
}

/// What is to be known after a feed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// Nothing yet: more ids will follow.
    Nothing,
    /// The id of the largest logit after the last id; computed on the device.
    Next,
    /// An id that is drawn by the logits after the last id, on the device too.
    Drawn(DeviceSampling),
    /// The logits after the last id.
    Logits,
    /// The logits after every id.
    AllLogits,
}

/// What a pass tells of the rows that are wanted.
#[derive(Clone, Copy, Debug)]
pub enum OutputKind<'a> {
    /// The id of the largest logit of each.
    Next,
    /// An id that is drawn, of each in its own way.
    Drawn(&'a [DeviceSampling]),
    /// All logits.
    Logits,
}

/// What came of a feed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// For each row that was wanted, the id that was chosen; empty if logits were asked for.
    pub next: Vec<u32>,
    /// For each row that was wanted, its logits; empty if they were not asked for.
    pub logits: Vec<Vec<f32>>,
}

/// One id of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The id.
    pub id: u32,
    /// Whose it is.
    pub slot: u32,
    /// Its place in the slot's text.
    pub position: u32,
}

impl<D: Device> Engine<D> {
    /// `model` was laid out for `slots` slots of `context` positions, and `device` has buffers of its layout.
    pub fn new(model: Box<dyn Model>, device: D, context: u32, slots: u32) -> Engine<D> {
        let (progress, remembered) = (SlotState::default(), None);
        let (slots, remembered) = (vec![progress; slots as usize], vec![remembered; slots as usize]);
        let mut engine = Engine { model, device, context, slots, remembered };
        let seats = engine.model.layout().seats;
        if seats.bytes > 0 {
            engine.write(seats, 0..(seats.bytes / size_of::<u32>()) as u32);
        }
        engine
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// The same engine on what `made` makes of its device.
    pub fn on<E: Device>(self, made: impl FnOnce(D) -> E) -> Engine<E> {
        let Engine { model, device, context, slots, remembered } = self;
        Engine { model, device: made(device), context, slots, remembered }
    }

    /// The device, when the model is done with it.
    pub fn into_device(self) -> D {
        self.device
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// What the compiler knows of the model.
    pub fn info(&self) -> &'static ModelInfo {
        self.model.info()
    }

    /// Positions that a slot has room for.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Positions that `slot` has filled.
    pub fn length(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.length)
    }

    /// How many of the first `length` positions of `slot` can be kept while the others are forgotten: those that it has,
    /// or none where a layer no longer has what the next row would see. Where memories have learnt more, they are those that
    /// the slot was remembered at.
    pub fn kept(&self, slot: u32, length: u32) -> u32 {
        let Some(&SlotState { length: filled, most, learnt }) = self.slots.get(slot as usize) else {
            return 0;
        };
        let mut length = length.min(filled);
        if self.info().memory_bytes > 0 && length != learnt {
            let remembered = self.remembered[slot as usize].as_ref().map(|remembered| remembered.length);
            length = remembered.filter(|remembered| *remembered <= length).unwrap_or(0);
        }
        let reaches = |ring: &Ring| ring.reaches(most, length);
        if self.info().rings.iter().all(reaches) { length } else { 0 }
    }

    /// Forgets what `slot` has from position `length` on, or all of it; gives how many positions are left, which
    /// [`Engine::kept`] foretells.
    pub fn truncate(&mut self, slot: u32, length: u32) -> u32 {
        let kept = self.kept(slot, length);
        let Some(progress) = self.slots.get_mut(slot as usize) else { return kept };
        progress.length = kept;
        let knows_more = progress.learnt != kept;
        progress.learnt = kept;
        if kept == 0 {
            progress.most = 0;
        } else if self.info().memory_bytes > 0 && knows_more {
            self.recall(slot);
        }
        kept
    }

    /// Remembers where `slot` stands, so that it can go back there: once, in the place of what was remembered before. A model
    /// that can go back anywhere has no use for it.
    pub fn remember(&mut self, slot: u32) {
        let Some(&SlotState { length, learnt, .. }) = self.slots.get(slot as usize) else { return };
        if self.info().memory_bytes == 0 || length == 0 || length != learnt {
            return;
        }
        let memories = self.model.layout().state.learnt(&mut self.device, slot);
        self.remembered[slot as usize] = Some(StateSnapshot { length, memories });
    }

    /// Gives memories of a slot what they had when it was remembered.
    fn recall(&mut self, slot: u32) {
        if let Some(StateSnapshot { memories, .. }) = &self.remembered[slot as usize] {
            self.model.layout().state.teach(&mut self.device, slot, memories);
        }
    }

    /// Gives slot `to` the first `length` positions of slot `from` in the place of what it has; gives how many there are of
    /// them, which [`Engine::kept`] foretells. What `from` has, and can go back to, is as it was.
    pub fn copy(&mut self, from: u32, to: u32, length: u32) -> u32 {
        if from == to {
            return self.truncate(to, length);
        }
        let kept = self.kept(from, length);
        self.truncate(to, 0);
        if kept == 0 || to as usize >= self.slots.len() {
            return 0;
        }
        let SlotState { most, learnt, .. } = self.slots[from as usize];
        let remembered = self.remembered[from as usize].clone().filter(|it| it.length <= kept);
        let state = &self.model.layout().state;
        state.copy(&mut self.device, from, to, kept, most);
        if learnt == kept {
            let memories = state.learnt(&mut self.device, from);
            state.teach(&mut self.device, to, &memories);
        }
        self.slots[to as usize] = SlotState { length: kept, most, learnt: kept };
        self.remembered[to as usize] = remembered;
        if learnt != kept && self.info().memory_bytes > 0 {
            self.recall(to);
        }
        kept
    }

    /// Appends `ids` to `slot`, in passes of at most `INFO.chunk` rows.
    pub fn feed(&mut self, slot: u32, ids: &[u32], want: Output) -> Result<StepOutput, Error> {
        self.check(slot, ids)?;
        let mut fed = StepOutput::default();
        let chunks = ids.chunks(self.info().chunk as usize);
        let last = chunks.len().saturating_sub(1);
        for (index, chunk) in chunks.enumerate() {
            let first = self.length(slot);
            let rows: Vec<Row> =
                (first..).zip(chunk).map(|(position, &id)| Row { id, slot, position }).collect();
            let end = chunk.len() as u32;
            let wanted: Vec<u32> = match want {
                Output::AllLogits => (0..end).collect(),
                Output::Next | Output::Drawn(_) | Output::Logits if index == last => vec![end - 1],
                _ => Vec::new(),
            };
            let told = match &want {
                Output::Nothing | Output::Next => OutputKind::Next,
                Output::Drawn(draw) if !wanted.is_empty() => OutputKind::Drawn(std::slice::from_ref(draw)),
                Output::Drawn(_) => OutputKind::Drawn(&[]),
                Output::Logits | Output::AllLogits => OutputKind::Logits,
            };
            let of_chunk = self.submit(&rows, &wanted, told)?;
            fed.next.extend(of_chunk.next);
            fed.logits.extend(of_chunk.logits);
        }
        Ok(fed)
    }

    /// Whether `ids` can be appended to `slot`.
    pub fn check(&self, slot: u32, ids: &[u32]) -> Result<(), Error> {
        let Some(&SlotState { length, .. }) = self.slots.get(slot as usize) else {
            return Err(Error::usage(format!("slot {slot} of {}", self.slots.len())));
        };
        if ids.is_empty() {
            return Err(Error::usage("there are no ids to feed"));
        }
        check_vocabulary(self.info(), ids.iter().copied())?;
        let needed = u64::from(length) + ids.len() as u64;
        if needed > u64::from(self.context) {
            let more = match self.context < self.info().context {
                true => {
                    format!("; {} can be run with --ctx-size up to {}", self.info().name, self.info().context)
                }
                false => String::new(),
            };
            let message = format!("{needed} positions do not fit a context of {}{more}", self.context);
            return Err(Error::usage(message));
        }
        Ok(())
    }

    /// One pass of `1 ..= INFO.chunk` rows, whose positions continue their slots', and after it the head for the
    /// rows that `wanted` names: the first `INFO.head_rows` in the same pass, the others in passes of their own.
    /// Gives what is to be told of all wanted rows: their logits, or the next id after each.
    pub fn submit(
        &mut self,
        rows: &[Row],
        wanted: &[u32],
        told: OutputKind<'_>,
    ) -> Result<StepOutput, Error> {
        self.check_rows(rows, wanted)?;
        let draws = match told {
            OutputKind::Drawn(draws) if draws.len() != wanted.len() => {
                return Err(Error::usage(format!("{} draws of {} rows", draws.len(), wanted.len())));
            }
            OutputKind::Drawn(draws) => draws,
            OutputKind::Next | OutputKind::Logits => &[],
        };
        let schedule = self.schedule(rows.len());
        rows.iter().for_each(|row| self.touch(row.slot, row.position));
        let layout = self.model.layout();
        let &Layout { ids, slots, positions, wanted: places, draws: drawn, logits, next, .. } = layout;
        let longest = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        let of_one_slot = rows.iter().all(|row| row.slot == rows[0].slot);
        let all = Batch { of_one_slot, ..layout.rows(schedule, rows.len() as u32, longest) };
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
                    if first {
                        model.forward(pass, &all);
                    }
                    if !head.is_empty() {
                        model.head(
                            pass,
                            schedule,
                            &model.layout().heads(head.len() as u32, of_head.is_some()),
                        );
                    }
                })
                .map_err(Error::Runtime)?;
            if matches!(told, OutputKind::Logits) && !head.is_empty() {
                let width = self.info().vocabulary as usize;
                let all = self.read(logits.first(head.len() * width));
                fed.logits.extend(
                    all.chunks_exact(width).map(|row| row.iter().copied().map(f32::from_bits).collect()),
                );
            } else if !head.is_empty() {
                fed.next.extend(self.read(next.first(head.len())));
            }
            first = false;
            match heads.next() {
                Some(rows) => head = rows,
                None => break,
            }
        }
        for row in rows {
            if let Some(slot) = self.slots.get_mut(row.slot as usize) {
                (slot.length, slot.learnt) = (row.position + 1, row.position + 1);
            }
        }
        Ok(fed)
    }

    /// Takes note of a row that is about to be computed: whatever becomes of it, it may have written this far, and learnt what
    /// nobody knows.
    fn touch(&mut self, slot: u32, position: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.learnt = 0;
            slot.most = if position == 0 { 1 } else { slot.most.max(position + 1) };
        }
        if let Some(remembered) = self.remembered.get_mut(slot as usize) {
            // Of a text that this row is no continuation of.
            remembered.take_if(|remembered| position < remembered.length);
        }
    }

    /// What so many rows are computed by.
    fn schedule(&self, rows: usize) -> Schedule {
        if rows == 1 && self.slots.len() == 1 { Schedule::Decode } else { Schedule::Batch }
    }

    /// Whether a pass of these rows can be computed.
    fn check_rows(&self, rows: &[Row], wanted: &[u32]) -> Result<(), Error> {
        if rows.is_empty() || rows.len() > self.info().chunk as usize {
            return Err(Error::usage(format!(
                "a pass of {} rows; 1 to {} fit",
                rows.len(),
                self.info().chunk
            )));
        }
        check_vocabulary(self.info(), rows.iter().map(|row| row.id))?;
        for row in rows {
            if row.slot as usize >= self.slots.len() || row.position >= self.context {
                return Err(Error::usage(format!(
                    "slot {} of {}, position {} of {}",
                    row.slot,
                    self.slots.len(),
                    row.position,
                    self.context
                )));
            }
        }
        let goes_back = |row: &&Row| row.position < self.length(row.slot);
        if let Some(row) =
            rows.iter().filter(goes_back).find(|row| self.kept(row.slot, row.position) < row.position)
        {
            return Err(Error::usage(format!(
                "slot {} no longer has what its position {} would see: it has to be read again from its start",
                row.slot, row.position
            )));
        }
        if self.info().memory_bytes > 0 {
            self.check_memories(rows)?;
        }
        match wanted.iter().find(|&&row| row as usize >= rows.len()) {
            Some(row) => Err(Error::usage(format!("row {row} is wanted of {} rows", rows.len()))),
            None => Ok(()),
        }
    }

    /// Whether every row continues what memories have learnt of its slot, or begins anew.
    fn check_memories(&self, rows: &[Row]) -> Result<(), Error> {
        let mut learnt: Vec<u32> = self.slots.iter().map(|slot| slot.learnt).collect();
        for row in rows {
            let learnt = &mut learnt[row.slot as usize];
            if row.position != 0 && row.position != *learnt {
                return Err(Error::usage(format!(
                    "slot {} has learnt {learnt} positions, and goes on at {}: it has to be read again from its start",
                    row.slot, row.position
                )));
            }
            *learnt = row.position + 1;
        }
        Ok(())
    }

    fn write(&mut self, span: Span<u32>, words: impl Iterator<Item = u32>) {
        let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        self.device.write(Buffer::Rows, span.offset, &bytes);
    }

    /// The words of a span.
    fn read<T>(&mut self, span: Span<T>) -> Vec<u32> {
        let mut bytes = vec![0; span.bytes];
        self.device.read(span.buffer, span.offset, &mut bytes);
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
    }
}

fn check_vocabulary(info: &ModelInfo, mut ids: impl Iterator<Item = u32>) -> Result<(), Error> {
    let vocabulary = info.vocabulary;
    match ids.find(|&id| id >= vocabulary) {
        Some(id) => Err(Error::usage(format!(
            "id {id} is outside the vocabulary of {}, whose ids are 0 to {}",
            info.name,
            vocabulary.saturating_sub(1)
        ))),
        None => Ok(()),
    }
}
