//! One text being written, whoever runs the model.
//!
//! A [`Generation`] is given what the model says after each id, and gives a [`Piece`] back: the id that it has chosen and
//! the text that may be shown because of it. It owns what one text needs: the sampler, the bytes of characters that are
//! not whole yet, text that may be the beginning of a stop string, and a constraint if there is one. It knows neither
//! engine nor slot, so that a lone conversation and a server's scheduler drive it alike:
//!
//! ```ignore
//! let piece = match completion.want() {
//!     Want::Next | Want::Drawn(_) => completion.next(chosen)?,
//!     _ => completion.choose(&mut logits)?,
//! };
//! ```
//!
//! The id of a piece that has an [`Piece::end`] is not to be fed to the model.

use crate::engine::Output;
use crate::error::Error;
use crate::sampling::device_sampling::DeviceSampling;
use crate::sampling::sampler::{Sampler, SamplingParams};
use crate::text::tokenizer::{Detokenizer, StopStrings, Tokenizer};

/// How a text is written.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationParams {
    /// How ids are chosen.
    pub sampling: SamplingParams,
    /// Same seed, same text.
    pub seed: u64,
    /// The most ids.
    pub count: usize,
    /// The text ends before any of these.
    pub stop: Vec<String>,
    /// Whether ids that end a text are ids like others.
    pub ignore_end: bool,
    /// Whether to tell the probability of each id, and how many of the most probable beside it.
    pub logprobs: Option<usize>,
}

impl Default for GenerationParams {
    fn default() -> GenerationParams {
        GenerationParams {
            sampling: SamplingParams::greedy(),
            seed: 0,
            count: usize::MAX,
            stop: Vec::new(),
            ignore_end: false,
            logprobs: None,
        }
    }
}

/// What a text has to be like: a grammar, for one.
pub trait Constraint: Send {
    /// Makes the logits of ids that may not come next minus infinity.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error>;
    /// Takes note of the id that came.
    fn accept(&mut self, id: u32) -> Result<(), Error>;
    /// Whether nothing may follow.
    fn is_complete(&mut self) -> bool;
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    EndOfText,
    /// A stop string was met.
    StopString,
    /// As many ids as were asked for.
    Count,
    /// No more positions.
    Context,
    /// The constraint lets nothing follow.
    Complete,
    /// Whoever wanted it does not any more.
    Interrupted,
}

impl FinishReason {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::EndOfText => "end of text",
            FinishReason::StopString => "stop string",
            FinishReason::Count => "length",
            FinishReason::Context => "context full",
            FinishReason::Complete => "complete",
            FinishReason::Interrupted => "interrupted",
        }
    }
}

/// What an id gave.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// The id; none where something else than an id ended the text.
    pub id: Option<u32>,
    /// Text that may be shown now; often nothing, when a character or a stop string is not whole yet.
    pub text: String,
    /// Probabilities, if they were asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it is the last piece, if it is.
    pub end: Option<FinishReason>,
}

/// Logarithms of probabilities, of the model's own logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the id that was chosen.
    pub chosen: f32,
    /// The most probable ids, first the most probable.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// The probability of `id`, and of the `count` most probable ids.
    pub fn of(logits: &[f32], id: u32, count: usize) -> Logprobs {
        let total = log_sum(logits);
        let of = |logit: f32| (f64::from(logit) - total) as f32;
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if count < ids.len() {
            ids.select_nth_unstable_by(count, order);
            ids.truncate(count);
        }
        ids.sort_unstable_by(order);
        Logprobs {
            chosen: logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| of(logit)),
            top: ids.into_iter().map(|id| (id, of(logits[id as usize]))).collect(),
        }
    }
}

/// The logarithm of the sum of what logits are the logarithms of.
pub fn log_sum(logits: &[f32]) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - top).exp()).sum();
    f64::from(top) + sum.ln()
}

/// A text being written.
pub struct Generation {
    text: Option<Detokenizer>,
    stops: StopStrings,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    end: &'static [u32],
    ignore_end: bool,
    logprobs: Option<usize>,
    left: usize,
}

