//! What comes to the scheduler, and what goes back.

use super::super::completion::{Completion, Echo, Piece};
use super::super::failure::Failure;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// A text to be written.
pub(super) struct Job {
    /// What it begins with: 1 id or more, and no more than the context has positions.
    pub(super) prompt: Vec<u32>,
    pub(super) completion: Completion,
    /// Gives the prompt back before what follows it, where that is asked for.
    pub(super) echo: Option<Echo>,
    /// Where its updates go, and which of the texts there it is.
    pub(super) updates: UnboundedSender<(usize, Update)>,
    pub(super) index: usize,
    pub(super) arrived: Instant,
    /// Its place among those who are written to or wait.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Job {
    /// Whether it is to be told how probable each id of its prompt was.
    pub(super) fn tells_of_prompt(&self) -> bool {
        self.echo.as_ref().is_some_and(Echo::wants_logits)
    }
}

/// What a job is told.
#[derive(Debug)]
pub(super) enum Update {
    /// So many more ids of its prompt need not be read.
    Reused(usize),
    /// A piece of its prompt.
    Echo(Piece),
    /// A piece of its text. One with an end is the last update.
    Piece(Piece),
    /// It cannot go on. The last update.
    Failed(Failure),
}

/// A job in a slot.
pub(super) struct Work {
    pub(super) job: Job,
    /// How many ids of its prompt are read.
    pub(super) read: usize,
    /// The id to be read next, when the prompt is.
    pub(super) next: Option<u32>,
    /// Whether what comes next of its prompt is being read in another slot, and to be had from there.
    pub(super) waits: bool,
}

impl Work {
    pub(super) fn is_unwanted(&self) -> bool {
        self.job.updates.is_closed()
    }

    /// Tells, whoever listens. Whether anybody does is asked before every pass.
    pub(super) fn tell(&self, update: Update) {
        let _ = self.job.updates.send((self.job.index, update));
    }

    /// Tells of the prompt, where that is wanted, as much as is known before it is read: its first id, or all of them if
    /// nobody asks for more than the text.
    pub(super) fn echo_begin(&mut self) -> Result<(), Failure> {
        let known = if self.job.tells_of_prompt() { 1 } else { self.job.prompt.len() };
        (0..known).try_for_each(|position| self.echo(position, None))
    }

    /// Tells of the prompt's id at `position`, which had these logits.
    pub(super) fn echo(&mut self, position: usize, logits: Option<&[f32]>) -> Result<(), Failure> {
        let Some(echo) = &mut self.job.echo else { return Ok(()) };
        let is_last = position + 1 == self.job.prompt.len();
        let piece = echo.piece(self.job.prompt[position], logits, is_last)?;
        self.tell(Update::Echo(piece));
        Ok(())
    }
}
