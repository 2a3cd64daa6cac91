//! The fields that all generation requests have in common.

use crate::serve::api::state::ServerState;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::tools::choice::Tools;
use crate::serve::tools::grammar::Grammar;
use crate::serve::tools::grammar_limits::{check_lark, check_regex, check_schema};
use crate::serve::tools::tool_call_parser::ToolCallParser;
use crate::session::generation::GenerationParams;
use forge_device::error::Error;
use forge_device::sampling::sampler::SamplingParams;
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, RandomState};

/// A generation request.
pub(crate) struct GenerationRequest {
    /// Generation parameters, with the seed of the first sequence.
    pub(crate) params: GenerationParams,
    /// Sequences per prompt (`n`).
    pub(crate) choices: usize,
    /// Whether the output starts with the prompt.
    pub(crate) echo: bool,
    /// The name of the prompt field, for errors.
    pub(crate) prompt_field: &'static str,
    /// A grammar that constrains the output.
    pub(crate) grammar: Option<Grammar>,
    /// The name of the grammar field, for errors.
    pub(crate) grammar_field: &'static str,
    /// Separates tool calls from text, if tools are offered.
    pub(crate) calls: Option<ToolCallParser>,
    /// Whether the response is streamed.
    pub(crate) stream: bool,
    /// Whether a stream ends with usage.
    pub(crate) include_usage: bool,
}

impl GenerationRequest {
    /// Takes the common fields. `count` is the default number of tokens, `least` the minimum.
    pub(crate) fn take(
        fields: &mut Fields,
        service: &ServerState,
        least: u64,
        count: usize,
    ) -> Result<GenerationRequest, ApiError> {
        let stream = fields.take("stream")?.unwrap_or(false);
        let include_usage = stream_options(fields, stream)?;
        let seed = fields.take::<i64>("seed")?.map(|seed| seed as u64).unwrap_or_else(new_seed);
        let texts = fields.count("n", 1, service.queue.capacity() as u64)?.unwrap_or(1);
        let [old, new] =
            ["max_tokens", "max_completion_tokens"].map(|name| fields.count_or_unlimited(name, least));
        let settings = GenerationParams {
            sampling: sampling(fields, &service.sampling, service.info.vocabulary)?,
            seed,
            max_tokens: new?.or(old?).unwrap_or(count),
            stop: stop(fields)?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            logprobs: None,
        };
        let (grammar_field, grammar) = grammar(fields)?;
        Ok(GenerationRequest {
            prompt_field: "prompt",
            params: settings,
            choices: texts,
            echo: false,
            grammar,
            grammar_field,
            calls: None,
            stream,
            include_usage,
        })
    }
}

