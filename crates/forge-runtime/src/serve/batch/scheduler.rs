//! Many texts at once: one thread owns the engine, and every pass serves all who are due.
//!
//! A [`Job`] comes by the queue: a prompt, and the [`Generation`](crate::session::generation::Generation) that it begins. It gets a slot, its prompt is read
//! there in portions, and from then on it has one row in every pass. What becomes of it goes back by the job's own
//! channel as [`RequestEvent`]s; when nobody listens there any more the slot is free before the next pass. Jobs get slots, and
//! their prompts are read, in the order in which they came.
//!
//! What several prompts begin with is read once: what a slot has read, others copy, also while it is being written to. Of
//! texts that come together, the first reads and the others wait for it.
//!
//! Who is written to already is not to wait for those who come: beside rows of theirs a prompt's portion is short.

use crate::device::Device;
use crate::engine::golden::largest;
use crate::engine::{Engine, Output, OutputKind, Row};
use crate::error::Error;
use crate::load::settle;
use crate::sampling::device_sampling::DeviceSampling;
use crate::serve::batch::job::{QueuedRequest, RequestEvent, RunningRequest};
use crate::serve::batch::slots::{Slot, choose, knows_most, promised};
use crate::serve::http::metrics::Metrics;
use crate::session::generation::FinishReason;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

/// The most rows of prompts in a pass that writes texts as well.
const BESIDE: usize = 64;

/// Serves jobs until there can be no more.
pub(crate) struct Scheduler<D> {
    engine: Engine<D>,
    jobs: UnboundedReceiver<QueuedRequest>,
    waiting: VecDeque<QueuedRequest>,
    slots: Vec<Slot<RunningRequest>>,
    /// Slots whose prompts are being read, the first who came first.
    readers: VecDeque<usize>,
    clock: u64,
    metrics: Arc<Metrics>,
}

impl<D: Device> Scheduler<D> {
    /// `engine` has `slots` slots.
    pub(crate) fn new(
        engine: Engine<D>,
        slots: u32,
        jobs: UnboundedReceiver<QueuedRequest>,
        metrics: Arc<Metrics>,
    ) -> Scheduler<D> {
        let slots = (0..slots).map(|_| Slot::new()).collect();
        Scheduler {
            engine,
            jobs,
            waiting: VecDeque::new(),
            slots,
            readers: VecDeque::new(),
            clock: 0,
            metrics,
        }
    }

    /// Has the device do once what it will do all the time, so that the first who asks does not wait for it.
    pub(crate) fn warm_up(&mut self) -> Result<(), Error> {
        settle(self.engine.device())?;
        let context = self.engine.context() as usize;
        let id = self.engine.info().begin.unwrap_or(0).min(self.engine.info().vocabulary - 1);
        for rows in [self.engine.info().chunk as usize, self.engine.info().head_rows as usize, 2, 1] {
            self.engine.truncate(0, 0);
            self.engine.feed(0, &vec![id; rows.min(context)], Output::Next)?;
        }
        self.engine.truncate(0, 0);
        let device = self.engine.device();
        if let Some(disk) = device.disk_speed().map_err(Error::from)?
            && let Some(before) = device.streamed()
        {
            self.metrics.stream(disk, before);
        }
        Ok(())
    }

    /// Works until nobody can send a job any more and all jobs are done.
    pub(crate) fn run(mut self) {
        loop {
            let is_over = self.take_jobs();
            self.drop_unwanted();
            self.give_slots();
            self.show_levels();
            if self.slots.iter().any(|slot| slot.work.is_some()) {
                self.step();
            } else if is_over {
                return;
            }
        }
    }

    fn show_levels(&self) {
        self.metrics.waiting.set(self.waiting.len());
        self.metrics.active.set(self.slots.iter().filter(|slot| slot.work.is_some()).count());
    }

    /// Takes jobs that have come; waits for one if there is nothing else to do. Whether no more will come.
    fn take_jobs(&mut self) -> bool {
        let is_idle = self.waiting.is_empty() && self.slots.iter().all(|slot| slot.work.is_none());
        if is_idle {
            self.show_levels();
            match self.jobs.blocking_recv() {
                Some(job) => self.waiting.push_back(job),
                None => return true,
            }
        }
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn drop_unwanted(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|job| !job.updates.is_closed());
        self.metrics.cancelled.add(before - self.waiting.len());
        for index in 0..self.slots.len() {
            if self.slots[index].work.as_ref().is_some_and(RunningRequest::is_unwanted) {
                self.metrics.cancelled.add(1);
                self.free(index);
            }
        }
    }

