//! A text that the device writes on by itself: ids that each come of the one before, though no host has seen it.
//!
//! All that changes from one id to the next is known beforehand, but for the id itself: slot, position, how far rows look back,
//! and if ids are drawn, the number of the draw. So the host writes these, and has several rows computed in one pass, one
//! after the other: each finds its id where the row before it has left its choice ([`Wheel`]). Nothing of a model or a kernel knows of it. A device
//! that works by itself is given the next pass before the host has looked at what came of the last one; a pass that begins
//! with nobody before it on the way is told its first id by the host.
//!
//! Whoever ends the text meanwhile has let the device write too much. That does no harm: the engine counts as the slot's what
//! has been looked at, and [`Engine::truncate`] goes back from there as from anything. Memories cannot go back by a few ids, so
//! it is better for those who will go on with their text not to be ahead of them ([`Lead::NONE`]).

use crate::device::{Device, RunAhead};
use crate::engine::{Engine, Row};
use crate::error::Error;
use crate::model::TokenRing;
use crate::sampling::device_sampling::DeviceSampling;
use std::collections::VecDeque;

/// A text that the device writes on. The engine is nobody else's meanwhile; when it is dropped nothing is on its way.
pub struct MultiStepDecoder<'e, D: Device> {
    engine: &'e mut Engine<D>,
    lead: RunAhead,
    slot: u32,
    /// The last id that the host has seen.
    last: u32,
    /// Where the next row lies on the wheel.
    place: usize,
    /// Its position in the slot.
    position: u32,
    /// How the id after it is drawn; none takes the most probable.
    draw: Option<DeviceSampling>,
    /// Passes that have begun, and nobody has looked at.
    begun: VecDeque<InFlightPass>,
    /// Ids that have been looked at, and nobody has asked for.
    ahead: VecDeque<u32>,
}

/// The rows of a pass.
struct InFlightPass {
    place: usize,
    rows: u32,
}

impl<D: Device> Engine<D> {
    /// Goes on in `slot` with `id`, and then with the most probable id every time, or one that is drawn ([`Chain::drawing`]).
    pub fn chain(&mut self, slot: u32, id: u32, lead: RunAhead) -> Result<MultiStepDecoder<'_, D>, Error> {
        self.check(slot, &[id])?;
        let position = self.length(slot);
        self.check_rows(&[Row { id, slot, position }], &[0])?;
        if lead.ids == 0 || lead.passes == 0 || lead.ids as usize * lead.passes > TokenRing::PLACES {
            return Err(Error::usage(format!("a device is ahead by 1 to {} ids", TokenRing::PLACES)));
        }
        let (slots, wanted) = (self.model.layout().slots.first(1), self.model.layout().wanted.first(1));
        self.write(slots, [slot].into_iter());
        self.write(wanted, [0].into_iter());
        let (begun, ahead) = (VecDeque::new(), VecDeque::new());
        Ok(MultiStepDecoder {
            engine: self,
            lead,
            slot,
            last: id,
            place: 0,
            position,
            draw: None,
            begun,
            ahead,
        })
    }
}

impl<D: Device> MultiStepDecoder<'_, D> {
    /// The same, of ids that are drawn: the next one so, and those after it by the numbers that follow.
    pub fn drawing(mut self, draw: DeviceSampling) -> Self {
        self.draw = Some(draw);
        self
    }

    /// The next id. No more than `left` are begun, this one included.
    pub fn next(&mut self, left: usize) -> Result<u32, Error> {
        if self.ahead.is_empty() {
            while self.begun.len() < self.lead.passes {
                let begun: usize = self.begun.iter().map(|begun| begun.rows as usize).sum();
                let room = (self.engine.context - self.position) as usize;
                let rows = left.saturating_sub(begun).min(room).min(self.lead.ids as usize);
                if rows == 0 {
                    break;
                }
                self.begin(rows as u32)?;
            }
            self.look()?;
        }
        let next = self.ahead.pop_front();
        next.ok_or_else(|| Error::usage(format!("{} positions are all there are", self.position)))
    }

    /// Has the device write `rows` ids in one pass.
    fn begin(&mut self, rows: u32) -> Result<(), Error> {
        let (engine, slot) = (&mut *self.engine, self.slot);
        let wheel = engine.model.layout().wheel;
        if self.begun.is_empty() {
            self.place = 0;
            engine.write(wheel.ids.first(1), [self.last].into_iter());
        }
        let (first, position) = (self.place, self.position);
        let place = |row: u32| (first + row as usize) % TokenRing::PLACES;
        for row in 0..rows {
            engine.touch(slot, position + row);
        }
        let mut positions = position..position + rows;
        for (place, count) in runs(first, rows as usize) {
            engine.write(wheel.positions.part(place, count), positions.by_ref().take(count));
        }
        if let Some(draw) = &mut self.draw {
            for (place, count) in runs(first, rows as usize) {
                let words = wheel.draws.part(place * DeviceSampling::WORDS, count * DeviceSampling::WORDS);
                engine.write(words, (0..count).flat_map(|_| draw.take().words()));
            }
        }
        let schedule = engine.schedule(1);
        let is_drawn = self.draw.is_some();
        let model = &engine.model;
        let begun = engine.device.begin(schedule, &mut |pass| {
            for row in 0..rows {
                if row > 0 {
                    pass.barrier();
                }
                let (rows, wanted) =
                    wheel.row(model.layout(), schedule, (place(row), position + row), is_drawn);
                model.forward(pass, &rows);
                model.head(pass, schedule, &wanted);
            }
        });
        begun.map_err(Error::Runtime)?;
        self.begun.push_back(InFlightPass { place: first, rows });
        self.place = place(rows);
        self.position += rows;
        Ok(())
    }

    /// Waits for the pass that has begun first, and looks at its ids.
    fn look(&mut self) -> Result<(), Error> {
        let Some(InFlightPass { place, rows }) = self.begun.pop_front() else { return Ok(()) };
        let engine = &mut *self.engine;
        engine.device.wait(self.begun.len()).map_err(Error::Runtime)?;
        let ids = engine.model.layout().wheel.ids;
        for (place, count) in runs((place + 1) % TokenRing::PLACES, rows as usize) {
            self.ahead.extend(engine.read(ids.part(place, count)));
        }
        self.last = self.ahead.back().copied().unwrap_or(self.last);
        if let Some(slot) = engine.slots.get_mut(self.slot as usize) {
            slot.length += rows;
            // Those that are still on their way learn more.
            slot.learnt = if self.begun.is_empty() { slot.length } else { 0 };
        }
        Ok(())
    }
}

/// `count` places of the wheel from `first` on, as runs of them: where each begins, and how many it has.
fn runs(first: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    let straight = count.min(TokenRing::PLACES - first);
    [(first, straight), (0, count - straight)].into_iter().filter(|(_, count)| *count > 0)
}

impl<D: Device> Drop for MultiStepDecoder<'_, D> {
    fn drop(&mut self) {
        // What nobody looks at may have failed.
        let _ = self.engine.device.wait(0);
    }
}
