//! A session: text in, text out, one sequence at a time.
//!
//! A [`Session`] owns an engine, its tokenizer and its chat template. It tracks the tokens in its slot, so a
//! conversation that continues is not prefilled again from its start. `generate`, `chat` and programs that
//! use the model as a library are built on it:
//!
//! ```ignore
//! let mut fable = fable::open(&LoadOptions::default())?;
//! let story = fable.chat(&[Message::user("Tell me a story about a fox")], GenerationParams::default())?;
//! ```

use crate::engine::{Engine, Output};
use crate::load::LoadOptions;
use crate::session::generation::{Constraint, FinishReason, GeneratedToken, Generation, GenerationParams};
use crate::text::chat_template::{Conversation, Message, Template};
use crate::text::tokenizer::Tokenizer;
use forge_device::device::{Device, RunAhead};
use forge_device::error::Error;
use forge_device::program::CompiledModel;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// An engine with the conversation in slot 0.
pub struct Session<D = Box<dyn Device>> {
    engine: Engine<D>,
    text: Option<Tokenizer>,
    template: Option<Template>,
    /// The tokens in the slot.
    tokens: Vec<u32>,
    /// Tokens per pass in multi-step decode; the device's default if `None`.
    tokens_per_pass: Option<u32>,
}

/// Progress of a generation.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Prefill progress, in tokens.
    Prefill {
        /// Tokens processed so far, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A generated token.
    Token(&'a GeneratedToken),
}

/// The result of a generation.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The generated token ids, including a final end-of-text token.
    pub token_ids: Vec<u32>,
    /// The generated text.
    pub text: String,
    /// The finish reason.
    pub finish_reason: FinishReason,
    /// Prompt tokens that were prefilled, reused ones excluded.
    pub prefilled_tokens: usize,
    /// Prefill time, including the first token.
    pub prefill_time: Duration,
    /// Decode time of the other tokens.
    pub decode_time: Duration,
}

/// The slot that a session uses.
const SLOT: u32 = 0;

impl Session {
    /// Loads the model and puts it on a device.
    pub fn open(program: &CompiledModel, setup: &LoadOptions) -> Result<Session, Error> {
        let (text, template) = (setup.tokenizer(program), setup.template(program)?);
        let engine = setup.engine(program, None)?;
        text.wait_ready()?;
        Ok(Session::new(engine, Some(text), template))
    }
}

impl<D: Device> Session<D> {
    /// A session on an engine with empty slots. Without a tokenizer it produces token ids only.
    pub fn new(engine: Engine<D>, text: Option<Tokenizer>, template: Option<Template>) -> Session<D> {
        Session { engine, text, template, tokens: Vec::new(), tokens_per_pass: None }
    }

    /// Sets the tokens per pass of multi-step decode.
    pub fn with_tokens_per_pass(mut self, ids: Option<u32>) -> Session<D> {
        self.tokens_per_pass = ids;
        self
    }

    /// The engine. Clears the session's record of slot 0, so the next prompt is prefilled from its start.
    pub fn engine(&mut self) -> &mut Engine<D> {
        self.tokens.clear();
        &mut self.engine
    }

    /// A description of the device.
    pub fn describe(&mut self) -> String {
        self.engine.device().describe()
    }

    /// The context length in tokens.
    pub fn context(&self) -> u32 {
        self.engine.context()
    }

    /// Tokens in the slot.
    pub fn length(&self) -> u32 {
        self.engine.length(SLOT)
    }