    /// A slot for whoever has waited longest, while there are any.
    fn give_slots(&mut self) {
        while let Some(job) = self.waiting.front() {
            let kept = |index: usize, length: usize| self.engine.kept(index as u32, length as u32) as usize;
            let Some(index) = choose(&self.slots, &job.prompt, kept) else { return };
            let Some(job) = self.waiting.pop_front() else { return };
            let slot = &mut self.slots[index];
            // What the model says after ids that it does not read again is not known.
            let common = if job.tells_of_prompt() { 0 } else { slot.common(&job.prompt) };
            let read = self.engine.truncate(index as u32, common as u32) as usize;
            slot.ids.truncate(read);
            self.metrics.started.add(1);
            self.metrics.prompt.add(job.prompt.len());
            self.metrics.reused.add(read);
            let mut work = RunningRequest { job, read, next: None, waits: false };
            work.tell(RequestEvent::Reused(read));
            let echoed = work.echo_begin();
            slot.work = Some(work);
            self.touch(index);
            self.readers.push_back(index);
            if let Err(failure) = echoed {
                self.fail(index, &failure);
            }
        }
    }

    fn touch(&mut self, index: usize) {
        self.clock += 1;
        self.slots[index].touched = self.clock;
    }

    fn free(&mut self, index: usize) {
        self.slots[index].work = None;
        self.readers.retain(|&reader| reader != index);
        self.touch(index);
    }

    /// One pass.
    fn step(&mut self) {
        self.share();
        let pass = self.compose();
        let start = Instant::now();
        let fed = self.engine.submit(&pass.rows, &pass.wanted, pass.told());
        self.metrics.busy.add(start.elapsed());
        self.metrics.passes.add(1);
        self.metrics.rows.add(pass.rows.len());
        if let Some(counts) = self.engine.device().streamed() {
            self.metrics.set_streamed(counts);
        }
        let mut fed = match fed {
            Ok(fed) => fed,
            Err(failure) => {
                // What the device has left in the slots is not known.
                for index in 0..self.slots.len() {
                    self.slots[index].ids.clear();
                    self.engine.truncate(index as u32, 0);
                    self.fail(index, &failure);
                }
                return;
            }
        };
        for row in &pass.rows {
            let slot = &mut self.slots[row.slot as usize];
            slot.ids.push(row.id);
            if let Some(work) = &mut slot.work {
                work.next = None;
                work.read = slot.ids.len();
            }
        }
        for place in 0..self.readers.len() {
            self.remember_before_last(self.readers[place]);
        }
        self.readers.retain(|&index| {
            self.slots[index].work.as_ref().is_some_and(|work| work.read < work.job.prompt.len())
        });
        for (number, &row) in pass.wanted.iter().enumerate() {
            let Row { slot, position, .. } = pass.rows[row as usize];
            let index = slot as usize;
            let next = match fed.logits.get_mut(number) {
                Some(logits) => NextToken::By(logits),
                None => NextToken::Id(fed.next[number]),
            };
            if let Err(failure) = self.go_on(index, position as usize + 1, next) {
                self.fail(index, &failure);
            }
        }
    }

    /// Has those who read a prompt take what they can of it from other slots.
    fn share(&mut self) {
        for place in 0..self.readers.len() {
            let index = self.readers[place];
            let before =
                self.readers.iter().take(place).filter_map(|&reader| self.slots[reader].work.as_ref());
            let Some(work) = &self.slots[index].work else { continue };
            if work.job.tells_of_prompt() {
                continue;
            }
            let (read, prompt) = (work.read, &work.job.prompt);
            let kept = |index: usize, length: usize| self.engine.kept(index as u32, length as u32) as usize;
            let (known, from) = knows_most(&self.slots, prompt, kept);
            let promised = before.map(|work| {
                promised(&work.job.prompt, work.read, prompt, self.engine.info().memory_bytes > 0)
            });
            let promised = promised.max().unwrap_or(0);
            // Who would be spared little goes on alone.
            let waits = promised > known && 2 * promised.saturating_sub(read) >= prompt.len() - read;
            let slot = &mut self.slots[index];
            let Some(work) = &mut slot.work else { continue };
            work.waits = waits;
            // There is one copy, of all that there will be.
            if known > read && known >= promised {
                work.read = self.engine.copy(from as u32, index as u32, known as u32) as usize;
                slot.ids = work.job.prompt[..work.read].to_vec();
                self.metrics.reused.add(work.read - read);
                work.tell(RequestEvent::Reused(work.read - read));
                self.remember_before_last(index);
            }
        }
    }

    /// Remembers a slot that has read all of its prompt but the last id, which is always read: a prompt that begins as this one
    /// does will want what its memories were there.
    fn remember_before_last(&mut self, index: usize) {
        let work = self.slots[index].work.as_ref();
        if work.is_some_and(|work| work.read + 1 == work.job.prompt.len()) {
            self.engine.remember(index as u32);
        }
    }

