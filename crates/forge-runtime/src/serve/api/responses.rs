//! `/v1/responses`: the same answers in the newer of OpenAI's two shapes.
//!
//! What it is asked is turned into a conversation, as for a chat completion, and what comes back is a list of items: a
//! message, and calls of functions. Nothing is kept here between requests, so an earlier response cannot be named.

use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
use crate::serve::api::responses_body::ResponsesBody;
use crate::serve::api::state::ServerState;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::tools::choice::{Tools, read_arguments};
use crate::text::chat_template::Message;
use serde_json::{Map, Value, json};

/// Reads what is asked, and begins the answer.
pub(crate) fn begin(
    service: &ServerState,
    fields: &mut Fields,
) -> Result<(GenerationRequest, PendingResponse), ApiError> {
    fields.only(
        "previous_response_id",
        &Value::Null,
        "names nothing: responses are not kept here, so send them again",
    )?;
    fields.only("conversation", &Value::Null, "names nothing: conversations are not kept here")?;
    fields.only("background", &json!(false), "is false: an answer goes to whoever asks for it")?;
    fields.only("truncation", &json!("disabled"), "is disabled: a prompt is read whole or refused")?;
    fields.only("include", &json!([]), "is empty: there is nothing more to include")?;
    let mut settings = settings(fields);
    let mut messages = Vec::new();
    if let Some(instructions) = fields.take::<String>("instructions")? {
        messages.push(Message::system(instructions));
    }
    conversation(fields.need("input")?, &mut messages)?;
    let mut variables = crate::serve::api::chat::template_variables(fields)?;
    let reasoning: Map<String, Value> = fields.take("reasoning")?.unwrap_or_default();
    if let Some(effort) = reasoning.get("effort").cloned() {
        variables.insert("reasoning_effort".to_owned(), effort);
    }
    let described: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let tools = Tools::new(
        described.into_iter().map(nested).collect(),
        fields.take("tool_choice")?,
        fields.take("parallel_tool_calls")?.unwrap_or(true),
        service.template.as_ref(),
    )?;
    let text: Map<String, Value> = fields.take("text")?.unwrap_or_default();
    if let Some(format) = text.get("format").cloned() {
        fields.set("response_format", format);
    }
    if let Some(count) = fields.count("max_output_tokens", 1, u64::MAX)? {
        fields.set("max_completion_tokens", count.into());
    }
    let mut asked = GenerationRequest::take(fields, service, 1, usize::MAX)?;
    asked.prompt_field = "input";
    if asked.texts != 1 {
        return Err(ApiError::of("n", "a response is one text"));
    }
    if let Some(tools) = &tools {
        asked.offer(tools, service)?;
    }
    std::mem::take(fields).finish()?;
    let described = tools.as_ref().map_or(&[][..], |tools| &tools.described);
    let prompt = service.conversation(&messages, described, &variables)?;
    settings.insert("temperature".to_owned(), json!(asked.settings.sampling.temperature));
    settings.insert("top_p".to_owned(), json!(asked.settings.sampling.top_p));
    let shape = ResponsesBody::new(service.info.name, settings, asked.calls.clone());
    let answer = service.begin(&asked, vec![prompt], Box::new(shape))?;
    Ok((asked, answer))
}

/// What a response repeats of its request, and what holds where the request says nothing.
fn settings(fields: &Fields) -> Map<String, Value> {
    let ordinary = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": null, "text": { "format": { "type": "text" } },
        "tool_choice": "auto", "tools": [], "truncation": "disabled", "user": null,
    });
    let Value::Object(mut settings) = ordinary else { return Map::new() };
    for (name, value) in &mut settings {
        if let Some(said) = fields.get(name) {
            *value = said.clone();
        }
    }
    settings
}

/// Items as messages.
fn conversation(input: Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let refused = |what: &Value| {
        ApiError::of("input", format!("this is not something that the model can read: {what}"))
    };
    let items = match input {
        Value::String(text) => {
            messages.push(Message::user(text));
            return Ok(());
        }
        Value::Array(items) if items.is_empty() => return Err(ApiError::of("input", "`input` is empty")),
        Value::Array(items) => items,
        other => return Err(refused(&other)),
    };
    for item in items {
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Null => Some(String::new()),
            Value::Array(parts) => {
                let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
                texts.map(|texts| texts.join("\n"))
            }
            _ => None,
        };
        match (item["type"].as_str().unwrap_or("message"), item["role"].as_str()) {
            ("message", Some(role)) => {
                // What OpenAI calls the developer, templates call the system.
                let role = if role == "developer" { "system" } else { role };
                messages.push(Message::new(role, text(&item["content"]).ok_or_else(|| refused(&item))?));
            }
            ("function_call", _) => {
                let function = json!({ "name": item["name"], "arguments": item["arguments"] });
                let call = json!({ "id": item["call_id"], "type": "function", "function": function });
                // Calls that come one after another are of one message.
                match messages.last_mut().and_then(|message| message.rest.get_mut("tool_calls")) {
                    Some(Value::Array(calls)) => calls.push(call),
                    _ => {
                        let mut message = Message::assistant("");
                        message.rest.insert("tool_calls".to_owned(), json!([call]));
                        messages.push(message);
                    }
                }
            }
            ("function_call_output", _) => {
                let mut message = Message::new("tool", text(&item["output"]).ok_or_else(|| refused(&item))?);
                message.rest.insert("tool_call_id".to_owned(), item["call_id"].clone());
                messages.push(message);
            }
            // What a model thought is not read again.
            ("reasoning", _) => {}
            _ => return Err(refused(&item)),
        }
    }
    messages.iter_mut().try_for_each(read_arguments)
}

/// A tool as chat completions have it: what describes it in an object of its own.
fn nested(tool: Value) -> Value {
    match tool {
        Value::Object(mut function) if function.get("function").is_none() => {
            match function.shift_remove("type") {
                Some(kind) => json!({ "type": kind, "function": function }),
                None => Value::Object(function),
            }
        }
        other => other,
    }
}
