//! The tools that a request offers, and the grammar of their calls.
//!
//! Calls are constrained: the name is one of the offered functions, and the arguments follow its schema.

use crate::serve::http::error::ApiError;
use crate::serve::tools::grammar::{Grammar, Grammars, compact, with_few_blanks};
use crate::serve::tools::grammar_limits::check_schema;
use crate::serve::tools::tool_call_format::ToolCallFormat;
use crate::text::chat_template::{Message, Template};
use crate::text::tokenizer::Tokenizer;
use forge_device::error::Error;
use serde_json::{Value, json};

/// The tools of a request.
pub(crate) struct Tools {
    pub(crate) format: ToolCallFormat,
    /// Their descriptions, as passed to the template.
    pub(crate) descriptions: Vec<Value>,
    choice: Choice,
    several: bool,
}

/// `tool_choice`.
#[derive(Clone, Debug, PartialEq)]
enum Choice {
    /// The model decides.
    Auto,
    /// The model must call a function.
    Required,
    /// The model must call this function.
    Named(String),
}

impl Tools {
    /// Parses the tools; `None` if none are offered or `tool_choice` is none.
    pub(crate) fn new(
        described: Vec<Value>,
        choice: Option<Value>,
        several: bool,
        template: Option<&Template>,
    ) -> Result<Option<Tools>, ApiError> {
        let invalid = |param: &str, message: String| Err(ApiError::of(param, message));
        let choice = match &choice {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => {
                    return invalid(
                        "tool_choice",
                        format!("`tool_choice` must be none, auto, required or a function, not {word:?}"),
                    );
                }
            },
            Some(value) => match value["function"]["name"].as_str().or(value["name"].as_str()) {
                Some(name) => Choice::Named(name.to_owned()),
                None => return invalid("tool_choice", "`tool_choice` has no function name".to_owned()),
            },
        };
        if described.is_empty() {
            return match choice {
                Choice::Auto => Ok(None),
                _ => invalid("tool_choice", "`tool_choice` requires `tools`".to_owned()),
            };
        }
        for tool in &described {
            if tool["type"] != "function" || !tool["function"]["name"].is_string() {
                return invalid("tools", format!("a tool must be a function with a name, not {tool}"));
            }
        }
        if let Choice::Named(name) = &choice
            && !described.iter().any(|tool| tool["function"]["name"] == name.as_str())
        {
            return invalid("tool_choice", format!("`tool_choice` names {name:?}, which is not in `tools`"));
        }
        match template.and_then(ToolCallFormat::of) {
            Some(dialect) => Ok(Some(Tools { format: dialect, descriptions: described, choice, several })),
            None => invalid("tools", "this model's chat template does not support tools".to_owned()),
        }
    }

    /// The grammar of the output: calls, or calls or `answer`.
    pub(crate) fn grammar(
        &self,
        answer: Option<Grammar>,
        text: &Tokenizer,
        grammars: &Grammars,
    ) -> Result<Grammar, Error> {
        let offered = self.descriptions.iter().map(|tool| &tool["function"]);
        let offered = offered.filter(|function| match &self.choice {
            Choice::Named(name) => function["name"] == name.as_str(),
            _ => true,
        });
        // Each schema is compiled on its own first, to check whether it is supported.
        let offered: Vec<&Value> = offered.collect();
        check_schema(&offered.iter().filter_map(|function| function.get("parameters")).cloned().collect())?;
        let calls: Vec<Value> = offered
            .into_iter()
            .map(|function| {
                let arguments = arguments(function, grammars)?;
                Ok(json!({
                    "type": "object",
                    "properties": { "name": { "const": function["name"] }, self.format.arguments(): arguments },
                    "required": ["name", self.format.arguments()],
                    "additionalProperties": false,
                }))
            })
            .collect::<Result<_, Error>>()?;
        let call = json!({ "anyOf": calls });
        check_schema(&call)?;
        let call = with_few_blanks(call);
        let calls = self.format.grammar(&call, self.several && !matches!(self.choice, Choice::Named(_)));
        let opening = match self.format.opening_id(text) {
            Some(id) => format!("<[{id}]>"),
            None if self.format == ToolCallFormat::Bare => String::new(),
            None => Value::from(self.format.opening()).to_string(),
        };
        Ok(match (&self.choice, answer) {
            (Choice::Auto, None) => Grammar::After {
                opening: self.format.opening(),
                opening_id: self.format.opening_id(text),
                grammar: format!("start: calls\n{calls}"),
            },
            (Choice::Auto, Some(Grammar::Schema(schema))) => {
                let schema = compact(schema);
                Grammar::Lark(format!("start: answer | {opening} calls\nanswer: %json {schema}\n{calls}"))
            }
            (_, Some(Grammar::Regex(_) | Grammar::Lark(_) | Grammar::After { .. })) => {
                return Err(Error::usage(
                    "`tools` can be combined with JSON output only, not with other grammars",
                ));
            }
            // A required call excludes another answer.
            (Choice::Required | Choice::Named(_), _) => {
                Grammar::Lark(format!("start: {opening} calls\n{calls}"))
            }
        })
    }
}

