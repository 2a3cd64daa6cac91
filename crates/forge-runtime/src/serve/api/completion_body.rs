//! Response bodies of /v1/chat/completions and /v1/completions.

use crate::serve::api::logprobs::{Offsets, Token, Tokens};
use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::{ResponseBody, SseEvent, Usage};
use crate::serve::tools::token_bytes::TokenBytes;
use crate::serve::tools::tool_call_parser::{Segment, ToolCallParser};
use crate::session::generation::{FinishReason, GeneratedToken};
use crate::text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    Chat,
    Plain,
}

/// A completion in progress.
pub(crate) struct CompletionBody {
    kind: CompletionKind,
    id: String,
    created: u64,
    model: &'static str,
    /// Whether the last event of a stream has usage; earlier events then have null.
    include_usage: bool,
    tokenizer: Tokenizer,
    bytes: Arc<TokenBytes>,
    choices: Vec<Choice>,
}

/// One choice of a completion.
#[derive(Clone, Default)]
struct Choice {
    text: String,
    /// Separates tool calls from text, if tools are offered.
    parser: Option<ToolCallParser>,
    calls: Vec<Call>,
    /// Log probabilities so far, if requested.
    logprobs: Option<Tokens>,
    /// Token offsets, for /v1/completions.
    offsets: Option<Offsets>,
    finish_reason: Option<&'static str>,
}

/// A tool call.
#[derive(Clone, Debug)]
struct Call {
    id: String,
    name: String,
    /// JSON, as generated.
    arguments: String,
}

impl Call {
    /// A call without arguments yet.
    fn new(name: String) -> Call {
        Call { id: call_id(), name, arguments: String::new() }
    }

    fn json(&self) -> Value {
        let function = json!({ "name": self.name, "arguments": self.arguments });
        json!({ "id": self.id, "type": "function", "function": function })
    }
}

impl CompletionBody {
    /// A body with this number of choices.
    pub(crate) fn new(
        kind: CompletionKind,
        model: &'static str,
        tokenizer: Tokenizer,
        bytes: Arc<TokenBytes>,
        choices: usize,
        request: &GenerationRequest,
    ) -> CompletionBody {
        let choice = Choice {
            parser: request.calls.clone(),
            logprobs: request.params.logprobs.map(|_| Tokens::default()),
            offsets: request
                .params
                .logprobs
                .filter(|_| kind == CompletionKind::Plain)
                .map(|_| Offsets::new(&tokenizer)),
            ..Choice::default()
        };
        let prefix = if kind == CompletionKind::Chat { "chatcmpl-" } else { "cmpl-" };
        CompletionBody {
            kind,
            id: random_id(prefix),
            created: now(),
            model,
            include_usage: request.include_usage,
            tokenizer,
            bytes,
            choices: vec![choice; choices],
        }
    }

    fn event(&self, choices: Value, usage: Option<&Usage>) -> SseEvent {
        let object = match self.kind {
            CompletionKind::Chat => "chat.completion.chunk",
            CompletionKind::Plain => "text_completion",
        };
        let mut event = self.object(object, choices);
        if self.include_usage {
            event.insert("usage".to_owned(), usage.map_or(Value::Null, Usage::json));
        }
        SseEvent::new(Value::Object(event))
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

    fn choice(&self, index: usize, content: Value, logprobs: Option<&Tokens>, end: Option<&str>) -> Value {
        let logprobs = logprobs.map_or(Value::Null, |tokens| match self.kind {
            CompletionKind::Chat => tokens.of_chat(&self.tokenizer, &self.bytes),
            CompletionKind::Plain => tokens.of_plain(&self.tokenizer, &self.bytes),
        });
        let mut choice = Map::new();
        choice.insert("index".to_owned(), json!(index));
        let (name, value) = match (self.kind, content) {
            (CompletionKind::Plain, text) => ("text", text),
            (CompletionKind::Chat, Value::Object(delta)) => ("delta", Value::Object(delta)),
            (CompletionKind::Chat, content) => {
                let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
                let calls = &self.choices[index].calls;
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(Call::json).collect();
                    if content == "" {
                        message["content"] = Value::Null;
                    }
                }
                ("message", message)
            }
        };
        choice.insert(name.to_owned(), value);
        choice.insert("logprobs".to_owned(), logprobs);
        choice.insert("finish_reason".to_owned(), json!(end));
        Value::Object(choice)
    }

    /// A delta of a choice as JSON.
    fn delta(&self, delta: Delta) -> Value {
        match (self.kind, delta) {
            (CompletionKind::Plain, Delta::Words(words)) => json!(words),
            (CompletionKind::Chat, Delta::Words(words)) if words.is_empty() => json!({}),
            (CompletionKind::Chat, Delta::Words(words)) => json!({ "content": words }),
            (_, Delta::Call(number, mut call)) => {
                call["index"] = number.into();
                json!({ "tool_calls": [call] })
            }
        }
    }
}

