//! `/v1/chat/completions`: a conversation, and what comes next in it.

use crate::serve::api::completion_body::Kind;
use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
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
    let messages = messages(fields)?;
    let variables = variables(fields)?;
    for (name, allowed, why) in [
        ("modalities", json!(["text"]), "is [\"text\"]: this model writes text"),
        ("verbosity", json!("medium"), "is not something that this model knows"),
    ] {
        fields.only(name, &allowed, why)?;
    }
    let tools = Tools::new(
        fields.take("tools")?.unwrap_or_default(),
        fields.take("tool_choice")?,
        fields.take("parallel_tool_calls")?.unwrap_or(true),
        service.template.as_ref(),
    )?;
    let mut asked = GenerationRequest::take(fields, service, 1, usize::MAX)?;
    asked.prompt_field = "messages";
    if let Some(tools) = &tools {
        asked.offer(tools, service)?;
    }
    let top = fields.count("top_logprobs", 0, 20)?;
    let wants = fields.take::<bool>("logprobs")?.unwrap_or(false);
    if top.is_some() && !wants {
        return Err(ApiError::of("top_logprobs", "`top_logprobs` comes with `logprobs`: true"));
    }
    asked.settings.logprobs = wants.then_some(top.unwrap_or(0));
    std::mem::take(fields).finish()?;
    let described = tools.as_ref().map_or(&[][..], |tools| &tools.described);
    let prompt = service.conversation(&messages, described, &variables)?;
    let answer = service.begin_texts(&asked, vec![prompt], Kind::Chat)?;
    Ok((asked, answer))
}

/// The turns of a conversation, each with text for content.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let mut messages: Vec<Message> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(ApiError::of("messages", "`messages` is empty"));
    }
    for message in &mut messages {
        // As OpenAI's clients send it beside calls of functions.
        if message.content.is_null() {
            message.content = Value::String(String::new());
        }
        if let Value::Array(parts) = &message.content {
            let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
            let Some(texts) = texts else {
                return Err(ApiError::of(
                    "messages",
                    "this model reads text: a part of a message is something else",
                ));
            };
            message.content = Value::String(texts.join("\n"));
        }
        read_arguments(message)?;
        // What OpenAI calls the developer, templates call the system.
        if message.role == "developer" {
            message.role = "system".to_owned();
        }
    }
    Ok(messages)
}

/// What else the template is told.
pub(crate) fn variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables = template_variables(fields)?;
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        variables.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    Ok(variables)
}

/// `chat_template_kwargs`: variables that are not the server's to set.
pub(crate) fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];
    let variables: Map<String, Value> = fields.take(NAME)?.unwrap_or_default();
    match variables.keys().find(|name| RESERVED.contains(&name.as_str()) || name.ends_with("_token")) {
        Some(name) => Err(ApiError::of(
            NAME,
            format!("`{NAME}` cannot set `{name}`, which the server sets; leave it out"),
        )),
        None => Ok(variables),
    }
}