    /// The rows of everybody who is being written to, and portions of prompts.
    fn compose(&self) -> ScheduledBatch {
        let mut pass = ScheduledBatch { rows: Vec::new(), wanted: Vec::new(), draws: Some(Vec::new()) };
        for (index, slot) in self.slots.iter().enumerate() {
            let Some((work, id)) = slot.work.as_ref().and_then(|work| Some((work, work.next?))) else {
                continue;
            };
            pass.want(work);
            pass.rows.push(Row { id, slot: index as u32, position: slot.ids.len() as u32 });
        }
        let most = self.engine.info().chunk as usize;
        let mut room = most - pass.rows.len().min(most);
        if !pass.rows.is_empty() {
            room = room.min(BESIDE);
        }
        for &index in &self.readers {
            let Some(work) = self.slots[index].work.as_ref().filter(|work| !work.waits) else { continue };
            let portion = &work.job.prompt[work.read..];
            // Logits take room: those of a few rows at a time.
            let most = if work.job.tells_of_prompt() { self.engine.info().head_rows as usize } else { room };
            let mut portion = &portion[..portion.len().min(room).min(most)];
            // Its memories are remembered before the last id.
            if self.engine.info().memory_bytes > 0
                && portion.len() > 1
                && work.read + portion.len() == work.job.prompt.len()
            {
                portion = &portion[..portion.len() - 1];
            }
            room -= portion.len();
            for (position, &id) in (work.read..).zip(portion) {
                if work.job.tells_of_prompt() || position + 1 == work.job.prompt.len() {
                    pass.want(work);
                }
                pass.rows.push(Row { id, slot: index as u32, position: position as u32 });
            }
        }
        pass
    }

    /// Goes on in a slot by what the model says after its first `length` ids: tells of the prompt, or writes.
    fn go_on(&mut self, index: usize, length: usize, next: NextToken<'_>) -> Result<(), Error> {
        let slot = &mut self.slots[index];
        let Some(work) = &mut slot.work else { return Ok(()) };
        if length < work.job.prompt.len() {
            return match next {
                NextToken::By(logits) => work.echo(length, Some(logits)),
                NextToken::Id(_) => Ok(()),
            };
        }
        let completion = &mut work.job.completion;
        let piece = match next {
            _ if completion.is_full() => completion.finish(FinishReason::Count)?,
            NextToken::Id(id) => completion.next(id)?,
            NextToken::By(logits) if completion.want() == Output::Next => {
                completion.next(largest(logits) as u32)?
            }
            NextToken::By(logits) => completion.choose(logits)?,
        };
        if work.job.prompt.len() == slot.ids.len() {
            self.metrics.first.add(work.job.arrived.elapsed());
        }
        self.metrics
            .written
            .add(usize::from(piece.id.is_some() && piece.end != Some(FinishReason::EndOfText)));
        let mut end = piece.end;
        work.next = piece.id;
        let is_full = slot.ids.len() >= self.engine.context() as usize;
        work.tell(RequestEvent::Piece(piece));
        if end.is_none() && is_full {
            let last = work.job.completion.finish(FinishReason::Context)?;
            end = last.end;
            work.tell(RequestEvent::Piece(last));
        }
        if end.is_some() {
            self.metrics.finish(work.job.arrived.elapsed());
            self.free(index);
        }
        Ok(())
    }

    fn fail(&mut self, index: usize, failure: &Error) {
        if let Some(work) = &self.slots[index].work {
            // Whoever is told finds it counted.
            self.metrics.failed.add(1);
            work.tell(RequestEvent::Failed(failure.clone()));
            self.free(index);
        }
    }
}

/// How the next id is known.
enum NextToken<'a> {
    Id(u32),
    By(&'a mut [f32]),
}

/// A pass to be submitted.
struct ScheduledBatch {
    rows: Vec<Row>,
    wanted: Vec<u32>,
    /// How the device chooses an id of each wanted row; none where somebody wants logits.
    draws: Option<Vec<DeviceSampling>>,
}

impl ScheduledBatch {
    /// The row that comes next is one of `work`, and what follows it is wanted.
    fn want(&mut self, work: &RunningRequest) {
        self.wanted.push(self.rows.len() as u32);
        let draw = work.job.completion.draw().filter(|_| !work.job.tells_of_prompt());
        self.draws = self.draws.take().zip(draw).map(|(mut draws, draw)| {
            draws.push(draw);
            draws
        });
    }

    /// What is to be told of the wanted rows: logits if anybody wants them, and else ids, which are drawn if anybody's are.
    fn told(&self) -> OutputKind<'_> {
        match &self.draws {
            None => OutputKind::Logits,
            Some(draws) if draws.iter().all(DeviceSampling::is_greedy) => OutputKind::Next,
            Some(draws) => OutputKind::Drawn(draws),
        }
    }
}
