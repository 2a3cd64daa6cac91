//! The tokens that begin a text and end an answer.
//!
//! generation_config.json decides where it says so, then config.json, then the names in tokenizer_config.json.

use crate::checkpoint::{self, Checkpoint};
use crate::config::Section;
use forge_ir::{Diagnostic, Specials};
use serde_json::Value;

/// Reads them from wherever they are given. Other files than config.json may be absent.
pub(crate) fn read(checkpoint: &dyn Checkpoint, config: &Section<'_>) -> Result<Specials, Vec<Diagnostic>> {
    let (begin, end) = (config.tokens("bos_token_id"), config.tokens("eos_token_id"));
    let mut faults = Vec::new();
    let mut open = |file: &str| match parse(checkpoint, file) {
        Ok(value) => value,
        Err(fault) => {
            faults.extend(fault);
            Value::Null
        }
    };
    let generation = open("generation_config.json");
    let tokenizer = open("tokenizer_config.json");
    if !faults.is_empty() {
        return Err(faults);
    }
    let find = |key: &str, configured: Vec<u32>, name: &str| {
        let mut found = tokens(&generation[key]);
        if found.is_empty() {
            found = configured;
        }
        if found.is_empty() {
            found.extend(named(&tokenizer, name));
        }
        found
    };
    let begin = find("bos_token_id", begin, "bos_token").first().copied();
    Ok(Specials { begin, end: find("eos_token_id", end, "eos_token") })
}

fn parse(checkpoint: &dyn Checkpoint, file: &str) -> Result<Value, Vec<Diagnostic>> {
    match checkpoint::text(checkpoint, file).map_err(|fault| vec![fault])? {
        Some(text) => Ok(crate::json::parse(file, &text)?.value),
        None => Ok(Value::Null),
    }
}

/// One token or a list of them; null, -1 and the like stand for none.
fn tokens(value: &Value) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match value {
        Value::Array(values) => values.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

/// The token whose text tokenizer_config.json gives under a name, itself or as the content of an object.
fn named(tokenizer: &Value, name: &str) -> Option<u32> {
    let text = tokenizer[name].as_str().or_else(|| tokenizer[name]["content"].as_str())?;
    let added = tokenizer["added_tokens_decoder"].as_object()?;
    let (id, _) = added.iter().find(|(_, token)| token["content"].as_str() == Some(text))?;
    id.parse().ok()
}
