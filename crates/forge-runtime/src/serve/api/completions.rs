//! `/v1/completions`: continues texts or token sequences.

use crate::serve::api::completion_body::CompletionKind;
use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
use crate::serve::api::state::ServerState;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use serde_json::{Value, json};

/// The default `max_tokens`, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Parses a request and starts its generation.
pub(crate) fn begin(
    service: &ServerState,
    fields: &mut Fields,
) -> Result<(GenerationRequest, PendingResponse), ApiError> {
    let prompts = prompts(service, fields)?;
    let echo = fields.take("echo")?.unwrap_or(false);
    fields.only("suffix", &json!(""), "is not supported")?;
    // With `echo`, zero new tokens are allowed.
    let mut request = GenerationRequest::take(fields, service, u64::from(!echo), DEFAULT_MAX_TOKENS)?;
    request.echo = echo;
    fields.only("best_of", &json!(request.choices), "must equal `n`: all completions are returned")?;
    request.params.logprobs = fields.count("logprobs", 0, 20)?;
    std::mem::take(fields).finish()?;
    let answer = service.begin_choices(&request, prompts, CompletionKind::Plain)?;
    Ok((request, answer))
}

/// Parses prompts: a text, token ids, or a list of either.
fn prompts(service: &ServerState, fields: &mut Fields) -> Result<Vec<Vec<u32>>, ApiError> {
    let invalid =
        || ApiError::of("prompt", "`prompt` must be a text, a list of token ids, or a list of either");
    let ids = |value: &Value| -> Option<Vec<u32>> {
        let items = value.as_array()?.iter();
        items.map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => Ok(service.tokenizer.encode(text, true)?),
        value => ids(value).ok_or_else(invalid),
    };
    match fields.need::<Value>("prompt")? {
        Value::Array(items) if !items.is_empty() && !items[0].is_number() => {
            let most = service.queue.capacity();
            if items.len() > most {
                let message =
                    format!("{} prompts exceed the maximum of {most} (--slots plus --queue)", items.len());
                return Err(ApiError::of("prompt", message));
            }
            items.iter().map(one).collect()
        }
        value => Ok(vec![one(&value)?]),
    }
}
