//! One conversation at a time: text in, text out.
//!
//! A [`Session`] owns a running model, its tokenizer and its chat template, and remembers which ids its slot holds, so
//! that a conversation that goes on is not read again from its start. `generate` and `chat` are made of it, and so is
//! any program that has a compiled model as a library:
//!
//! ```ignore
//! let mut fable = fable::open(&Setup::default())?;
//! let story = fable.answer(&[Message::user("Tell me a story about a fox")], Settings::default())?;
//! ```

use crate::device::{Device, RunAhead};
use crate::engine::{Engine, Output};
use crate::error::Error;
use crate::load::LoadOptions;
use crate::program::CompiledModel;
use crate::session::generation::{Constraint, FinishReason, GeneratedToken, Generation, GenerationParams};
use crate::text::chat_template::{Conversation, Message, Template};
use crate::text::tokenizer::Tokenizer;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A running model and the conversation in its slot.
pub struct Session<D = Box<dyn Device>> {
    engine: Engine<D>,
    text: Option<Tokenizer>,
    template: Option<Template>,
    /// What the slot holds.
    held: Vec<u32>,
    /// Ids of a pass, where the device chooses them; as many as it likes if there is no number.
    ahead: Option<u32>,
}

/// What happens while a text is written.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// So many ids of the prompt have been read.
    Read {
        /// Read so far, those included that the slot held already.
        done: usize,
        /// All of them.
        total: usize,
    },
    /// An id was chosen.
    Piece(&'a GeneratedToken),
}

/// What came of a prompt.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The ids, the one that ended the text included.
    pub ids: Vec<u32>,
    /// Their text, as it was shown.
    pub text: String,
    /// Why there are no more.
    pub end: FinishReason,
    /// How many ids of the prompt had to be read.
    pub read: usize,
    /// How long that took, the first id included.
    pub read_time: Duration,
    /// How long the other ids took.
    pub write_time: Duration,
}

/// The slot that a session uses.
const SLOT: u32 = 0;

impl Session {
    /// Opens the model's files and puts it on a device.
    pub fn open(program: &CompiledModel, setup: &LoadOptions) -> Result<Session, Error> {
        let (text, template) = (setup.text(program), setup.template(program)?);
        let engine = setup.engine(program, None)?;
        text.ready()?;
        Ok(Session::new(engine, Some(text), template))
    }
}

impl<D: Device> Session<D> {
    /// A session on an engine whose slots are empty. Without a tokenizer there are ids only.
    pub fn new(engine: Engine<D>, text: Option<Tokenizer>, template: Option<Template>) -> Session<D> {
        Session { engine, text, template, held: Vec::new(), ahead: None }
    }

    /// The same session, whose device writes so many ids in one pass where it chooses them itself.
    pub fn chaining(mut self, ids: Option<u32>) -> Session<D> {
        self.ahead = ids;
        self
    }

    /// The engine. Who feeds its slot 0 ends the session's conversation.
    pub fn engine(&mut self) -> &mut Engine<D> {
        self.held.clear();
        &mut self.engine
    }

    /// What the device is, for people.
    pub fn describe(&mut self) -> String {
        self.engine.device().describe()
    }

    /// Positions that there is room for.
    pub fn context(&self) -> u32 {
        self.engine.context()
    }

    /// Positions that the conversation fills.
    pub fn length(&self) -> u32 {
        self.engine.length(SLOT)
    }

    /// The tokenizer, if there is one.
    pub fn text(&self) -> Option<&Tokenizer> {
        self.text.as_ref()
    }

    /// The ids of a conversation up to where its answer begins.
    pub fn prompt(&self, conversation: &Conversation<'_>) -> Result<Vec<u32>, Error> {
        prompt(self.text.as_ref(), self.template.as_ref(), conversation)
    }

    /// The model's next turn in a conversation.
    pub fn answer(&mut self, messages: &[Message], settings: GenerationParams) -> Result<String, Error> {
        let prompt = self.prompt(&Conversation::new(messages))?;
        Ok(self.complete(&prompt, settings, None, &mut |_| ControlFlow::Continue(()))?.text)
    }