/// The schema of a function's arguments. An unsupported schema becomes any object, or an error if the
/// function is strict.
fn arguments(function: &Value, grammars: &Grammars) -> Result<Value, Error> {
    let any = json!({ "type": "object" });
    let Some(schema) = function.get("parameters").filter(|schema| !schema.is_null()) else { return Ok(any) };
    let schema = closed(schema);
    check_schema(&schema)?;
    match grammars.compile(&Grammar::Schema(schema.clone())) {
        Ok(_) => Ok(schema),
        Err(Error::Usage(message)) if function["strict"] == true => {
            Err(Error::Usage(format!("function {}: {message}", function["name"])))
        }
        Err(Error::Usage(_)) => Ok(any),
        Err(failure) => Err(failure),
    }
}

/// Closes the objects of a schema: without rules about further properties, an object has only the properties
/// that it names.
fn closed(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let elsewhere = [
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "if",
    ];
    let mut fields = fields.clone();
    for (name, value) in &mut fields {
        match (name.as_str(), &mut *value) {
            ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                named.values_mut().for_each(|schema| *schema = closed(schema));
            }
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(several)) => {
                several.iter_mut().for_each(|schema| *schema = closed(schema));
            }
            ("items", schema) => *schema = closed(schema),
            _ => {}
        }
    }
    if fields.contains_key("properties") && !elsewhere.iter().any(|name| fields.contains_key(*name)) {
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    Value::Object(fields)
}

/// Parses arguments of calls in a message: clients send them as JSON text, templates expect values.
pub(crate) fn read_arguments(message: &mut Message) -> Result<(), ApiError> {
    let calls = match message.rest.get_mut("tool_calls") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(other) => {
            return Err(ApiError::of("messages", format!("`tool_calls` must be a list, not {other}")));
        }
    };
    for call in calls {
        let Some(Value::Object(function)) = call.get_mut("function") else {
            let message =
                format!("a call in `tool_calls` must have a `function` with name and arguments, not {call}");
            return Err(ApiError::of("messages", message));
        };
        if let Some(arguments) = function.get_mut("arguments")
            && let Some(value) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *arguments = value;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_schema_are_closed() {
        for (schema, wanted) in [
            (json!({ "type": "object" }), json!({ "type": "object" })),
            (
                json!({ "properties": { "a": { "properties": { "b": {} } }, "c": { "items": { "properties": {} } } } }),
                json!({
                    "properties": {
                        "a": { "properties": { "b": {} }, "additionalProperties": false },
                        "c": { "items": { "properties": {}, "additionalProperties": false } },
                    },
                    "additionalProperties": false,
                }),
            ),
            (
                json!({ "properties": { "a": {} }, "additionalProperties": true }),
                json!({ "properties": { "a": {} }, "additionalProperties": true }),
            ),
            (
                json!({ "allOf": [{ "properties": { "a": {} } }], "properties": { "b": {} } }),
                json!({ "allOf": [{ "properties": { "a": {} } }], "properties": { "b": {} } }),
            ),
        ] {
            assert_eq!(closed(&schema), wanted);
        }
    }
}
