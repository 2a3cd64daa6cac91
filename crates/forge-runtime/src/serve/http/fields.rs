//! A request's body, field by field.
//!
//! Each part of the server takes the fields that it understands. What is left over in the end is an error, unless it is
//! known to make no difference: an answer that ignores half of the question would be a wrong answer. A field that is null
//! is a field that is not there.

use crate::serve::http::error::ApiError;
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fields that nobody has taken yet.
#[derive(Default)]
pub(crate) struct Fields(Map<String, Value>);

/// What clients send for their own or the operator's sake: who asks, what to keep, where to cache, how soon.
const HARMLESS: [&str; 9] = [
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

/// What the parser says of a value, in words of JSON rather than of Rust.
fn in_words_of_json(error: &str) -> String {
    let words = [
        ("expected u64", "expected a whole number, 0 or more"),
        ("expected u32", "expected a whole number, 0 or more"),
        ("expected i64", "expected a whole number"),
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
    /// The fields of a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => {
                Ok(Fields(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()))
            }
            Ok(_) => Err(ApiError::new(StatusCode::BAD_REQUEST, "the body is not a JSON object")),
            Err(error) => {
                Err(ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")))
            }
        }
    }

    /// A field's value, which stays there.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A field, if it is there.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.shift_remove(name) else { return Ok(None) };
        match serde_json::from_value(value) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                Err(ApiError::of(name, format!("`{name}`: {}", in_words_of_json(&error.to_string()))))
            }
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

    /// Another name, or place, for a field.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// A field that has to be there.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| ApiError::of(name, format!("`{name}` is missing")))
    }

    /// A number within a range.
    pub(crate) fn number(&mut self, name: &str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
        match self.take::<f64>(name)? {
            Some(number) if !(least..=most).contains(&number) => {
                Err(ApiError::of(name, format!("`{name}` is {least} to {most}, not {number}")))
            }
            number => Ok(number.map(|number| number as f32)),
        }
    }

    /// A whole number within a range.
    pub(crate) fn count(&mut self, name: &str, least: u64, most: u64) -> Result<Option<usize>, ApiError> {
        match self.take::<u64>(name)? {
            Some(count) if !(least..=most).contains(&count) => {
                let range = match most {
                    u64::MAX => format!("{least} or more"),
                    _ => format!("{least} to {most}"),
                };
                Err(ApiError::of(name, format!("`{name}` is {range}, not {count}")))
            }
            count => Ok(count.map(|count| count as usize)),
        }
    }

    /// A whole number, or -1, with which some clients say that there is no limit.
    pub(crate) fn count_or_unlimited(&mut self, name: &str, least: u64) -> Result<Option<usize>, ApiError> {
        if self.0.get(name).is_some_and(|value| *value == -1) {
            self.0.shift_remove(name);
            return Ok(Some(usize::MAX));
        }
        self.count(name, least, u64::MAX)
    }

    /// A field that is understood in one way only.
    pub(crate) fn only(&mut self, name: &str, allowed: &Value, why: &str) -> Result<(), ApiError> {
        match self.0.shift_remove(name) {
            Some(value) if value != *allowed => Err(ApiError::of(name, format!("`{name}` {why}"))),
            _ => Ok(()),
        }
    }

    /// Nothing may be left that could make a difference.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.0.keys().find(|name| !HARMLESS.contains(&name.as_str())) {
            Some(name) => Err(ApiError::of(
                name,
                format!("`{name}` is not understood here, and an answer without it could be another answer"),
            )),
            None => Ok(()),
        }
    }
}
