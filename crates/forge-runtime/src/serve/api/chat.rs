//! `/v1/chat/completions`: generates the reply to a conversation.

use crate::serve::api::completion_body::CompletionKind;
use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
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
    let messages = messages(fields)?;
    let variables = variables(fields)?;
    for (name, allowed, why) in [
        ("modalities", json!(["text"]), "must be [\"text\"]: this model generates text only"),
        ("verbosity", json!("medium"), "is not supported"),
    ] {
        fields.only(name, &allowed, why)?;
    }
    let tools = Tools::new(
        fields.take("tools")?.unwrap_or_default(),
        fields.take("tool_choice")?,
        fields.take("parallel_tool_calls")?.unwrap_or(true),
        service.template.as_ref(),
    )?;
    let mut request = GenerationRequest::take(fields, service, 1, usize::MAX)?;
    request.prompt_field = "messages";
    if let Some(tools) = &tools {
        request.offer(tools, service)?;
    }
    let top = fields.count("top_logprobs", 0, 20)?;
    let has_logprobs = fields.take::<bool>("logprobs")?.unwrap_or(false);
    if top.is_some() && !has_logprobs {
        return Err(ApiError::of("top_logprobs", "`top_logprobs` requires `logprobs`: true"));
    }
    request.params.logprobs = has_logprobs.then_some(top.unwrap_or(0));
    std::mem::take(fields).finish()?;
    let described = tools.as_ref().map_or(&[][..], |tools| &tools.descriptions);
    let prompt = service.conversation(&messages, described, &variables)?;
    let answer = service.begin_choices(&request, vec![prompt], CompletionKind::Chat)?;
    Ok((request, answer))
}

/// The messages of a conversation; content parts are joined to text.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let mut messages: Vec<Message> = fields.need("messages")?;
    if messages.is_empty() {
        return Err(ApiError::of("messages", "`messages` is empty"));
    }
    for message in &mut messages {
        // OpenAI clients send null content with tool calls.
        if message.content.is_null() {
            message.content = Value::String(String::new());
        }
        if let Value::Array(parts) = &message.content {
            let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
            let Some(texts) = texts else {
                return Err(ApiError::of(
                    "messages",
                    "unsupported content part: this model accepts text only",
                ));
            };
            message.content = Value::String(texts.join("\n"));
        }
        read_arguments(message)?;
        // OpenAI's role `developer` is `system` in chat templates.
        if message.role == "developer" {
            message.role = "system".to_owned();
        }
    }
    Ok(messages)
}

/// Template variables, including `reasoning_effort`.
pub(crate) fn variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables = template_variables(fields)?;
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        variables.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    Ok(variables)
}

/// `chat_template_kwargs`, without the variables that the server sets.
pub(crate) fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    const NAME: &str = "chat_template_kwargs";
    const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];
    let variables: Map<String, Value> = fields.take(NAME)?.unwrap_or_default();
    match variables.keys().find(|name| RESERVED.contains(&name.as_str()) || name.ends_with("_token")) {
        Some(name) => {
            Err(ApiError::of(NAME, format!("`{NAME}` cannot set `{name}`: it is set by the server")))
        }
        None => Ok(variables),
    }
}
