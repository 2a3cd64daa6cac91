//! The scheduler: one thread owns the engine and composes passes of all running sequences.
//!
//! A [`QueuedRequest`] has a prompt and a [`Generation`](crate::session::generation::Generation). It gets a
//! slot and is prefilled in portions. After that it has one row in every pass. Results go back through its
//! channel as [`RequestEvent`]s; a closed channel frees the slot before the next pass. Requests get slots and
//! prefill in order of arrival.
//!
//! Shared prefixes are processed once. A slot copies what another slot has of its prompt, even while that one
//! is generating. If several requests with the same prefix arrive together, the first one is prefilled and
//! the others wait for it.
//!
//! Prefill must not stall running sequences: a pass that decodes has a small prefill budget.

use crate::device::Device;
use crate::engine::golden::largest;
use crate::engine::{Engine, Output, OutputKind, Row};
use crate::error::Error;
use crate::load::finish_background_work;
use crate::sampling::device_sampling::DeviceSampling;
use crate::serve::batch::job::{QueuedRequest, RequestEvent, RunningRequest};
use crate::serve::batch::slots::{Slot, choose_slot, longest_prefix, pending_prefix};
use crate::serve::http::metrics::Metrics;
use crate::session::generation::FinishReason;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

/// Maximum prefill rows in a pass that also decodes.
const MIXED_PREFILL_BUDGET: usize = 64;

/// The scheduler. It runs until its queue is closed and empty.
pub(crate) struct Scheduler<D> {
    engine: Engine<D>,
    jobs: UnboundedReceiver<QueuedRequest>,
    waiting: VecDeque<QueuedRequest>,
    slots: Vec<Slot<RunningRequest>>,
    /// Slots in prefill, in order of arrival.
    prefilling: VecDeque<usize>,
    clock: u64,
    metrics: Arc<Metrics>,
}