impl Generation {
    /// Begins a text after `prompt`. Without a tokenizer there are ids only. The ids of `end` end it.
    pub fn new(
        text: Option<&Tokenizer>,
        end: &'static [u32],
        prompt: &[u32],
        settings: GenerationParams,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Generation {
        Generation {
            text: text.map(Tokenizer::stream),
            stops: StopStrings::new(settings.stop),
            sampler: Sampler::new(settings.sampling, settings.seed, prompt),
            constraint,
            end,
            ignore_end: settings.ignore_end,
            logprobs: settings.logprobs,
            left: settings.count,
        }
    }

    /// What has to be known of the model for the next piece: the id that it chooses or draws, or all logits.
    pub fn want(&self) -> Output {
        match self.draw() {
            Some(draw) if draw.is_greedy() => Output::Next,
            Some(draw) => Output::Drawn(draw),
            None => Output::Logits,
        }
    }

    /// How a device chooses the id of the next piece, if nothing else has to be known.
    pub fn draw(&self) -> Option<DeviceSampling> {
        let is_plain = self.constraint.is_none() && self.logprobs.is_none();
        self.sampler.next_draw().filter(|_| is_plain)
    }

    /// How many ids the text may still have.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Whether the text has as many ids as it may have.
    pub fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Chooses an id by the logits after the last one, which are changed on the way.
    pub fn choose(&mut self, logits: &mut [f32]) -> Result<GeneratedToken, Error> {
        let models = self.logprobs.map(|_| logits.to_vec());
        self.sampler.adjust(logits);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        let id = self.sampler.draw(logits);
        let mut piece = self.take(id)?;
        piece.logprobs = models.map(|logits| Logprobs::of(&logits, id, self.logprobs.unwrap_or(0)));
        Ok(piece)
    }

    /// Takes an id that has been chosen as [`Generation::want`] says.
    pub fn next(&mut self, id: u32) -> Result<GeneratedToken, Error> {
        self.sampler.note();
        self.take(id)
    }

    fn take(&mut self, id: u32) -> Result<GeneratedToken, Error> {
        if self.end.contains(&id) && !self.ignore_end {
            let rest = self.finish(FinishReason::EndOfText)?;
            return Ok(GeneratedToken { id: Some(id), ..rest });
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
        }
        let added = match &mut self.text {
            Some(stream) => stream.push(id)?,
            None => String::new(),
        };
        let (mut text, is_stopped) = self.stops.push(&added);
        self.left = self.left.saturating_sub(1);
        let is_complete = self.constraint.as_mut().is_some_and(|constraint| constraint.is_complete());
        let mut end = None;
        if is_stopped {
            end = Some(FinishReason::StopString);
        } else if is_complete || self.left == 0 {
            let rest = self.finish(if is_complete { FinishReason::Complete } else { FinishReason::Count })?;
            text.push_str(&rest.text);
            end = rest.end;
        }
        Ok(GeneratedToken { id: Some(id), text, logprobs: None, end })
    }

    /// Ends the text for a reason that lies outside it, and gives what was held back.
    pub fn finish(&mut self, end: FinishReason) -> Result<GeneratedToken, Error> {
        let rest = self.text.take().map_or_else(|| Ok(String::new()), Detokenizer::finish)?;
        let (mut text, is_stopped) = self.stops.push(&rest);
        if !is_stopped {
            text.push_str(&self.stops.take());
        }
        let end = if is_stopped { FinishReason::StopString } else { end };
        Ok(GeneratedToken { id: None, text, logprobs: None, end: Some(end) })
    }
}

/// A prompt given back in pieces, as if it had been written.
pub struct Echo {
    text: Option<Detokenizer>,
    logprobs: Option<usize>,
}

impl Echo {
    /// For a prompt of `text`; `logprobs`: whether to tell the probability of each id, and how many of the most probable
    /// beside it.
    pub fn new(text: &Tokenizer, logprobs: Option<usize>) -> Echo {
        Echo { text: Some(text.stream()), logprobs }
    }

    /// Whether it has to be known what the model said before each id.
    pub fn wants_logits(&self) -> bool {
        self.logprobs.is_some()
    }

    /// The next id of the prompt, with the logits that it was chosen from, as it were; of the first id there are none.
    pub fn piece(&mut self, id: u32, logits: Option<&[f32]>, is_last: bool) -> Result<GeneratedToken, Error> {
        let mut text = match &mut self.text {
            Some(stream) => stream.push(id)?,
            None => String::new(),
        };
        if is_last {
            text += &self.text.take().map_or_else(|| Ok(String::new()), Detokenizer::finish)?;
        }
        let logprobs = logits.zip(self.logprobs).map(|(logits, count)| Logprobs::of(logits, id, count));
        Ok(GeneratedToken { id: Some(id), text, logprobs, end: None })
    }
}
