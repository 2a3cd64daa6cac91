//! The fields of a request body.
//!
//! Each part of the server takes the fields that it supports. Remaining fields are an error, unless they do
//! not change the result: ignoring a field could give a wrong result. A null field counts as absent.

use crate::serve::http::error::ApiError;
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fields that were not taken yet.
#[derive(Default)]
pub(crate) struct Fields(Map<String, Value>);

/// Fields without effect on the result: user ids, storage, caching, priority.
const IGNORED: [&str; 9] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "model",
];

/// Rewrites a parser message from Rust's terms to JSON's.
fn in_json_terms(error: &str) -> String {
    let words = [
        ("expected u64", "expected an integer of at least 0"),
        ("expected u32", "expected an integer of at least 0"),
        ("expected i64", "expected an integer"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
        ("invalid type: map", "invalid type: object"),
        ("invalid type: sequence", "invalid type: list"),
        ("struct Message", "a message"),
    ];
    words.iter().fold(error.to_owned(), |error, (rust, json)| error.replace(rust, json))
}

impl Fields {
    /// Parses a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => {
                Ok(Fields(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()))
            }
            Ok(_) => Err(ApiError::new(StatusCode::BAD_REQUEST, "the request body is not a JSON object")),
            Err(error) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the request body is not valid JSON: {error}"),
            )),
        }
    }

    /// The value of a field, which is not taken.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Takes a field, if present.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.shift_remove(name) else { return Ok(None) };
        match serde_json::from_value(value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(ApiError::of(name, format!("`{name}`: {}", in_json_terms(&error.to_string())))),
        }
    }

    /// Whether a grammar may have to be compiled for these fields.
    pub(crate) fn may_have_grammar(&self) -> bool {
        let is_text = |format: &Value| format["type"] == "text";
        self.0.iter().any(|(name, value)| match name.as_str() {
            "tools" => value.as_array().is_none_or(|tools| !tools.is_empty()),
            "response_format" => !is_text(value),
            "text" => value.get("format").is_some_and(|format| !is_text(format)),
            "guided_json" | "guided_regex" | "guided_grammar" => true,
            _ => false,
        })
    }

    /// Sets a field, such as one under another name.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Takes a required field.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::of(name, format!("`{name}` is missing")))
    }

    /// Takes a number within a range.
    pub(crate) fn number(&mut self, name: &str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
        match self.take::<f64>(name)? {
            Some(number) if !(least..=most).contains(&number) => {
                Err(ApiError::of(name, format!("`{name}` must be {least} to {most}, not {number}")))
            }
            number => Ok(number.map(|number| number as f32)),
        }
    }

    /// Takes an integer within a range.
    pub(crate) fn count(&mut self, name: &str, least: u64, most: u64) -> Result<Option<usize>, ApiError> {
        match self.take::<u64>(name)? {
            Some(count) if !(least..=most).contains(&count) => {
                let range = match most {
                    u64::MAX => format!("at least {least}"),
                    _ => format!("{least} to {most}"),
                };
                Err(ApiError::of(name, format!("`{name}` must be {range}, not {count}")))
            }
            count => Ok(count.map(|count| count as usize)),
        }
    }

    /// Takes an integer; some clients send -1 for no limit.
    pub(crate) fn count_or_unlimited(&mut self, name: &str, least: u64) -> Result<Option<usize>, ApiError> {
        if self.0.get(name).is_some_and(|value| *value == -1) {
            self.0.shift_remove(name);
            return Ok(Some(usize::MAX));
        }
        self.count(name, least, u64::MAX)
    }

    /// Takes a field that supports a single value. `why` completes the error message.
    pub(crate) fn only(&mut self, name: &str, allowed: &Value, why: &str) -> Result<(), ApiError> {
        match self.0.shift_remove(name) {
            Some(value) if value != *allowed => Err(ApiError::of(name, format!("`{name}` {why}"))),
            _ => Ok(()),
        }
    }

    /// Rejects remaining fields that could change the result.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.0.keys().find(|name| !IGNORED.contains(&name.as_str())) {
            Some(name) => Err(ApiError::of(
                name,
                format!("unsupported field `{name}`: ignoring it could change the result"),
            )),
            None => Ok(()),
        }
    }
}
