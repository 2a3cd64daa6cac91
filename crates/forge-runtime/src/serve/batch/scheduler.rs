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
//! Prefill must not stall running sequences: a pass that decodes has a [`PrefillBudget`].
//!
//! A sequence without company is decoded like that of the command line: the device runs ahead of the host, until
//! the sequence ends or another request arrives. Its tokens are the same either way.

use crate::engine::{Engine, Row};
use crate::serve::batch::job::{NextToken, Progress, QueuedRequest, RequestEvent, RunningRequest};
use crate::serve::batch::prefill_budget::PrefillBudget;
use crate::serve::batch::scheduled_batch::ScheduledBatch;
use crate::serve::batch::slots::{Slot, choose_slot, longest_prefix, pending_prefix};
use crate::serve::batch::warm_up::warm_up;
use crate::serve::http::metrics::Metrics;
use forge_device::device::{Device, RESIDENCY_INTERVAL, RunAhead};
use forge_device::error::Error;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

/// The scheduler. It runs until its queue is closed and empty.
pub(crate) struct Scheduler<D> {
    engine: Engine<D>,
    queue: UnboundedReceiver<QueuedRequest>,
    waiting: VecDeque<QueuedRequest>,
    slots: Vec<Slot<RunningRequest>>,
    /// Slots in prefill, in order of arrival.
    prefilling: VecDeque<usize>,
    prefill_budget: PrefillBudget,
    clock: u64,
    metrics: Arc<Metrics>,
}

impl<D: Device> Scheduler<D> {
    /// A scheduler for an engine with `slots` slots.
    pub(crate) fn new(
        engine: Engine<D>,
        slots: u32,
        queue: UnboundedReceiver<QueuedRequest>,
        metrics: Arc<Metrics>,
    ) -> Scheduler<D> {
        let slots = (0..slots).map(|_| Slot::new()).collect();
        Scheduler {
            engine,
            queue,
            waiting: VecDeque::new(),
            slots,
            prefilling: VecDeque::new(),
            prefill_budget: PrefillBudget::default(),
            clock: 0,
            metrics,
        }
    }

