//! The BOS and EOS tokens.
//!
//! generation_config.json takes precedence over config.json, and that over the names in
//! tokenizer_config.json. A generation_config.json that is not JSON is ignored, as in transformers.

use crate::checkpoint::files;
use crate::checkpoint::files::Checkpoint;
use crate::config::section::Section;
use crate::json::Document;
use forge_ir::{Diagnostic, SpecialTokens};
use serde_json::Value;

/// The file that takes precedence over the configuration.
pub(crate) const GENERATION: &str = "generation_config.json";

/// Why generation_config.json is ignored: it is not JSON.
pub(crate) fn unusable_generation(checkpoint: &dyn Checkpoint) -> Option<Diagnostic> {
    let text = files::text(checkpoint, GENERATION).ok()??;
    let faults = crate::json::parse(GENERATION, &text).err()?;
    faults.into_iter().find(|fault| fault.code == crate::json::NOT_JSON)
}

/// Reads the special tokens. Files other than config.json may be absent. If `is_generation_used` is false,
/// generation_config.json is ignored.
pub(crate) fn read(
    checkpoint: &dyn Checkpoint,
    config: &Section<'_>,
    is_generation_used: bool,
) -> Result<SpecialTokens, Vec<Diagnostic>> {
    let (begin, end) = (config.tokens("bos_token_id"), config.tokens("eos_token_id"));
    let mut faults = Vec::new();
    let mut open = |file: &str| match parse(checkpoint, file) {
        Ok(value) => value,
        Err(fault) => {
            faults.extend(fault);
            Document::default()
        }
    };
    let generation = if is_generation_used { open(GENERATION) } else { Document::default() };
    let tokenizer = open("tokenizer_config.json").value;
    let mut generated = |key: &str| match tokens(&generation.value[key]) {
        Some(tokens) => tokens,
        None => {
            let message = format!("{}: {key} must be a token id or a list of token ids", generation.file);
            let fault = Diagnostic::new("F0204", message);
            faults.push(match generation.value(key) {
                Some(span) => fault.at(&generation.file, span, "neither"),
                None => fault,
            });
            Vec::new()
        }
    };
    let generated_begin = generated("bos_token_id");
    let generated_end = generated("eos_token_id");
    if !faults.is_empty() {
        return Err(faults);
    }
    let find = |mut found: Vec<u32>, configured: Vec<u32>, name: &str| {
        if found.is_empty() {
            found = configured;
        }
        if found.is_empty() {
            found.extend(named(&tokenizer, name));
        }
        found
    };
    let begin = find(generated_begin, begin, "bos_token").first().copied();
    Ok(SpecialTokens { begin, end: find(generated_end, end, "eos_token") })
}

fn parse(checkpoint: &dyn Checkpoint, file: &str) -> Result<Document, Vec<Diagnostic>> {
    let Some(text) = files::text(checkpoint, file).map_err(|fault| vec![fault])? else {
        return Ok(Document::default());
    };
    let document = crate::json::parse(file, &text)?;
    match document.value.is_object() {
        true => Ok(document),
        false => Err(vec![Diagnostic::new("F0201", format!("{file} is not a JSON object"))]),
    }
}

/// One token id or a list of token ids; null, -1 and the like stand for none. `None` for any other value.
fn tokens(value: &Value) -> Option<Vec<u32>> {
    let values = match value {
        Value::Null => &[],
        Value::Array(values) => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    let tokens: Option<Vec<i64>> = values.iter().map(Value::as_i64).collect();
    Some(tokens?.into_iter().filter_map(|token| u32::try_from(token).ok()).collect())
}

/// The token whose text tokenizer_config.json gives under a name, either directly or as an object's
/// `content`.
fn named(tokenizer: &Value, name: &str) -> Option<u32> {
    let text = tokenizer[name].as_str().or_else(|| tokenizer[name]["content"].as_str())?;
    let added = tokenizer["added_tokens_decoder"].as_object()?;
    let (id, _) = added.iter().find(|(_, token)| token["content"].as_str() == Some(text))?;
    id.parse().ok()
}
