//! `/v1/responses`: OpenAI's Responses API.
//!
//! The input becomes a conversation, as in a chat completion. The output is a list of items: a message, and
//! tool calls. The server keeps no state between requests, so `previous_response_id` is not supported.

use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
use crate::serve::api::responses_body::ResponsesBody;
use crate::serve::api::state::ServerState;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::tools::choice::{Tools, read_arguments};
use crate::text::chat_template::Message;
use serde_json::{Map, Value, json};

/// Parses a request and starts its generation.
pub(crate) fn begin(
    service: &ServerState,
    fields: &mut Fields,
) -> Result<(GenerationRequest, PendingResponse), ApiError> {
    fields.only(
        "previous_response_id",
        &Value::Null,
        "is not supported: responses are not stored; send the whole conversation",
    )?;
    fields.only("conversation", &Value::Null, "is not supported: conversations are not stored")?;
    fields.only("background", &json!(false), "must be false: background responses are not supported")?;
    fields.only("truncation", &json!("disabled"), "must be \"disabled\": prompts are not truncated")?;
    fields.only("include", &json!([]), "must be empty: nothing can be included")?;
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
    let mut request = GenerationRequest::take(fields, service, 1, usize::MAX)?;
    request.prompt_field = "input";
    if request.choices != 1 {
        return Err(ApiError::of("n", "`n` must be 1"));
    }
    if let Some(tools) = &tools {
        request.offer(tools, service)?;
    }
    std::mem::take(fields).finish()?;
    let described = tools.as_ref().map_or(&[][..], |tools| &tools.descriptions);
    let prompt = service.conversation(&messages, described, &variables)?;
    settings.insert("temperature".to_owned(), json!(request.params.sampling.temperature));
    settings.insert("top_p".to_owned(), json!(request.params.sampling.top_p));
    let shape = ResponsesBody::new(service.info.name, settings, request.calls.clone());
    let answer = service.begin(&request, vec![prompt], Box::new(shape))?;
    Ok((request, answer))
}

/// The settings that a response repeats: those of the request, or their defaults.
fn settings(fields: &Fields) -> Map<String, Value> {
    let defaults = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": null, "text": { "format": { "type": "text" } },
        "tool_choice": "auto", "tools": [], "truncation": "disabled", "user": null,
    });
    let Value::Object(mut settings) = defaults else { return Map::new() };
    for (name, value) in &mut settings {
        if let Some(given) = fields.get(name) {
            *value = given.clone();
        }
    }
    settings
}

/// Converts input items to messages.
fn conversation(input: Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let unsupported = |what: &Value| ApiError::of("input", format!("unsupported input item: {what}"));
    let items = match input {
        Value::String(text) => {
            messages.push(Message::user(text));
            return Ok(());
        }
        Value::Array(items) if items.is_empty() => return Err(ApiError::of("input", "`input` is empty")),
        Value::Array(items) => items,
        other => return Err(unsupported(&other)),
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
                // OpenAI's role `developer` is `system` in chat templates.
                let role = if role == "developer" { "system" } else { role };
                messages.push(Message::new(role, text(&item["content"]).ok_or_else(|| unsupported(&item))?));
            }
            ("function_call", _) => {
                let function = json!({ "name": item["name"], "arguments": item["arguments"] });
                let call = json!({ "id": item["call_id"], "type": "function", "function": function });
                // Consecutive calls belong to one message.
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
                let mut message =
                    Message::new("tool", text(&item["output"]).ok_or_else(|| unsupported(&item))?);
                message.rest.insert("tool_call_id".to_owned(), item["call_id"].clone());
                messages.push(message);
            }
            // Reasoning items are ignored.
            ("reasoning", _) => {}
            _ => return Err(unsupported(&item)),
        }
    }
    messages.iter_mut().try_for_each(read_arguments)
}

/// Converts a tool to the format of chat completions, where `function` is an object.
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
