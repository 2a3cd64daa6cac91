//! Multi-step decode: the device decodes several tokens in a row without the host.
//!
//! Slot, positions, KV extents and sampling indices of the next rows are known in advance; only the token ids
//! are not. One pass therefore has several rows, one after the other. Each reads its token id where the row
//! before it stored it ([`TokenRing`]); models and kernels need no support for this. The host submits the
//! next pass before it has read the tokens of the previous one. If no pass is in flight, the host writes the
//! first token id.
//!
//! If the sequence ends early, the device has decoded too many tokens. The engine counts only the tokens that
//! were read, and [`Engine::truncate`] rewinds to them. Recurrent states cannot rewind by a few tokens. For
//! models with such states [`RunAhead::NONE`] is better if the slot is used again.

use crate::engine::engine::Engine;
use crate::engine::output::Row;
use forge_device::device::{Device, RunAhead};
use forge_device::error::Error;
use forge_device::model::TokenRing;
use forge_device::sampling::device_sampling::DeviceSampling;
use std::collections::VecDeque;

/// A sequence that the device decodes on its own. It borrows the engine; dropping it waits for all passes.
pub struct MultiStepDecoder<'e, D: Device> {
    engine: &'e mut Engine<D>,
    run_ahead: RunAhead,
    slot: u32,
    /// The last token id that the host has read.
    last_token: u32,
    /// The ring index of the next row.
    ring_index: usize,
    /// The position of the next row.
    position: u32,
    /// Sampling parameters of the next token; `None` for greedy.
    sampling: Option<DeviceSampling>,
    /// Passes in flight.
    in_flight: VecDeque<InFlightPass>,
    /// Tokens read from the device and not yet returned.
    ready: VecDeque<u32>,
}

/// A submitted pass: the ring index of its first row, and its rows.
struct InFlightPass {
    place: usize,
    rows: u32,
}

impl<D: Device> Engine<D> {
    /// Starts multi-step decode in `slot` with token `id`: greedy, or sampled with
    /// [`MultiStepDecoder::with_sampling`].
    pub fn decode_multi_step(
        &mut self,
        slot: u32,
        id: u32,
        run_ahead: RunAhead,
    ) -> Result<MultiStepDecoder<'_, D>, Error> {
        self.check(slot, &[id])?;
        let position = self.length(slot);
        self.check_rows(&[Row { id, slot, position }], &[0])?;
        if run_ahead.tokens_per_pass == 0
            || run_ahead.passes == 0
            || run_ahead.tokens_per_pass as usize * run_ahead.passes > TokenRing::CAPACITY
        {
            return Err(Error::usage(format!(
                "the device can run 1 to {} tokens ahead",
                TokenRing::CAPACITY
            )));
        }
        let (slots, wanted) = (self.model.layout().slots.first(1), self.model.layout().row_indices.first(1));
        self.write(slots, [slot].into_iter());
        self.write(wanted, [0].into_iter());
        let (in_flight, ready) = (VecDeque::new(), VecDeque::new());
        Ok(MultiStepDecoder {
            engine: self,
            run_ahead,
            slot,
            last_token: id,
            ring_index: 0,
            position,
            sampling: None,
            in_flight,
            ready,
        })
    }
}

