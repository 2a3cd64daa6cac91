//! What OpenAI's clients expect of a chat completion and of a plain one.

use super::super::completion::{End, Logprobs, Piece};
use super::super::text::Text;
use super::answer::{Event, Shape, Usage};
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Plain,
}

/// A completion of either kind: its texts so far.
pub(super) struct CompletionShape {
    kind: Kind,
    id: String,
    created: u64,
    model: &'static str,
    /// Whether the stream's events speak of usage: of none, until the last.
    include_usage: bool,
    text: Text,
    choices: Vec<Choice>,
}

/// One of its texts.
#[derive(Clone, Debug, Default)]
struct Choice {
    text: String,
    /// Lists that grow with every id, if probabilities were asked for.
    logprobs: Option<Tokens>,
    end: Option<&'static str>,
}

/// What is told of ids.
#[derive(Clone, Debug, Default)]
struct Tokens(Vec<(u32, Logprobs)>);

impl CompletionShape {
    /// `choices` texts.
    pub(super) fn new(
        kind: Kind,
        model: &'static str,
        text: Text,
        choices: usize,
        logprobs: bool,
        include_usage: bool,
    ) -> CompletionShape {
        let choice = Choice { logprobs: logprobs.then(Tokens::default), ..Choice::default() };
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        CompletionShape {
            kind,
            id: format!("{prefix}-{:016x}", RandomState::new().hash_one(0)),
            created: now(),
            model,
            include_usage,
            text,
            choices: vec![choice; choices],
        }
    }

    fn event(&self, choices: Value, usage: Option<&Usage>) -> Event {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Plain => "text_completion",
        };
        let mut event = self.object(object, choices);
        if self.include_usage {
            event.insert("usage".to_owned(), usage.map_or(Value::Null, Usage::json));
        }
        Event::new(Value::Object(event))
    }

    fn object(&self, object: &str, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(self.id));
        map.insert("object".to_owned(), json!(object));
        map.insert("created".to_owned(), json!(self.created));
        map.insert("model".to_owned(), json!(self.model));
        map.insert("choices".to_owned(), choices);
        map
    }

    fn choice(&self, index: usize, said: Value, logprobs: Option<&Tokens>, end: Option<&str>) -> Value {
        let logprobs = logprobs.map_or(Value::Null, |tokens| match self.kind {
            Kind::Chat => tokens.of_chat(&self.text),
            Kind::Plain => tokens.of_plain(&self.text),
        });
        let mut choice = Map::new();
        choice.insert("index".to_owned(), json!(index));
        let (name, said) = match (self.kind, said) {
            (Kind::Plain, said) => ("text", said),
            (Kind::Chat, Value::Object(delta)) => ("delta", Value::Object(delta)),
            (Kind::Chat, content) => {
                ("message", json!({ "role": "assistant", "content": content, "refusal": null }))
            }
        };
        choice.insert(name.to_owned(), said);
        choice.insert("logprobs".to_owned(), logprobs);
        choice.insert("finish_reason".to_owned(), json!(end));
        Value::Object(choice)
    }

    /// A change of a text, as a stream tells it.
    fn delta(&self, content: &str) -> Value {
        match self.kind {
            Kind::Plain => json!(content),
            Kind::Chat if content.is_empty() => json!({}),
            Kind::Chat => json!({ "content": content }),
        }
    }
}

impl Shape for CompletionShape {
    fn begin(&mut self) -> Vec<Event> {
        if self.kind == Kind::Plain {
            return Vec::new();
        }
        let role = json!({ "role": "assistant", "content": "" });
        let choices = 0..self.choices.len();
        choices.map(|index| self.event(json!([self.choice(index, role.clone(), None, None)]), None)).collect()
    }

    fn piece(&mut self, index: usize, piece: &Piece) -> Vec<Event> {
        let end = piece.end.map(reason);
        let choice = &mut self.choices[index];
        choice.text.push_str(&piece.text);
        choice.end = end;
        let told = match (piece.id, &piece.logprobs) {
            // The id that ends a text is none of the text's.
            (Some(id), Some(logprobs)) if piece.end != Some(End::EndOfText) => {
                Tokens(vec![(id, logprobs.clone())])
            }
            _ => Tokens::default(),
        };
        if let Some(tokens) = &mut choice.logprobs {
            tokens.0.extend(told.0.iter().cloned());
        }
        let told = (!told.0.is_empty()).then_some(&told);
        let mut events = Vec::new();
        if !piece.text.is_empty() || told.is_some() {
            events.push(self.event(json!([self.choice(index, self.delta(&piece.text), told, None)]), None));
        }
        if end.is_some() {
            events.push(self.event(json!([self.choice(index, self.delta(""), None, end)]), None));
        }
        events
    }

    fn end(&mut self, usage: &Usage) -> Vec<Event> {
        if self.include_usage { vec![self.event(json!([]), Some(usage))] } else { Vec::new() }
    }

    fn whole(&mut self, usage: &Usage) -> Value {
        let choices: Vec<Value> = self
            .choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                self.choice(index, json!(choice.text), choice.logprobs.as_ref(), choice.end)
            })
            .collect();
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        let mut whole = self.object(object, json!(choices));
        whole.insert("usage".to_owned(), usage.json());
        Value::Object(whole)
    }
}

/// Why a text ended, in OpenAI's words.
fn reason(end: End) -> &'static str {
    match end {
        End::EndOfText | End::StopString | End::Complete => "stop",
        End::Count | End::Context | End::Interrupted => "length",
    }
}

impl Tokens {
    fn of_chat(&self, text: &Text) -> Value {
        let entry = |id: u32, logprob: f32| {
            let token = text.decode(&[id]).unwrap_or_default();
            json!({ "token": token, "logprob": finite(logprob), "bytes": token.as_bytes() })
        };
        let content = self.0.iter().map(|(id, logprobs)| {
            let mut of_id = entry(*id, logprobs.chosen);
            of_id["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
            of_id
        });
        json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
    }

    fn of_plain(&self, text: &Text) -> Value {
        let token = |id: u32| text.decode(&[id]).unwrap_or_default();
        let top = |logprobs: &Logprobs| -> Map<String, Value> {
            logprobs.top.iter().map(|&(id, logprob)| (token(id), json!(finite(logprob)))).collect()
        };
        let mut end = 0;
        let offsets: Vec<usize> = self
            .0
            .iter()
            .map(|(id, _)| {
                let start = end;
                end += token(*id).chars().count();
                start
            })
            .collect();
        json!({
            "tokens": self.0.iter().map(|(id, _)| token(*id)).collect::<Vec<_>>(),
            "token_logprobs": self.0.iter().map(|(_, logprobs)| finite(logprobs.chosen)).collect::<Vec<_>>(),
            "top_logprobs": self.0.iter().map(|(_, logprobs)| top(logprobs)).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

/// JSON has no infinity; OpenAI writes this for what cannot be.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
