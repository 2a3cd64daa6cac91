//! What comes to the scheduler, and what goes back.

use crate::error::Error;
use crate::session::generation::{Echo, GeneratedToken, Generation};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// A text to be written.
pub(crate) struct QueuedRequest {
    /// What it begins with: 1 id or more, and no more than the context has positions.
    pub(crate) prompt: Vec<u32>,
    pub(crate) completion: Generation,
    /// Gives the prompt back before what follows it, where that is asked for.
    pub(crate) echo: Option<Echo>,
    /// Where its updates go, and which of the texts there it is.
    pub(crate) updates: UnboundedSender<(usize, RequestEvent)>,
    pub(crate) index: usize,
    pub(crate) arrived: Instant,
    /// Its place among those who are written to or wait.
    pub(crate) _place: OwnedSemaphorePermit,
}

impl QueuedRequest {
    /// Whether it is to be told how probable each id of its prompt was.
    pub(crate) fn tells_of_prompt(&self) -> bool {
        self.echo.as_ref().is_some_and(Echo::wants_logits)
    }
}

/// What a job is told.
#[derive(Debug)]
pub(crate) enum RequestEvent {
    /// So many more ids of its prompt need not be read.
    Reused(usize),
    /// A piece of its prompt.
    Echo(GeneratedToken),
    /// A piece of its text. One with an end is the last update.
    Piece(GeneratedToken),
    /// It cannot go on. The last update.
    Failed(Error),
}

/// A job in a slot.
pub(crate) struct RunningRequest {
    pub(crate) job: QueuedRequest,
    /// How many ids of its prompt are read.
    pub(crate) read: usize,
    /// The id to be read next, when the prompt is.
    pub(crate) next: Option<u32>,
    /// Whether what comes next of its prompt is being read in another slot, and to be had from there.
    pub(crate) waits: bool,
}

impl RunningRequest {
    pub(crate) fn is_unwanted(&self) -> bool {
        self.job.updates.is_closed()
    }

    /// Tells, whoever listens. Whether anybody does is asked before every pass.
    pub(crate) fn tell(&self, update: RequestEvent) {
        let _ = self.job.updates.send((self.job.index, update));
    }

    /// Tells of the prompt, where that is wanted, as much as is known before it is read: its first id, or all of them if
    /// nobody asks for more than the text.
    pub(crate) fn echo_begin(&mut self) -> Result<(), Error> {
        let known = if self.job.tells_of_prompt() { 1 } else { self.job.prompt.len() };
        (0..known).try_for_each(|position| self.echo(position, None))
    }

    /// Tells of the prompt's id at `position`, which had these logits.
    pub(crate) fn echo(&mut self, position: usize, logits: Option<&[f32]>) -> Result<(), Error> {
        let Some(echo) = &mut self.job.echo else { return Ok(()) };
        let is_last = position + 1 == self.job.prompt.len();
        let piece = echo.piece(self.job.prompt[position], logits, is_last)?;
        self.tell(RequestEvent::Echo(piece));
        Ok(())
    }
}
