//! Generation of one sequence, independent of engine and slot.
//!
//! A [`Generation`] receives the chosen token or the logits after each token and returns a
//! [`GeneratedToken`]: the token and the text that may be shown. It owns the sampler, incomplete UTF-8 bytes,
//! text that may start a stop string, and an optional constraint. Both
//! [`Session`](crate::session::session::Session) and the server's scheduler use it:
//!
//! ```ignore
//! let token = match generation.required_output() {
//!     Output::Greedy | Output::Sampled(_) => generation.accept(chosen)?,
//!     _ => generation.sample(&mut logits)?,
//! };
//! ```
//!
//! A token with an [`finish_reason`](GeneratedToken::finish_reason) must not be fed to the model.

use crate::engine::Output;
use crate::text::tokenizer::{Detokenizer, StopStrings, Tokenizer};
use forge_device::error::Error;
use forge_device::sampling::device_sampling::DeviceSampling;
use forge_device::sampling::sampler::{Sampler, SamplingParams};

/// Parameters of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationParams {
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// The random seed. The same seed gives the same output.
    pub seed: u64,
    /// Maximum number of tokens.
    pub max_tokens: usize,
    /// Stop strings; the text ends before any of them.
    pub stop: Vec<String>,
    /// Whether end-of-text tokens are treated as ordinary tokens.
    pub ignore_eos: bool,
    /// Whether to return log probabilities, and of how many top tokens.
    pub logprobs: Option<usize>,
}

impl Default for GenerationParams {
    fn default() -> GenerationParams {
        GenerationParams {
            sampling: SamplingParams::greedy(),
            seed: 0,
            max_tokens: usize::MAX,
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
        }
    }
}

/// A constraint on the output, such as a grammar.
pub trait Constraint: Send {
    /// Sets the logits of tokens that may not come next to minus infinity.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error>;
    /// Advances the constraint by a token.
    fn accept(&mut self, id: u32) -> Result<(), Error>;
    /// Whether the output is complete and no token may follow.
    fn is_complete(&mut self) -> bool;
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-text token.
    EndOfText,
    /// A stop string.
    StopString,
    /// The maximum number of tokens.
    Length,
    /// The context is full.
    Context,
    /// The constraint is complete.
    Complete,
    /// The caller stopped it.
    Interrupted,
}

impl FinishReason {
    /// The name in the CLI and its JSON.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::EndOfText => "end of text",
            FinishReason::StopString => "stop string",
            FinishReason::Length => "length",
            FinishReason::Context => "context full",
            FinishReason::Complete => "complete",
            FinishReason::Interrupted => "interrupted",
        }
    }
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedToken {
    /// The token id; `None` if the generation ended without a token.
    pub id: Option<u32>,
    /// Text that may be shown now. Empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// Log probabilities, if requested.
    pub logprobs: Option<Logprobs>,
    /// The finish reason, if this is the last token.
    pub finish_reason: Option<FinishReason>,
}

/// Log probabilities of the model's own logits, before sampling adjustments.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, most probable first.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// The log probabilities of `id` and of the `count` most probable tokens.
    pub fn of(logits: &[f32], id: u32, count: usize) -> Logprobs {
        let total = log_sum_exp(logits);
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

/// The log-sum-exp of logits.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - top).exp()).sum();
    f64::from(top) + sum.ln()
}

/// A generation in progress.
pub struct Generation {
    detokenizer: Option<Detokenizer>,
    stops: StopStrings,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    eos: &'static [u32],
    ignore_end: bool,
    logprobs: Option<usize>,
    remaining: usize,
}

