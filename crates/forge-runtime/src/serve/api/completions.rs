//! `/v1/completions`: texts, and what comes after them.

use crate::serve::api::completion_body::Kind;
use crate::serve::api::request::GenerationRequest;
use crate::serve::api::response::PendingResponse;
use crate::serve::api::state::ServerState;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use serde_json::{Value, json};

/// Ids of a completion that says nothing of how many: as OpenAI has it.
const ORDINARY_COUNT: usize = 16;

/// Reads what is asked, and begins the answer.
pub(crate) fn begin(
    service: &ServerState,
    fields: &mut Fields,
) -> Result<(GenerationRequest, PendingResponse), ApiError> {
    let prompts = prompts(service, fields)?;
    let echo = fields.take("echo")?.unwrap_or(false);
    fields.only("suffix", &json!(""), "is not something that this model can be asked to lead to")?;
    // Who wants the prompt back may want nothing else.
    let mut asked = GenerationRequest::take(fields, service, u64::from(!echo), ORDINARY_COUNT)?;
    asked.echo = echo;
    fields.only("best_of", &json!(asked.texts), "is `n`: all texts are given")?;
    asked.settings.logprobs = fields.count("logprobs", 0, 20)?;
    std::mem::take(fields).finish()?;
    let answer = service.begin_texts(&asked, prompts, Kind::Plain)?;
    Ok((asked, answer))
}

/// Prompts as texts or as ids, one or several.
fn prompts(service: &ServerState, fields: &mut Fields) -> Result<Vec<Vec<u32>>, ApiError> {
    let refused = || ApiError::of("prompt", "`prompt` is a text, a list of token ids, or a list of either");
    let ids = |value: &Value| -> Option<Vec<u32>> {
        let items = value.as_array()?.iter();
        items.map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => Ok(service.text.encode(text, true)?),
        value => ids(value).ok_or_else(refused),
    };
    match fields.need::<Value>("prompt")? {
        Value::Array(items) if !items.is_empty() && !items[0].is_number() => {
            let most = service.queue.most();
            if items.len() > most {
                let message = format!("{} prompts at once; the server takes {most}", items.len());
                return Err(ApiError::of("prompt", message));
            }
            items.iter().map(one).collect()
        }
        value => Ok(vec![one(&value)?]),
    }
}