    /// Writes on after `prompt`, telling `listen` what happens as it happens; it may break off.
    pub fn complete(
        &mut self,
        prompt: &[u32],
        settings: GenerationParams,
        constraint: Option<Box<dyn Constraint>>,
        listen: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, Error> {
        let mut completion =
            Generation::new(self.text.as_ref(), self.engine.info().end, prompt, settings, constraint);
        let start = Instant::now();
        let (reused, fresh) = self.rewind(prompt)?;
        let mut written = Generated {
            ids: Vec::new(),
            text: String::new(),
            end: FinishReason::Interrupted,
            read: fresh.len(),
            read_time: Duration::ZERO,
            write_time: Duration::ZERO,
        };
        let mut done = reused;
        let mut piece = None;
        for chunk in fresh.chunks(self.engine.info().chunk as usize) {
            done += chunk.len();
            let is_last = done == prompt.len();
            piece = self.feed(&mut completion, chunk, is_last)?;
            if !is_last && listen(Event::Read { done, total: prompt.len() }).is_break() {
                return Ok(written);
            }
        }
        written.read_time = start.elapsed();
        let Some(first) = piece else { return Ok(written) };
        let start = Instant::now();
        let mut writing = InProgress { completion, written, listen };
        if matches!(writing.completion.want(), Output::Next | Output::Drawn(_)) {
            self.follow(&mut writing, first)?;
        } else {
            let mut next = writing.tell(first, self.is_full())?;
            while let Some(id) = next {
                let piece = self.feed(&mut writing.completion, &[id], true)?;
                let Some(piece) = piece else { break };
                next = writing.tell(piece, self.is_full())?;
            }
        }
        writing.written.write_time = start.elapsed();
        Ok(writing.written)
    }

    /// Writes what the device chooses by itself, which may be ahead.
    fn follow(&mut self, writing: &mut InProgress<'_>, first: GeneratedToken) -> Result<(), Error> {
        let Some(id) = writing.tell(first, self.is_full())? else { return Ok(()) };
        let lead = self.lead();
        let Session { engine, held, .. } = self;
        let context = engine.context() as usize;
        let mut chain = engine.chain(SLOT, id, lead)?;
        if let Output::Drawn(draw) = writing.completion.want() {
            chain = chain.drawing(draw);
        }
        let mut outcome = Ok(Some(id));
        while let Ok(Some(id)) = outcome {
            held.push(id);
            outcome = chain
                .next(writing.completion.left())
                .and_then(|id| writing.completion.next(id))
                .and_then(|piece| writing.tell(piece, held.len() >= context));
        }
        drop(chain);
        // What was written beyond the end is none of the text.
        self.engine.truncate(SLOT, self.held.len() as u32);
        outcome.map(|_| ())
    }

    /// How far the device is to be ahead.
    fn lead(&mut self) -> RunAhead {
        let devices = self.engine.device().lead();
        match self.ahead {
            Some(ids) => RunAhead { ids, ..devices },
            // What memories have learnt beyond the end of an answer could only be unlearnt by reading all of it again.
            None if self.engine.info().memory_bytes > 0 => RunAhead::NONE,
            None => devices,
        }
    }

    /// Whether there is no room for another id.
    fn is_full(&self) -> bool {
        self.held.len() >= self.engine.context() as usize
    }

    /// Leaves in the slot what `prompt` begins with; gives how much that is, and the ids that are to be read.
    fn rewind<'a>(&mut self, prompt: &'a [u32]) -> Result<(usize, &'a [u32]), Error> {
        let common = self.held.iter().zip(prompt).take_while(|(held, new)| held == new).count();
        // The last id is always read: what follows it is what is wanted.
        let reused = common.min(prompt.len().saturating_sub(1));
        let reused = self.engine.truncate(SLOT, reused as u32) as usize;
        self.held.truncate(reused);
        let fresh = &prompt[reused..];
        self.engine.check(SLOT, fresh)?;
        Ok((reused, fresh))
    }

    /// Feeds ids, and has the next one chosen if it is wanted.
    fn feed(
        &mut self,
        completion: &mut Generation,
        ids: &[u32],
        is_wanted: bool,
    ) -> Result<Option<GeneratedToken>, Error> {
        let want = if is_wanted { completion.want() } else { Output::Nothing };
        let mut ids = ids;
        if let (true, Some((last, before))) =
            (self.engine.info().memory_bytes > 0 && is_wanted, ids.split_last())
            && !before.is_empty()
        {
            // A prompt that begins as this one does will want its memories before the last id, which is always read.
            self.engine.feed(SLOT, before, Output::Nothing)?;
            self.engine.remember(SLOT);
            self.held.extend(before);
            ids = std::slice::from_ref(last);
        }
        let mut fed = self.engine.feed(SLOT, ids, want)?;
        self.held.extend(ids);
        match (want, fed.next.last(), fed.logits.last_mut()) {
            (Output::Nothing, ..) => Ok(None),
            (Output::Next | Output::Drawn(_), Some(&next), _) => completion.next(next).map(Some),
            (_, _, Some(logits)) => completion.choose(logits).map(Some),
            _ => Err(Error::runtime("the device gave no logits")),
        }
    }
}

/// A text on its way: what chooses it, what has come of it, and who hears of it.
struct InProgress<'a> {
    completion: Generation,
    written: Generated,
    listen: &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
}

impl InProgress<'_> {
    /// Tells of a piece, the last one if there `is_no_room` for more. Gives the id that the text goes on with, if it does.
    fn tell(&mut self, mut piece: GeneratedToken, is_no_room: bool) -> Result<Option<u32>, Error> {
        let InProgress { completion, written, listen } = self;
        written.ids.extend(piece.id);
        if piece.end.is_none() && is_no_room {
            let rest = completion.finish(FinishReason::Context)?;
            piece.text.push_str(&rest.text);
            piece.end = rest.end;
        }
        written.text.push_str(&piece.text);
        let is_broken = listen(Event::Piece(&piece)).is_break();
        if let Some(end) = piece.end {
            written.end = end;
            return Ok(None);
        }
        if is_broken {
            let rest = completion.finish(FinishReason::Interrupted)?;
            written.text.push_str(&rest.text);
            let _ = listen(Event::Piece(&rest));
            return Ok(None);
        }
        Ok(piece.id)
    }
}

/// The ids of a conversation, for a model that has what that takes.
pub fn prompt(
    text: Option<&Tokenizer>,
    template: Option<&Template>,
    conversation: &Conversation<'_>,
) -> Result<Vec<u32>, Error> {
    let (Some(text), Some(template)) = (text, template) else { return Err(no_conversations()) };
    let ids = text.encode(&template.render(conversation)?, false)?;
    if ids.is_empty() {
        return Err(Error::usage("the chat template makes nothing of this conversation"));
    }
    Ok(ids)
}

/// Why a model that lacks a tokenizer or a chat template is no partner in conversation.
pub fn no_conversations() -> Error {
    Error::usage(
        "this model has no chat template (in chat_template.jinja or tokenizer_config.json), so it holds no conversations; \
         generate continues texts",
    )
}