    /// The tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.text.as_ref()
    }

    /// The token ids of a conversation, up to where the reply starts.
    pub fn prompt(&self, conversation: &Conversation<'_>) -> Result<Vec<u32>, Error> {
        prompt(self.text.as_ref(), self.template.as_ref(), conversation)
    }

    /// Generates the reply to a conversation.
    pub fn chat(&mut self, messages: &[Message], settings: GenerationParams) -> Result<String, Error> {
        let prompt = self.prompt(&Conversation::new(messages))?;
        Ok(self.generate(&prompt, settings, None, &mut |_| ControlFlow::Continue(()))?.text)
    }

    /// Generates after `prompt` and reports progress to `on_event`, which may stop it.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        settings: GenerationParams,
        constraint: Option<Box<dyn Constraint>>,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let mut generation =
            Generation::new(self.text.as_ref(), self.engine.info().eos, prompt, settings, constraint);
        let start = Instant::now();
        let (reused, fresh) = self.rewind(prompt)?;
        let mut result = Generated {
            token_ids: Vec::new(),
            text: String::new(),
            finish_reason: FinishReason::Interrupted,
            prefilled_tokens: fresh.len(),
            prefill_time: Duration::ZERO,
            decode_time: Duration::ZERO,
        };
        let mut done = reused;
        let mut token = None;
        for chunk in fresh.chunks(self.engine.info().prefill_chunk as usize) {
            done += chunk.len();
            let is_last = done == prompt.len();
            token = self.feed(&mut generation, chunk, is_last)?;
            if !is_last && on_event(Event::Prefill { done, total: prompt.len() }).is_break() {
                return Ok(result);
            }
        }
        result.prefill_time = start.elapsed();
        let Some(first) = token else { return Ok(result) };
        let start = Instant::now();
        let mut progress = InProgress { generation, result, on_event };
        if matches!(progress.generation.required_output(), Output::Greedy | Output::Sampled(_)) {
            self.decode_on_device(&mut progress, first)?;
        } else {
            let mut next = progress.report(first, self.is_full())?;
            while let Some(id) = next {
                let token = self.feed(&mut progress.generation, &[id], true)?;
                let Some(token) = token else { break };
                next = progress.report(token, self.is_full())?;
            }
        }
        progress.result.decode_time = start.elapsed();
        Ok(progress.result)
    }

    /// Decodes with tokens chosen on the device, several per pass.
    fn decode_on_device(
        &mut self,
        progress: &mut InProgress<'_>,
        first: GeneratedToken,
    ) -> Result<(), Error> {
        let Some(id) = progress.report(first, self.is_full())? else { return Ok(()) };
        let run_ahead = self.run_ahead();
        let Session { engine, tokens, .. } = self;
        let context = engine.context() as usize;
        let mut decoder = engine.decode_multi_step(SLOT, id, run_ahead)?;
        if let Output::Sampled(draw) = progress.generation.required_output() {
            decoder = decoder.with_sampling(draw);
        }
        let mut outcome = Ok(Some(id));
        while let Ok(Some(id)) = outcome {
            tokens.push(id);
            outcome = decoder
                .next(progress.generation.remaining())
                .and_then(|id| progress.generation.accept(id))
                .and_then(|token| progress.report(token, tokens.len() >= context));
        }
        drop(decoder);
        // Removes tokens that the device decoded past the end.
        self.engine.truncate(SLOT, self.tokens.len() as u32);
        outcome.map(|_| ())
    }

    /// How far the device runs ahead.
    fn run_ahead(&mut self) -> RunAhead {
        let devices = self.engine.device().run_ahead();
        match self.tokens_per_pass {
            Some(ids) => RunAhead { tokens_per_pass: ids, ..devices },
            // A recurrent state past the end of the reply would force a new prefill of the whole
            // conversation.
            None if self.engine.info().recurrent_state_bytes > 0 => RunAhead::NONE,
            None => devices,
        }
    }

    /// Whether the context is full.
    fn is_full(&self) -> bool {
        self.tokens.len() >= self.engine.context() as usize
    }

    /// Keeps the common prefix of the slot and `prompt`. Returns its length and the tokens to prefill.
    fn rewind<'a>(&mut self, prompt: &'a [u32]) -> Result<(usize, &'a [u32]), Error> {
        let common = self.tokens.iter().zip(prompt).take_while(|(cached, new)| cached == new).count();
        // The last token is always processed: its output is needed.
        let reused = common.min(prompt.len().saturating_sub(1));
        let reused = self.engine.truncate(SLOT, reused as u32) as usize;
        self.tokens.truncate(reused);
        let fresh = &prompt[reused..];
        self.engine.check(SLOT, fresh)?;
        Ok((reused, fresh))
    }

    /// Feeds tokens, and chooses the next one if `is_wanted`.
    fn feed(
        &mut self,
        generation: &mut Generation,
        ids: &[u32],
        is_wanted: bool,
    ) -> Result<Option<GeneratedToken>, Error> {
        let want = if is_wanted { generation.required_output() } else { Output::Nothing };
        let mut ids = ids;
        if let (true, Some((last, before))) =
            (self.engine.info().recurrent_state_bytes > 0 && is_wanted, ids.split_last())
            && !before.is_empty()
        {
            // Snapshots the recurrent state before the last token, so that the same prompt can be reused.
            self.engine.run_tokens(SLOT, before, Output::Nothing)?;
            self.engine.snapshot_state(SLOT);
            self.tokens.extend(before);
            ids = std::slice::from_ref(last);
        }
        let mut fed = self.engine.run_tokens(SLOT, ids, want)?;
        self.tokens.extend(ids);
        match (want, fed.next_tokens.last(), fed.logits.last_mut()) {
            (Output::Nothing, ..) => Ok(None),
            (Output::Greedy | Output::Sampled(_), Some(&next), _) => generation.accept(next).map(Some),
            (_, _, Some(logits)) => generation.sample(logits).map(Some),
            _ => Err(Error::runtime("the device returned no logits")),
        }
    }
}

/// The generation in progress: its parameters, its result so far, and the listener.
struct InProgress<'a> {
    generation: Generation,
    result: Generated,
    on_event: &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
}

impl InProgress<'_> {
    /// Reports a token, the last one if the context is full. Returns the token to continue with, or `None` at
    /// the end.
    fn report(&mut self, mut token: GeneratedToken, is_context_full: bool) -> Result<Option<u32>, Error> {
        let InProgress { generation, result, on_event } = self;
        result.token_ids.extend(token.id);
        if token.finish_reason.is_none() && is_context_full {
            let rest = generation.finish(FinishReason::Context)?;
            token.text.push_str(&rest.text);
            token.finish_reason = rest.finish_reason;
        }
        result.text.push_str(&token.text);
        let is_broken = on_event(Event::Token(&token)).is_break();
        if let Some(end) = token.finish_reason {
            result.finish_reason = end;
            return Ok(None);
        }
        if is_broken {
            let rest = generation.finish(FinishReason::Interrupted)?;
            result.text.push_str(&rest.text);
            let _ = on_event(Event::Token(&rest));
            return Ok(None);
        }
        Ok(token.id)
    }
}

/// The token ids of a conversation. An error if the model has no tokenizer or no chat template.
pub fn prompt(
    text: Option<&Tokenizer>,
    template: Option<&Template>,
    conversation: &Conversation<'_>,
) -> Result<Vec<u32>, Error> {
    let (Some(text), Some(template)) = (text, template) else { return Err(missing_chat_template()) };
    let ids = text.encode(&template.render(conversation)?, false)?;
    if ids.is_empty() {
        return Err(Error::usage("the chat template renders this conversation to nothing"));
    }
    Ok(ids)
}

/// The error for a model without a tokenizer or a chat template.
pub fn missing_chat_template() -> Error {
    Error::usage(
        "this model has no chat template (chat_template.jinja or tokenizer_config.json): use generate instead of chat",
    )
}