/// A change of a choice.
enum Delta {
    Words(String),
    /// A change of a tool call: its index and the new fields.
    Call(usize, Value),
}

impl Choice {
    /// Adds a token and returns the deltas.
    fn push(&mut self, piece: &GeneratedToken) -> Vec<Delta> {
        let Some(reader) = &mut self.parser else {
            self.text.push_str(&piece.text);
            return if piece.text.is_empty() { Vec::new() } else { vec![Delta::Words(piece.text.clone())] };
        };
        let mut parts = reader.push(piece.id, &piece.text);
        if piece.finish_reason.is_some() {
            parts.extend(reader.finish());
        }
        let mut deltas = Vec::new();
        for part in parts {
            match part {
                Segment::Words(words) => {
                    self.text.push_str(&words);
                    deltas.push(Delta::Words(words));
                }
                Segment::Call { name } => {
                    let call = Call::new(name);
                    deltas.push(Delta::Call(self.calls.len(), call.json()));
                    self.calls.push(call);
                }
                Segment::Arguments(more) => {
                    let number = self.calls.len().saturating_sub(1);
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&more);
                    }
                    deltas.push(Delta::Call(number, json!({ "function": { "arguments": more } })));
                }
            }
        }
        deltas
    }

    /// The finish reason in OpenAI's terms.
    fn reason(&self, end: FinishReason) -> &'static str {
        match end {
            FinishReason::EndOfText | FinishReason::StopString | FinishReason::Complete
                if !self.calls.is_empty() =>
            {
                "tool_calls"
            }
            FinishReason::EndOfText | FinishReason::StopString | FinishReason::Complete => "stop",
            FinishReason::Length | FinishReason::Context | FinishReason::Interrupted => "length",
        }
    }
}

impl ResponseBody for CompletionBody {
    fn begin(&mut self) -> Vec<SseEvent> {
        if self.kind == CompletionKind::Plain {
            return Vec::new();
        }
        let role = json!({ "role": "assistant", "content": "" });
        let choices = 0..self.choices.len();
        choices.map(|index| self.event(json!([self.choice(index, role.clone(), None, None)]), None)).collect()
    }

    fn push(&mut self, index: usize, piece: &GeneratedToken) -> Vec<SseEvent> {
        let choice = &mut self.choices[index];
        let logprobs = match (piece.id, &choice.logprobs) {
            // An end-of-text token is not part of the text.
            (Some(id), Some(_)) if piece.finish_reason != Some(FinishReason::EndOfText) => {
                let offset = choice.offsets.as_mut().map_or(0, |offsets| offsets.push(id));
                Some(Tokens(vec![Token { id, logprobs: piece.logprobs.clone(), offset }]))
            }
            _ => None,
        };
        if let (Some(tokens), Some(new)) = (&mut choice.logprobs, &logprobs) {
            tokens.0.extend(new.0.iter().cloned());
        }
        let mut deltas = choice.push(piece);
        choice.finish_reason = piece.finish_reason.map(|end| choice.reason(end));
        if deltas.is_empty() && logprobs.is_some() {
            deltas.push(Delta::Words(String::new()));
        }
        let end = choice.finish_reason;
        let mut events: Vec<SseEvent> = deltas
            .into_iter()
            .enumerate()
            .map(|(number, delta)| {
                let logprobs = logprobs.as_ref().filter(|_| number == 0);
                self.event(json!([self.choice(index, self.delta(delta), logprobs, None)]), None)
            })
            .collect();
        if end.is_some() {
            let nothing = self.delta(Delta::Words(String::new()));
            events.push(self.event(json!([self.choice(index, nothing, None, end)]), None));
        }
        events
    }

    fn end(&mut self, usage: &Usage) -> Vec<SseEvent> {
        if self.include_usage { vec![self.event(json!([]), Some(usage))] } else { Vec::new() }
    }

    fn complete_body(&mut self, usage: &Usage) -> Value {
        let choices: Vec<Value> = self
            .choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                self.choice(index, json!(choice.text), choice.logprobs.as_ref(), choice.finish_reason)
            })
            .collect();
        let object = if self.kind == CompletionKind::Chat { "chat.completion" } else { "text_completion" };
        let mut whole = self.object(object, json!(choices));
        whole.insert("usage".to_owned(), usage.json());
        Value::Object(whole)
    }
}

/// A random id with a prefix.
pub(crate) fn random_id(prefix: &str) -> String {
    format!("{prefix}{:016x}", RandomState::new().hash_one(0))
}

/// A tool call id: nine letters and digits, as the strictest chat templates require.
pub(crate) fn call_id() -> String {
    let mut id = format!("{:016x}", RandomState::new().hash_one(0));
    id.truncate(9);
    id
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