    /// Runs passes of all sizes once, so that the first request does not wait for initialization.
    pub(crate) fn warm_up(&mut self) -> Result<(), Error> {
        self.prefill_budget = warm_up(&mut self.engine, self.slots.len())?;
        let device = self.engine.device();
        if let Some(disk) = device.measure_disk_bandwidth().map_err(Error::from)?
            && let Some(before) = device.expert_cache_stats()
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
            if let Some((index, run_ahead)) = self.alone() {
                self.decode_alone(index, run_ahead);
            } else if self.slots.iter().any(|slot| slot.request.is_some()) {
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
            match self.wait_for_request() {
                Some(queued) => self.waiting.push_back(queued),
                None => return true,
            }
        }
        loop {
            match self.queue.try_recv() {
                Ok(queued) => self.waiting.push_back(queued),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Waits for a request; none if the queue is closed. While it waits, it keeps the device's memory resident.
    fn wait_for_request(&mut self) -> Option<QueuedRequest> {
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let Some(clock) = clock.ok().filter(|_| self.engine.device().renew_residency()) else {
            return self.queue.blocking_recv();
        };
        clock.block_on(async {
            loop {
                match tokio::time::timeout(RESIDENCY_INTERVAL, self.queue.recv()).await {
                    Ok(queued) => return queued,
                    Err(_) => _ = self.engine.device().renew_residency(),
                }
            }
        })
    }

    fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|queued| !queued.updates.is_closed());
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
        while let Some(queued) = self.waiting.front() {
            let kept =
                |index: usize, length: usize| self.engine.rewindable(index as u32, length as u32) as usize;
            let Some(index) = choose_slot(&self.slots, &queued.prompt, kept) else { return };
            let Some(queued) = self.waiting.pop_front() else { return };
            let slot = &mut self.slots[index];
            // Log probabilities of the prompt need all of its logits, so nothing is reused.
            let common = if queued.echoes_logprobs() { 0 } else { slot.common_prefix(&queued.prompt) };
            let read = self.engine.truncate(index as u32, common as u32) as usize;
            slot.tokens.truncate(read);
            self.metrics.started.add(1);
            self.metrics.prompt_tokens.add(queued.prompt.len());
            self.metrics.cached_tokens.add(read);
            let mut running =
                RunningRequest { request: queued, position: read, next: None, waits_for_prefix: false };
            running.send(RequestEvent::Reused(read));
            let echoed = running.echo_begin();
            slot.request = Some(running);
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
        let mixed_prefill = self.prefill_budget.rows();
        let pass = ScheduledBatch::compose(&self.slots, &self.prefilling, mixed_prefill, self.engine.info());
        let start = Instant::now();
        let output = self.engine.run_batch(&pass.rows, &pass.wanted, pass.output_kind());
        let time = start.elapsed();
        self.metrics.forward_time.add(time);
        if pass.decoded > 0 {
            self.prefill_budget.record(pass.rows.len() - pass.decoded, time);
        }
        self.metrics.passes.add(1);
        self.metrics.batch_tokens.add(pass.rows.len());
        if let Some(counts) = self.engine.device().expert_cache_stats() {
            self.metrics.set_expert_cache(counts);
        }
        let mut output = match output {
            Ok(output) => output,
            Err(failure) => return self.fail_all(&failure),
        };
        for row in &pass.rows {
            let slot = &mut self.slots[row.slot as usize];
            slot.tokens.push(row.id);
            if let Some(running) = &mut slot.request {
                running.next = None;
                running.position = slot.tokens.len();
            }
        }
        for place in 0..self.prefilling.len() {
            self.snapshot_before_last(self.prefilling[place]);
        }
        self.prefilling.retain(|&index| {
            self.slots[index]
                .request
                .as_ref()
                .is_some_and(|running| running.position < running.request.prompt.len())
        });
        for (number, &row) in pass.wanted.iter().enumerate() {
            let Row { slot, position, .. } = pass.rows[row as usize];
            let index = slot as usize;
            let next = match output.logits.get_mut(number) {
                Some(logits) => NextToken::Logits(logits),
                None => NextToken::Id(output.next_tokens[number]),
            };
            self.advance(index, position as usize + 1, next);
        }
    }

    /// The only running sequence, and how far the device may run ahead with it; none if other work is waiting, or
    /// if the host has to see each token before the next pass.
    fn alone(&mut self) -> Option<(usize, RunAhead)> {
        let run_ahead = self.engine.device().run_ahead();
        let mut running = self.slots.iter().enumerate().filter(|(_, slot)| slot.request.is_some());
        let (Some((index, slot)), None) = (running.next(), running.next()) else { return None };
        let running = slot.request.as_ref()?;
        let is_decoding = running.next.is_some() && self.waiting.is_empty() && self.prefilling.is_empty();
        let is_chosen_on_device = running.request.generation.device_sampling().is_some();
        // The next request could not reuse a recurrent state past the end of the sequence.
        let can_rewind = self.engine.info().recurrent_state_bytes == 0;
        (run_ahead != RunAhead::NONE && is_decoding && is_chosen_on_device && can_rewind)
            .then_some((index, run_ahead))
    }

    /// Decodes the only running sequence until it ends or another request arrives.
    fn decode_alone(&mut self, index: usize, run_ahead: RunAhead) {
        match self.decode_ahead(index, run_ahead) {
            Ok(outcome) => {
                // Removes what the device decoded past the end.
                self.engine.truncate(index as u32, self.slots[index].tokens.len() as u32);
                self.conclude(index, outcome);
            }
            Err(failure) => self.fail_all(&failure),
        }
    }

    /// The loop of [`Scheduler::decode_alone`]. The outer error is of the device, the inner one of the sequence.
    fn decode_ahead(&mut self, index: usize, run_ahead: RunAhead) -> Result<Result<Progress, Error>, Error> {
        let Scheduler { engine, queue, slots, metrics, prefill_budget, .. } = self;
        let context = engine.context() as usize;
        let mut outcome = Ok(Progress::Continues);
        let Slot { tokens, request: Some(running), .. } = &mut slots[index] else { return Ok(outcome) };
        let Some(first) = running.next else { return Ok(outcome) };
        let draw = running.request.generation.device_sampling().filter(|draw| !draw.is_greedy());
        let mut decoder = engine.decode_multi_step(index as u32, first, run_ahead)?;
        if let Some(draw) = draw {
            decoder = decoder.with_sampling(draw);
        }
        let mut of_pass = (Instant::now(), 0);
        while outcome == Ok(Progress::Continues) && !running.is_cancelled() {
            // Another request waits for the tokens that the device is already computing, but for no more.
            let most = if queue.is_empty() { usize::MAX } else { decoder.pending() };
            let (Some(id), 1..) = (running.next, most) else { break };
            let start = Instant::now();
            let next = decoder.next(running.request.generation.remaining().min(most))?;
            metrics.forward_time.add(start.elapsed());
            // The tokens of a pass arrive together.
            of_pass.1 += 1;
            if of_pass.1 == run_ahead.tokens_per_pass {
                prefill_budget.record(0, of_pass.0.elapsed() / of_pass.1);
                of_pass = (Instant::now(), 0);
            }
            metrics.passes.add(1);
            metrics.batch_tokens.add(1);
            tokens.push(id);
            running.position = tokens.len();
            outcome = running.accept(NextToken::Id(next), tokens.len() >= context, metrics);
        }
        Ok(outcome)
    }

    /// Copies cached prefixes from other slots to slots in prefill.
    fn share_prefixes(&mut self) {
        for place in 0..self.prefilling.len() {
            let index = self.prefilling[place];
            let before =
                self.prefilling.iter().take(place).filter_map(|&index| self.slots[index].request.as_ref());
            let Some(running) = &self.slots[index].request else { continue };
            if running.request.echoes_logprobs() {
                continue;
            }
            let (read, prompt) = (running.position, &running.request.prompt);
            let kept =
                |index: usize, length: usize| self.engine.rewindable(index as u32, length as u32) as usize;
            let (cached, from) = longest_prefix(&self.slots, prompt, kept);
            let pending = before.map(|running| {
                pending_prefix(
                    &running.request.prompt,
                    running.position,
                    prompt,
                    self.engine.info().recurrent_state_bytes > 0,
                )
            });
            let pending = pending.max().unwrap_or(0);
            // Waiting for a small part of the prompt is not worthwhile.
            let waits_for_prefix =
                pending > cached && 2 * pending.saturating_sub(read) >= prompt.len() - read;
            let slot = &mut self.slots[index];
            let Some(running) = &mut slot.request else { continue };
            running.waits_for_prefix = waits_for_prefix;
            // One copy, when the whole shared prefix is available.
            if cached > read && cached >= pending {
                running.position = self.engine.copy(from as u32, index as u32, cached as u32) as usize;
                slot.tokens = running.request.prompt[..running.position].to_vec();
                self.metrics.cached_tokens.add(running.position - read);
                running.send(RequestEvent::Reused(running.position - read));
                self.snapshot_before_last(index);
            }
        }
    }

    /// Snapshots the recurrent state of a slot before the last prompt token, which is always processed. A
    /// request with the same prompt can then reuse it.
    fn snapshot_before_last(&mut self, index: usize) {
        let running = self.slots[index].request.as_ref();
        if running.is_some_and(|running| running.position + 1 == running.request.prompt.len()) {
            self.engine.snapshot_state(index as u32);
        }
    }

    /// Continues a slot with the output after its first `length` tokens: echoes the prompt, or generates.
    fn advance(&mut self, index: usize, length: usize, next: NextToken<'_>) {
        let slot = &mut self.slots[index];
        let Some(running) = &mut slot.request else { return };
        let outcome = if length < running.request.prompt.len() {
            let echoed = match next {
                NextToken::Logits(logits) => running.echo(length, Some(logits)),
                NextToken::Id(_) => Ok(()),
            };
            echoed.map(|()| Progress::Continues)
        } else {
            running.accept(next, slot.tokens.len() >= self.engine.context() as usize, &self.metrics)
        };
        self.conclude(index, outcome);
    }

    /// Frees a slot whose sequence has ended or failed.
    fn conclude(&mut self, index: usize, outcome: Result<Progress, Error>) {
        match outcome {
            Ok(Progress::Continues) => {}
            Ok(Progress::Ended) => self.free(index),
            Err(failure) => self.fail(index, &failure),
        }
    }

    /// Fails all sequences after a failed pass: the contents of the slots are undefined.
    fn fail_all(&mut self, failure: &Error) {
        for index in 0..self.slots.len() {
            self.slots[index].tokens.clear();
            self.engine.truncate(index as u32, 0);
            self.fail(index, failure);
        }
    }

    fn fail(&mut self, index: usize, failure: &Error) {
        if let Some(running) = &self.slots[index].request {
            // Counted before the client gets the event.
            self.metrics.failed.add(1);
            running.send(RequestEvent::Failed(failure.clone()));
            self.free(index);
        }
    }
}
