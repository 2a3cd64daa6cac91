//! Response body of /v1/responses: a list of items, and events for each as it grows.

use crate::serve::api::completion_body::{call_id, now, random_id};
use crate::serve::api::response::{ResponseBody, SseEvent, Usage};
use crate::serve::tools::tool_call_parser::{Segment, ToolCallParser};
use crate::session::generation::{FinishReason, GeneratedToken};
use serde_json::{Map, Value, json};

/// A response in progress.
pub(crate) struct ResponsesBody {
    id: String,
    created: u64,
    model: &'static str,
    /// Settings that the response repeats.
    settings: Map<String, Value>,
    reader: Option<ToolCallParser>,
    items: Vec<Item>,
    end: Option<FinishReason>,
    events: u64,
}

/// An output item.
struct Item {
    id: String,
    kind: Kind,
    /// Text, or arguments of a call.
    text: String,
    is_done: bool,
    /// Whether it was cut off.
    is_cut: bool,
}

enum Kind {
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn content(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    fn json(&self) -> Value {
        let status = match (self.is_done, self.is_cut) {
            (_, true) => "incomplete",
            (true, false) => "completed",
            (false, false) => "in_progress",
        };
        match &self.kind {
            Kind::Message => {
                let content =
                    if self.text.is_empty() && !self.is_done { json!([]) } else { json!([self.content()]) };
                json!({ "id": self.id, "type": "message", "status": status, "role": "assistant", "content": content })
            }
            Kind::Call { id, name } => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": id, "name": name,
                "arguments": self.text,
            }),
        }
    }
}

impl ResponsesBody {
    /// An empty response.
    pub(crate) fn new(
        model: &'static str,
        settings: Map<String, Value>,
        reader: Option<ToolCallParser>,
    ) -> ResponsesBody {
        ResponsesBody {
            settings,
            id: random_id("resp_"),
            created: now(),
            model,
            reader,
            items: Vec::new(),
            end: None,
            events: 0,
        }
    }

    fn json(&self, usage: Option<&Usage>) -> Value {
        let status = match self.end {
            None => "in_progress",
            Some(FinishReason::Length | FinishReason::Context | FinishReason::Interrupted) => "incomplete",
            Some(_) => "completed",
        };
        let details = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let usage = usage.map(|usage| {
            json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": { "cached_tokens": usage.cached_tokens },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            })
        });
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": details, "model": self.model, "store": false,
            "output": self.items.iter().map(Item::json).collect::<Vec<_>>(), "usage": usage,
        });
        for (name, value) in &self.settings {
            response[name] = value.clone();
        }
        response
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> SseEvent {
        data["type"] = name.into();
        data["sequence_number"] = self.events.into();
        self.events += 1;
        SseEvent { name: Some(name), data }
    }

    /// Index and id of the last item.
    fn place(&self) -> (usize, Value) {
        let index = self.items.len().saturating_sub(1);
        (index, self.items.last().map_or(Value::Null, |item| json!(item.id)))
    }

    fn open(&mut self, kind: Kind, events: &mut Vec<SseEvent>) {
        self.close(events);
        let is_message = matches!(kind, Kind::Message);
        let prefix = if is_message { "msg_" } else { "fc_" };
        self.items.push(Item {
            id: random_id(prefix),
            kind,
            text: String::new(),
            is_done: false,
            is_cut: false,
        });
        let (index, id) = self.place();
        let item = self.items[index].json();
        events.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        if is_message {
            let part = self.items[index].content();
            let data = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            events.push(self.event("response.content_part.added", data));
        }
    }

    fn more(&mut self, more: &str, events: &mut Vec<SseEvent>) {
        let (index, id) = self.place();
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(more);
        let data = json!({ "item_id": id, "output_index": index, "delta": more });
        match item.kind {
            Kind::Message => {
                let mut data = data;
                (data["content_index"], data["logprobs"]) = (json!(0), json!([]));
                events.push(self.event("response.output_text.delta", data));
            }
            Kind::Call { .. } => events.push(self.event("response.function_call_arguments.delta", data)),
        }
    }

    fn close(&mut self, events: &mut Vec<SseEvent>) {
        let (index, id) = self.place();
        let Some(item) = self.items.last_mut().filter(|item| !item.is_done) else { return };
        item.is_done = true;
        let (text, part, whole) = (item.text.clone(), item.content(), item.json());
        let at = json!({ "item_id": id, "output_index": index });
        let with = |more: Value| {
            let mut data = at.clone();
            for (name, value) in more.as_object().into_iter().flatten() {
                data[name] = value.clone();
            }
            data
        };
        match &item.kind {
            Kind::Message => {
                let data = with(json!({ "content_index": 0, "text": text, "logprobs": [] }));
                events.push(self.event("response.output_text.done", data));
                let data = with(json!({ "content_index": 0, "part": part }));
                events.push(self.event("response.content_part.done", data));
            }
            Kind::Call { name, .. } => {
                let data = with(json!({ "name": name, "arguments": text }));
                events.push(self.event("response.function_call_arguments.done", data));
            }
        }
        events.push(self.event("response.output_item.done", json!({ "output_index": index, "item": whole })));
    }
}

impl ResponseBody for ResponsesBody {
    fn begin(&mut self) -> Vec<SseEvent> {
        let response = json!({ "response": self.json(None) });
        vec![self.event("response.created", response.clone()), self.event("response.in_progress", response)]
    }

    fn push(&mut self, _: usize, piece: &GeneratedToken) -> Vec<SseEvent> {
        let mut parts = match &mut self.reader {
            Some(reader) => reader.push(piece.id, &piece.text),
            None if piece.text.is_empty() => Vec::new(),
            None => vec![Segment::Words(piece.text.clone())],
        };
        if let (Some(reader), true) = (&mut self.reader, piece.finish_reason.is_some()) {
            parts.extend(reader.finish());
        }
        let mut events = Vec::new();
        for part in parts {
            match part {
                Segment::Words(words) => {
                    let is_open = self.items.last().is_some_and(|item| matches!(item.kind, Kind::Message));
                    if !is_open {
                        self.open(Kind::Message, &mut events);
                    }
                    self.more(&words, &mut events);
                }
                Segment::Call { name } => {
                    self.open(Kind::Call { id: call_id(), name }, &mut events);
                }
                Segment::Arguments(more) => self.more(&more, &mut events),
            }
        }
        if piece.finish_reason.is_some() {
            self.end = piece.finish_reason;
            if self.items.is_empty() {
                self.open(Kind::Message, &mut events);
            }
            if let Some(item) = self.items.last_mut() {
                item.is_cut = matches!(
                    piece.finish_reason,
                    Some(FinishReason::Length | FinishReason::Context | FinishReason::Interrupted)
                );
            }
            self.close(&mut events);
        }
        events
    }

    fn end(&mut self, usage: &Usage) -> Vec<SseEvent> {
        let response = self.json(Some(usage));
        let name = match response["status"] == "incomplete" {
            true => "response.incomplete",
            false => "response.completed",
        };
        vec![self.event(name, json!({ "response": response }))]
    }

    fn complete_body(&mut self, usage: &Usage) -> Value {
        self.json(Some(usage))
    }

    fn terminator(&self) -> &'static str {
        ""
    }
}
