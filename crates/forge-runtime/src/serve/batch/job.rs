//! Requests to the scheduler, and the events that it returns.

use crate::engine::Output;
use crate::serve::http::metrics::Metrics;
use crate::session::generation::{Echo, FinishReason, GeneratedToken, Generation};
use forge_device::error::Error;
use forge_device::sampling::argmax::argmax;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// A sequence to be generated.
pub(crate) struct QueuedRequest {
    /// The prompt: at least one token, and no more than the context length.
    pub(crate) prompt: Vec<u32>,
    pub(crate) generation: Generation,
    /// Returns the prompt before the output, if requested.
    pub(crate) echo: Option<Echo>,
    /// The channel for its events, and its index among the request's sequences.
    pub(crate) updates: UnboundedSender<(usize, RequestEvent)>,
    pub(crate) index: usize,
    pub(crate) arrived: Instant,
    /// Its permit in the queue.
    pub(crate) _permit: OwnedSemaphorePermit,
}

impl QueuedRequest {
    /// Whether log probabilities of the prompt are requested.
    pub(crate) fn echoes_logprobs(&self) -> bool {
        self.echo.as_ref().is_some_and(Echo::needs_logits)
    }
}

/// An event of a sequence.
#[derive(Debug)]
pub(crate) enum RequestEvent {
    /// Prompt tokens reused from the prefix cache.
    Reused(usize),
    /// A prompt token, for `echo`.
    Echo(GeneratedToken),
    /// A generated token. The last event, if it has an end.
    Token(GeneratedToken),
    /// An error. The last event.
    Failed(Error),
}

/// A sequence in a slot.
pub(crate) struct RunningRequest {
    pub(crate) request: QueuedRequest,
    /// Prompt tokens processed so far.
    pub(crate) position: usize,
    /// The next token to process, after the prompt.
    pub(crate) next: Option<u32>,
    /// Whether it waits for another slot that is processing the same prefix.
    pub(crate) waits_for_prefix: bool,
}

/// The output of a row: a token chosen on the device, or logits.
pub(crate) enum NextToken<'a> {
    Id(u32),
    Logits(&'a mut [f32]),
}

/// Whether a sequence continues after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Continues,
    Ended,
}

impl RunningRequest {
    /// Continues the sequence with the output after its last token. `is_full`: no further token fits.
    pub(crate) fn accept(
        &mut self,
        next: NextToken<'_>,
        is_full: bool,
        metrics: &Metrics,
    ) -> Result<Progress, Error> {
        let generation = &mut self.request.generation;
        let token = match next {
            _ if generation.is_full() => generation.finish(FinishReason::Length)?,
            NextToken::Id(id) => generation.accept(id)?,
            NextToken::Logits(logits) if generation.required_output() == Output::Greedy => {
                generation.accept(argmax(logits) as u32)?
            }
            NextToken::Logits(logits) => generation.sample(logits)?,
        };
        if self.request.prompt.len() == self.position {
            metrics.time_to_first_token.observe(self.request.arrived.elapsed());
        }
        metrics
            .generated_tokens
            .add(usize::from(token.id.is_some() && token.finish_reason != Some(FinishReason::EndOfText)));
        self.next = token.id;
        let mut has_ended = token.finish_reason.is_some();
        self.send(RequestEvent::Token(token));
        if !has_ended && is_full {
            let last = self.request.generation.finish(FinishReason::Context)?;
            has_ended = last.finish_reason.is_some();
            self.send(RequestEvent::Token(last));
        }
        if has_ended {
            metrics.finish(self.request.arrived.elapsed());
        }
        Ok(if has_ended { Progress::Ended } else { Progress::Continues })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.request.updates.is_closed()
    }

    /// Sends an event. A disconnected client is noticed before the next pass.
    pub(crate) fn send(&self, update: RequestEvent) {
        let _ = self.request.updates.send((self.request.index, update));
    }

    /// Sends the prompt tokens known before prefill, for `echo`: the first one, or all if no log
    /// probabilities are requested.
    pub(crate) fn echo_begin(&mut self) -> Result<(), Error> {
        let known = if self.request.echoes_logprobs() { 1 } else { self.request.prompt.len() };
        (0..known).try_for_each(|position| self.echo(position, None))
    }

    /// Sends the prompt token at `position`, with the logits before it.
    pub(crate) fn echo(&mut self, position: usize, logits: Option<&[f32]>) -> Result<(), Error> {
        let Some(echo) = &mut self.request.echo else { return Ok(()) };
        let is_last = position + 1 == self.request.prompt.len();
        let piece = echo.push(self.request.prompt[position], logits, is_last)?;
        self.send(RequestEvent::Echo(piece));
        Ok(())
    }
}