impl<D: Device> Scheduler<D> {
    /// A scheduler for an engine with `slots` slots.
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
            prefilling: VecDeque::new(),
            clock: 0,
            metrics,
        }
    }

    /// Runs passes of all sizes once, so that the first request does not wait for initialization.
    pub(crate) fn warm_up(&mut self) -> Result<(), Error> {
        finish_background_work(self.engine.device())?;
        let context = self.engine.context() as usize;
        let id = self.engine.info().bos.unwrap_or(0).min(self.engine.info().vocabulary - 1);
        for rows in [self.engine.info().chunk as usize, self.engine.info().head_rows as usize, 2, 1] {
            self.engine.truncate(0, 0);
            self.engine.run_tokens(0, &vec![id; rows.min(context)], Output::Greedy)?;
        }
        self.engine.truncate(0, 0);
        let device = self.engine.device();
        if let Some(disk) = device.disk_speed().map_err(Error::from)?
            && let Some(before) = device.streamed()
        {
            self.metrics.enable_expert_cache(disk, before);
        }
        Ok(())
    }

    /// Runs until all senders of the queue are dropped and all requests are done.
    pub(crate) fn run(mut self) {
        loop {
            let is_over = self.take_requests();
            self.drop_cancelled();
            self.assign_slots();
            self.update_gauges();
            if self.slots.iter().any(|slot| slot.request.is_some()) {
                self.step();
            } else if is_over {
                return;
            }
        }
    }

    fn update_gauges(&self) {
        self.metrics.waiting.set(self.waiting.len());
        self.metrics.running.set(self.slots.iter().filter(|slot| slot.request.is_some()).count());
    }

    /// Receives requests; waits for one if there is nothing else to do. Returns whether the queue is closed.
    fn take_requests(&mut self) -> bool {
        let is_idle = self.waiting.is_empty() && self.slots.iter().all(|slot| slot.request.is_none());
        if is_idle {
            self.update_gauges();
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

    fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|job| !job.updates.is_closed());
        self.metrics.cancelled.add(before - self.waiting.len());
        for index in 0..self.slots.len() {
            if self.slots[index].request.as_ref().is_some_and(RunningRequest::is_cancelled) {
                self.metrics.cancelled.add(1);
                self.free(index);
            }
        }
    }

    /// Assigns slots to waiting requests, in order of arrival.
    fn assign_slots(&mut self) {
        while let Some(job) = self.waiting.front() {
            let kept =
                |index: usize, length: usize| self.engine.rewindable(index as u32, length as u32) as usize;
            let Some(index) = choose_slot(&self.slots, &job.prompt, kept) else { return };
            let Some(job) = self.waiting.pop_front() else { return };
            let slot = &mut self.slots[index];
            // Log probabilities of the prompt need all of its logits, so nothing is reused.
            let common = if job.echoes_logprobs() { 0 } else { slot.common_prefix(&job.prompt) };
            let read = self.engine.truncate(index as u32, common as u32) as usize;
            slot.tokens.truncate(read);
            self.metrics.started.add(1);
            self.metrics.prompt_tokens.add(job.prompt.len());
            self.metrics.cached_tokens.add(read);
            let mut work =
                RunningRequest { request: job, position: read, next: None, waits_for_prefix: false };
            work.send(RequestEvent::Reused(read));
            let echoed = work.echo_begin();
            slot.request = Some(work);
            self.mark_used(index);
            self.prefilling.push_back(index);
            if let Err(failure) = echoed {
                self.fail(index, &failure);
            }
        }
    }

    fn mark_used(&mut self, index: usize) {
        self.clock += 1;
        self.slots[index].last_used = self.clock;
    }

    fn free(&mut self, index: usize) {
        self.slots[index].request = None;
        self.prefilling.retain(|&other| other != index);
        self.mark_used(index);
    }

    /// Runs one pass.
    fn step(&mut self) {
        self.share_prefixes();
        let pass = self.compose();
        let start = Instant::now();
        let fed = self.engine.run_batch(&pass.rows, &pass.wanted, pass.output_kind());
        self.metrics.forward_time.add(start.elapsed());
        self.metrics.passes.add(1);
        self.metrics.batch_tokens.add(pass.rows.len());
        if let Some(counts) = self.engine.device().streamed() {
            self.metrics.set_expert_cache(counts);
        }
        let mut fed = match fed {
            Ok(fed) => fed,
            Err(failure) => {
                // The contents of the slots are undefined.
                for index in 0..self.slots.len() {
                    self.slots[index].tokens.clear();
                    self.engine.truncate(index as u32, 0);
                    self.fail(index, &failure);
                }
                return;
            }
        };
        for row in &pass.rows {
            let slot = &mut self.slots[row.slot as usize];
            slot.tokens.push(row.id);
            if let Some(work) = &mut slot.request {
                work.next = None;
                work.position = slot.tokens.len();
            }
        }
        for place in 0..self.prefilling.len() {
            self.snapshot_before_last(self.prefilling[place]);
        }
        self.prefilling.retain(|&index| {
            self.slots[index].request.as_ref().is_some_and(|work| work.position < work.request.prompt.len())
        });
        for (number, &row) in pass.wanted.iter().enumerate() {
            let Row { slot, position, .. } = pass.rows[row as usize];
            let index = slot as usize;
            let next = match fed.logits.get_mut(number) {
                Some(logits) => NextToken::Logits(logits),
                None => NextToken::Id(fed.next_tokens[number]),
            };
            if let Err(failure) = self.advance(index, position as usize + 1, next) {
                self.fail(index, &failure);
            }
        }
    }

    /// Copies cached prefixes from other slots to slots in prefill.
    fn share_prefixes(&mut self) {
        for place in 0..self.prefilling.len() {
            let index = self.prefilling[place];
            let before =
                self.prefilling.iter().take(place).filter_map(|&index| self.slots[index].request.as_ref());
            let Some(work) = &self.slots[index].request else { continue };
            if work.request.echoes_logprobs() {
                continue;
            }
            let (read, prompt) = (work.position, &work.request.prompt);
            let kept =
                |index: usize, length: usize| self.engine.rewindable(index as u32, length as u32) as usize;
            let (known, from) = longest_prefix(&self.slots, prompt, kept);
            let pending = before.map(|work| {
                pending_prefix(
                    &work.request.prompt,
                    work.position,
                    prompt,
                    self.engine.info().recurrent_state_bytes > 0,
                )
            });
            let pending = pending.max().unwrap_or(0);
            // Waiting for a small part of the prompt is not worthwhile.
            let waits_for_prefix = pending > known && 2 * pending.saturating_sub(read) >= prompt.len() - read;
            let slot = &mut self.slots[index];
            let Some(work) = &mut slot.request else { continue };
            work.waits_for_prefix = waits_for_prefix;
            // One copy, when the whole shared prefix is available.
            if known > read && known >= pending {
                work.position = self.engine.copy(from as u32, index as u32, known as u32) as usize;
                slot.tokens = work.request.prompt[..work.position].to_vec();
                self.metrics.cached_tokens.add(work.position - read);
                work.send(RequestEvent::Reused(work.position - read));
                self.snapshot_before_last(index);
            }
        }
    }

    /// Snapshots the recurrent state of a slot before the last prompt token, which is always processed. A
    /// request with the same prompt can then reuse it.
    fn snapshot_before_last(&mut self, index: usize) {
        let work = self.slots[index].request.as_ref();
        if work.is_some_and(|work| work.position + 1 == work.request.prompt.len()) {
            self.engine.snapshot_state(index as u32);
        }
    }

    /// Composes a pass: one row for every running sequence, and portions of prompts.
    fn compose(&self) -> ScheduledBatch {
        let mut pass = ScheduledBatch { rows: Vec::new(), wanted: Vec::new(), draws: Some(Vec::new()) };
        for (index, slot) in self.slots.iter().enumerate() {
            let Some((work, id)) = slot.request.as_ref().and_then(|work| Some((work, work.next?))) else {
                continue;
            };
            pass.request_output(work);
            pass.rows.push(Row { id, slot: index as u32, position: slot.tokens.len() as u32 });
        }
        let most = self.engine.info().chunk as usize;
        let mut budget = most - pass.rows.len().min(most);
        if !pass.rows.is_empty() {
            budget = budget.min(MIXED_PREFILL_BUDGET);
        }
        for &index in &self.prefilling {
            let Some(work) = self.slots[index].request.as_ref().filter(|work| !work.waits_for_prefix) else {
                continue;
            };
            let portion = &work.request.prompt[work.position..];
            // With prompt log probabilities, each row needs logits.
            let most =
                if work.request.echoes_logprobs() { self.engine.info().head_rows as usize } else { budget };
            let mut portion = &portion[..portion.len().min(budget).min(most)];
            // The snapshot of the recurrent state is taken before the last token.
            if self.engine.info().recurrent_state_bytes > 0
                && portion.len() > 1
                && work.position + portion.len() == work.request.prompt.len()
            {
                portion = &portion[..portion.len() - 1];
            }
            budget -= portion.len();
            for (position, &id) in (work.position..).zip(portion) {
                if work.request.echoes_logprobs() || position + 1 == work.request.prompt.len() {
                    pass.request_output(work);
                }
                pass.rows.push(Row { id, slot: index as u32, position: position as u32 });
            }
        }
        pass
    }

    /// Continues a slot with the output after its first `length` tokens: echoes the prompt, or generates.
    fn advance(&mut self, index: usize, length: usize, next: NextToken<'_>) -> Result<(), Error> {
        let slot = &mut self.slots[index];
        let Some(work) = &mut slot.request else { return Ok(()) };
        if length < work.request.prompt.len() {
            return match next {
                NextToken::Logits(logits) => work.echo(length, Some(logits)),
                NextToken::Id(_) => Ok(()),
            };
        }
        let completion = &mut work.request.generation;
        let piece = match next {
            _ if completion.is_full() => completion.finish(FinishReason::Length)?,
            NextToken::Id(id) => completion.accept(id)?,
            NextToken::Logits(logits) if completion.required_output() == Output::Greedy => {
                completion.accept(largest(logits) as u32)?
            }
            NextToken::Logits(logits) => completion.sample(logits)?,
        };
        if work.request.prompt.len() == slot.tokens.len() {
            self.metrics.time_to_first_token.observe(work.request.arrived.elapsed());
        }
        self.metrics
            .generated_tokens
            .add(usize::from(piece.id.is_some() && piece.finish_reason != Some(FinishReason::EndOfText)));
        let mut end = piece.finish_reason;
        work.next = piece.id;
        let is_full = slot.tokens.len() >= self.engine.context() as usize;
        work.send(RequestEvent::Piece(piece));
        if end.is_none() && is_full {
            let last = work.request.generation.finish(FinishReason::Context)?;
            end = last.finish_reason;
            work.send(RequestEvent::Piece(last));
        }
        if end.is_some() {
            self.metrics.finish(work.request.arrived.elapsed());
            self.free(index);
        }
        Ok(())
    }

    fn fail(&mut self, index: usize, failure: &Error) {
        if let Some(work) = &self.slots[index].request {
            // Counted before the client gets the event.
            self.metrics.failed.add(1);
            work.send(RequestEvent::Failed(failure.clone()));
            self.free(index);
        }
    }
}

/// The output of a row: a token chosen on the device, or logits.
enum NextToken<'a> {
    Id(u32),
    Logits(&'a mut [f32]),
}

/// A pass to be submitted.
struct ScheduledBatch {
    rows: Vec<Row>,
    wanted: Vec<u32>,
    /// Sampling parameters of each output row; `None` if some sequence needs logits.
    draws: Option<Vec<DeviceSampling>>,
}

impl ScheduledBatch {
    /// Requests output for the next row, which belongs to `work`.
    fn request_output(&mut self, work: &RunningRequest) {
        self.wanted.push(self.rows.len() as u32);
        let draw = work.request.generation.device_sampling().filter(|_| !work.request.echoes_logprobs());
        self.draws = self.draws.take().zip(draw).map(|(mut draws, draw)| {
            draws.push(draw);
            draws
        });
    }

    /// The output of the pass: logits if some sequence needs them, else sampled or greedy tokens.
    fn output_kind(&self) -> OutputKind<'_> {
        match &self.draws {
            None => OutputKind::Logits,
            Some(draws) if draws.iter().all(DeviceSampling::is_greedy) => OutputKind::Greedy,
            Some(draws) => OutputKind::Sampled(draws),
        }
    }
}