impl Generation {
    /// Starts a generation after `prompt`. Without a tokenizer it produces token ids only. Tokens in `end`
    /// end it.
    pub fn new(
        text: Option<&Tokenizer>,
        eos: &'static [u32],
        prompt: &[u32],
        settings: GenerationParams,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Generation {
        Generation {
            detokenizer: text.map(Tokenizer::detokenizer),
            stops: StopStrings::new(settings.stop),
            sampler: Sampler::new(settings.sampling, settings.seed, prompt),
            constraint,
            eos,
            ignore_end: settings.ignore_eos,
            logprobs: settings.logprobs,
            remaining: settings.max_tokens,
        }
    }

    /// The model output needed for the next token: a token chosen on the device, or logits.
    pub fn required_output(&self) -> Output {
        match self.device_sampling() {
            Some(draw) if draw.is_greedy() => Output::Greedy,
            Some(draw) => Output::Sampled(draw),
            None => Output::Logits,
        }
    }

    /// The sampling parameters for the device; `None` if logits are needed on the host.
    pub fn device_sampling(&self) -> Option<DeviceSampling> {
        let is_plain = self.constraint.is_none() && self.logprobs.is_none();
        self.sampler.next_device_sampling().filter(|_| is_plain)
    }

    /// How many more tokens may be generated.
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Whether the maximum number of tokens is reached.
    pub fn is_full(&self) -> bool {
        self.remaining == 0
    }

    /// Samples the next token from the logits after the last one. The logits are modified.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<GeneratedToken, Error> {
        let unadjusted = self.logprobs.map(|_| logits.to_vec());
        self.sampler.adjust(logits);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        let id = self.sampler.sample(logits);
        let mut token = self.take(id)?;
        token.logprobs = unadjusted.map(|logits| Logprobs::of(&logits, id, self.logprobs.unwrap_or(0)));
        Ok(token)
    }

    /// Accepts a token that was chosen on the device as [`Generation::required_output`] specifies.
    pub fn accept(&mut self, id: u32) -> Result<GeneratedToken, Error> {
        self.sampler.advance();
        self.take(id)
    }

    fn take(&mut self, id: u32) -> Result<GeneratedToken, Error> {
        if self.eos.contains(&id) && !self.ignore_end {
            let rest = self.finish(FinishReason::EndOfText)?;
            return Ok(GeneratedToken { id: Some(id), ..rest });
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
        }
        let added = match &mut self.detokenizer {
            Some(stream) => stream.push(id)?,
            None => String::new(),
        };
        let (mut text, is_stopped) = self.stops.push(&added);
        self.remaining = self.remaining.saturating_sub(1);
        let is_complete = self.constraint.as_mut().is_some_and(|constraint| constraint.is_complete());
        let mut end = None;
        if is_stopped {
            end = Some(FinishReason::StopString);
        } else if is_complete || self.remaining == 0 {
            let rest =
                self.finish(if is_complete { FinishReason::Complete } else { FinishReason::Length })?;
            text.push_str(&rest.text);
            end = rest.finish_reason;
        }
        Ok(GeneratedToken { id: Some(id), text, logprobs: None, finish_reason: end })
    }

    /// Ends the generation for an outside reason, and returns text that was held back.
    pub fn finish(&mut self, end: FinishReason) -> Result<GeneratedToken, Error> {
        let rest = self.detokenizer.take().map_or_else(|| Ok(String::new()), Detokenizer::finish)?;
        let (mut text, is_stopped) = self.stops.push(&rest);
        if !is_stopped {
            text.push_str(&self.stops.take());
        }
        let end = if is_stopped { FinishReason::StopString } else { end };
        Ok(GeneratedToken { id: None, text, logprobs: None, finish_reason: Some(end) })
    }
}

/// A prompt returned as if it had been generated, for `echo`.
pub struct Echo {
    text: Option<Detokenizer>,
    logprobs: Option<usize>,
}

impl Echo {
    /// Echoes a prompt. `logprobs`: whether to return log probabilities, and of how many top tokens.
    pub fn new(text: &Tokenizer, logprobs: Option<usize>) -> Echo {
        Echo { text: Some(text.detokenizer()), logprobs }
    }

    /// Whether the logits before each prompt token are needed.
    pub fn needs_logits(&self) -> bool {
        self.logprobs.is_some()
    }

    /// The next prompt token. `logits` are those after the token before it; the first token has none.
    pub fn push(&mut self, id: u32, logits: Option<&[f32]>, is_last: bool) -> Result<GeneratedToken, Error> {
        let mut text = match &mut self.text {
            Some(stream) => stream.push(id)?,
            None => String::new(),
        };
        if is_last {
            text += &self.text.take().map_or_else(|| Ok(String::new()), Detokenizer::finish)?;
        }
        let logprobs = logits.zip(self.logprobs).map(|(logits, count)| Logprobs::of(logits, id, count));
        Ok(GeneratedToken { id: Some(id), text, logprobs, finish_reason: None })
    }
}