impl GenerationRequest {
    /// Offers tools to the model.
    pub(crate) fn offer(&mut self, tools: &Tools, service: &ServerState) -> Result<(), ApiError> {
        let opening = tools.format.opening_id(&service.tokenizer);
        self.calls = Some(ToolCallParser::new(tools.format, opening));
        let grammar = tools.grammar(self.grammar.take(), &service.tokenizer, &service.grammars);
        self.grammar = Some(grammar.map_err(|failure| match failure {
            Error::Usage(message) => ApiError::of("tools", message),
            failure @ Error::Runtime(_) => failure.into(),
        })?);
        Ok(())
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.take::<Map<String, Value>>("stream_options")? else { return Ok(false) };
    let invalid = |message: &str| Err(ApiError::of("stream_options", message));
    if !stream {
        return invalid("`stream_options` requires `stream`: true");
    }
    // Padding against traffic analysis, which is optional for servers.
    options.shift_remove("include_obfuscation");
    let include_usage = options.shift_remove("include_usage");
    match (include_usage.unwrap_or(false.into()), options.keys().next()) {
        (Value::Bool(include_usage), None) => Ok(include_usage),
        _ => invalid("`stream_options` supports only `include_usage`, true or false"),
    }
}

/// A random seed below 2^53, which JavaScript represents exactly.
fn new_seed() -> u64 {
    RandomState::new().hash_one(0) >> 11
}

fn sampling(
    fields: &mut Fields,
    defaults: &SamplingParams,
    vocabulary: u32,
) -> Result<SamplingParams, ApiError> {
    let mut bias = Vec::new();
    for (id, value) in fields.take::<Map<String, Value>>("logit_bias")?.unwrap_or_default() {
        match (id.parse::<u32>(), value.as_f64()) {
            (Ok(id), _) if id >= vocabulary => {
                let message =
                    format!("`logit_bias`: token id {id} is not below the vocabulary size {vocabulary}");
                return Err(ApiError::of("logit_bias", message));
            }
            (Ok(id), Some(value)) if (-100.0..=100.0).contains(&value) => bias.push((id, value as f32)),
            _ => {
                let message =
                    format!("`logit_bias` maps token ids to numbers from -100 to 100, not {id:?}: {value}");
                return Err(ApiError::of("logit_bias", message));
            }
        }
    }
    let sampling = SamplingParams {
        temperature: fields.number("temperature", 0.0, 100.0)?.unwrap_or(defaults.temperature),
        top_k: match fields.take::<i64>("top_k")? {
            // Some clients send -1 to disable top-k.
            Some(top_k) => top_k.max(0) as usize,
            None => defaults.top_k,
        },
        typical_p: fields.number("typical_p", 0.0, 1.0)?.unwrap_or(defaults.typical_p),
        top_p: fields.number("top_p", 0.0, 1.0)?.unwrap_or(defaults.top_p),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(defaults.min_p),
        repetition_penalty: fields
            .number("repetition_penalty", 0.0, 100.0)?
            .unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(defaults.frequency_penalty),
        bias,
    };
    sampling.check().map_err(|message| {
        // The message starts with the name of the parameter.
        let names = [
            "temperature",
            "typical_p",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ];
        match names.into_iter().find(|name| message.replace(['-', ' '], "_").contains(name)) {
            Some(name) => ApiError::of(name, message),
            None => ApiError::new(axum::http::StatusCode::BAD_REQUEST, message),
        }
    })?;
    Ok(sampling)
}

/// `stop`: one string or several.
fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let invalid = |message: &str| Err(ApiError::of("stop", message));
    let stop: Vec<String> = match fields.take::<Value>("stop")? {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(texts)) => {
            let texts: Option<_> = texts.iter().map(|text| text.as_str().map(str::to_owned)).collect();
            match texts {
                Some(texts) => texts,
                None => return invalid("`stop` must be a string or a list of strings"),
            }
        }
        Some(_) => return invalid("`stop` must be a string or a list of strings"),
    };
    match stop.iter().any(String::is_empty) || stop.len() > 16 {
        true => invalid("`stop` must have at most 16 strings, none of them empty"),
        false => Ok(stop),
    }
}

/// The grammar of the output and the field that sets it.
fn grammar(fields: &mut Fields) -> Result<(&'static str, Option<Grammar>), ApiError> {
    let format = fields.take::<Value>("response_format")?;
    let ways = [
        ("response_format", format.map_or(Ok(None), |format| response_format(&format))?),
        ("guided_json", fields.take::<Value>("guided_json")?.map(Grammar::Schema)),
        ("guided_regex", fields.take::<String>("guided_regex")?.map(Grammar::Regex)),
        ("guided_grammar", fields.take::<String>("guided_grammar")?.map(Grammar::Lark)),
    ];
    let mut requested = ways.into_iter().filter(|(_, grammar)| grammar.is_some());
    match (requested.next(), requested.next()) {
        (Some((field, Some(grammar))), None) => {
            let checked = match &grammar {
                Grammar::Schema(schema) => check_schema(schema),
                Grammar::Regex(expression) => check_regex(expression),
                Grammar::Lark(grammar) => check_lark(grammar),
                Grammar::After { .. } => Ok(()),
            };
            let too_complex =
                |failure: Error| ApiError::of(field, failure.to_string()).code("grammar_too_complex");
            checked.map(|()| (field, Some(grammar))).map_err(too_complex)
        }
        (_, None) => Ok(("response_format", None)),
        (_, Some((field, _))) => {
            Err(ApiError::of(field, "`response_format` and `guided_...` cannot be combined"))
        }
    }
}

fn response_format(format: &Value) -> Result<Option<Grammar>, ApiError> {
    let invalid = |message: &str| Err(ApiError::of("response_format", message));
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::Schema(json!({ "type": "object" })))),
        Some("json_schema") => {
            let described = format.get("json_schema").unwrap_or(format);
            match described.get("schema") {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                    Ok(Some(Grammar::Schema(schema.clone())))
                }
                _ => invalid("`response_format` of type json_schema needs `json_schema` with a `schema`"),
            }
        }
        _ => invalid("the type of `response_format` must be text, json_object or json_schema"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_seeds_are_exact_in_javascript() {
        assert!((0..100).map(|_| new_seed()).all(|seed| seed < 1 << 53));
    }
}