impl<D: Device> MultiStepDecoder<'_, D> {
    /// Samples instead of greedy decoding. `draw` is used for the next token; its index counts up.
    pub fn with_sampling(mut self, draw: DeviceSampling) -> Self {
        self.sampling = Some(draw);
        self
    }

    /// The next token. `left` is the maximum number of tokens still wanted, including this one.
    pub fn next(&mut self, left: usize) -> Result<u32, Error> {
        if self.ready.is_empty() {
            while self.in_flight.len() < self.run_ahead.passes {
                let rows_in_flight: usize = self.in_flight.iter().map(|pass| pass.rows as usize).sum();
                let space = (self.engine.context - self.position) as usize;
                let rows = left
                    .saturating_sub(rows_in_flight)
                    .min(space)
                    .min(self.run_ahead.tokens_per_pass as usize);
                if rows == 0 {
                    break;
                }
                self.submit(rows as u32)?;
            }
            self.read_pass()?;
        }
        let next = self.ready.pop_front();
        next.ok_or_else(|| Error::usage(format!("the context is full at {} tokens", self.position)))
    }

    /// The number of tokens that are decoded or being decoded, and not yet returned. If [`MultiStepDecoder::next`] is
    /// called with this as the maximum, it submits nothing more.
    pub fn pending(&self) -> usize {
        self.ready.len() + self.in_flight.iter().map(|pass| pass.rows as usize).sum::<usize>()
    }

    /// Submits a pass that decodes `rows` tokens.
    fn submit(&mut self, rows: u32) -> Result<(), Error> {
        let (engine, slot) = (&mut *self.engine, self.slot);
        let wheel = engine.model.layout().token_ring;
        if self.in_flight.is_empty() {
            self.ring_index = 0;
            engine.write(wheel.ids.first(1), [self.last_token].into_iter());
        }
        let (first, position) = (self.ring_index, self.position);
        let place = |row: u32| (first + row as usize) % TokenRing::CAPACITY;
        for row in 0..rows {
            engine.touch(slot, position + row);
        }
        let mut positions = position..position + rows;
        for (place, count) in runs(first, rows as usize) {
            engine.write(wheel.positions.part(place, count), positions.by_ref().take(count));
        }
        if let Some(draw) = &mut self.sampling {
            for (place, count) in runs(first, rows as usize) {
                let words = wheel.sampling.part(place * DeviceSampling::WORDS, count * DeviceSampling::WORDS);
                engine.write(words, (0..count).flat_map(|_| draw.advance().words()));
            }
        }
        let schedule = engine.schedule(1);
        let is_drawn = self.sampling.is_some();
        let model = &engine.model;
        let submitted = engine.device.begin(schedule, &mut |pass| {
            for row in 0..rows {
                if row > 0 {
                    pass.barrier();
                }
                let (rows, wanted) =
                    wheel.row(model.layout(), schedule, (place(row), position + row), is_drawn);
                pass.set_max_length(rows.max_length);
                model.forward(pass, &rows);
                model.head(pass, schedule, &wanted);
            }
        });
        submitted.map_err(Error::Runtime)?;
        self.in_flight.push_back(InFlightPass { place: first, rows });
        self.ring_index = place(rows);
        self.position += rows;
        Ok(())
    }

    /// Waits for the oldest pass and reads its tokens.
    fn read_pass(&mut self) -> Result<(), Error> {
        let Some(InFlightPass { place, rows }) = self.in_flight.pop_front() else { return Ok(()) };
        let engine = &mut *self.engine;
        engine.device.wait(self.in_flight.len()).map_err(Error::Runtime)?;
        let ids = engine.model.layout().token_ring.ids;
        for (place, count) in runs((place + 1) % TokenRing::CAPACITY, rows as usize) {
            self.ready.extend(engine.read(ids.part(place, count)));
        }
        self.last_token = self.ready.back().copied().unwrap_or(self.last_token);
        if let Some(slot) = engine.slots.get_mut(self.slot as usize) {
            slot.len += rows;
            // Passes in flight still advance the recurrent state.
            slot.state_pos = if self.in_flight.is_empty() { slot.len } else { 0 };
        }
        Ok(())
    }
}

/// Splits `count` ring entries from `first` on into contiguous runs of start and length.
fn runs(first: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    let straight = count.min(TokenRing::CAPACITY - first);
    [(first, straight), (0, count - straight)].into_iter().filter(|(_, count)| *count > 0)
}

impl<D: Device> Drop for MultiStepDecoder<'_, D> {
    fn drop(&mut self) {
        // Errors of unread passes are irrelevant.
        let _ = self.engine.device.wait(0);
    }
}
