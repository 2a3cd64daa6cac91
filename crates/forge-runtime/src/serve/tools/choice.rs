//! Functions that a model may call, and what they make of its answer.
//!
//! A call is written under a grammar: its name is one of the functions', its arguments follow that function's schema.

use crate::error::Error;
use crate::serve::http::error::ApiError;
use crate::serve::tools::grammar::{Grammar, Grammars, compact, with_few_blanks};
use crate::serve::tools::grammar_limits::check_schema;
use crate::serve::tools::tool_call_format::ToolCallFormat;
use crate::text::chat_template::{Message, Template};
use crate::text::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Functions that a request offers.
pub(crate) struct Tools {
    pub(crate) dialect: ToolCallFormat,
    /// As the template is given them.
    pub(crate) described: Vec<Value>,
    choice: Choice,
    several: bool,
}

/// Whether the model is to call.
#[derive(Clone, Debug, PartialEq)]
enum Choice {
    /// As it likes.
    Auto,
    /// It is to call one of the functions.
    Required,
    /// It is to call this one.
    Named(String),
}

impl Tools {
    /// The functions of a request, if it offers any and they may be called.
    pub(crate) fn new(
        described: Vec<Value>,
        choice: Option<Value>,
        several: bool,
        template: Option<&Template>,
    ) -> Result<Option<Tools>, ApiError> {
        let refused = |param: &str, message: String| Err(ApiError::of(param, message));
        let choice = match &choice {
            None => Choice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => {
                    return refused(
                        "tool_choice",
                        format!("`tool_choice` is none, auto, required or a function, not {word:?}"),
                    );
                }
            },
            Some(value) => match value["function"]["name"].as_str().or(value["name"].as_str()) {
                Some(name) => Choice::Named(name.to_owned()),
                None => return refused("tool_choice", "`tool_choice` names no function".to_owned()),
            },
        };
        if described.is_empty() {
            return match choice {
                Choice::Auto => Ok(None),
                _ => {
                    refused("tool_choice", "`tool_choice` wants a call, and there are no `tools`".to_owned())
                }
            };
        }
        for tool in &described {
            if tool["type"] != "function" || !tool["function"]["name"].is_string() {
                return refused("tools", format!("a tool is a function with a name, not {tool}"));
            }
        }
        if let Choice::Named(name) = &choice
            && !described.iter().any(|tool| tool["function"]["name"] == name.as_str())
        {
            return refused(
                "tool_choice",
                format!("`tool_choice` names {name:?}, which is not among the `tools`"),
            );
        }
        match template.and_then(ToolCallFormat::of) {
            Some(dialect) => Ok(Some(Tools { dialect, described, choice, several })),
            None => refused("tools", "this model's chat template knows no tools".to_owned()),
        }
    }

    /// What the answer has to be: calls, or calls or `answer`.
    pub(crate) fn grammar(
        &self,
        answer: Option<Grammar>,
        text: &Tokenizer,
        grammars: &Grammars,
    ) -> Result<Grammar, Error> {
        let offered = self.described.iter().map(|tool| &tool["function"]);
        let offered = offered.filter(|function| match &self.choice {
            Choice::Named(name) => function["name"] == name.as_str(),
            _ => true,
        });
        // Each is compiled by itself first, to see whether it is understood.
        let offered: Vec<&Value> = offered.collect();
        check_schema(&offered.iter().filter_map(|function| function.get("parameters")).cloned().collect())?;
        let calls: Vec<Value> = offered
            .into_iter()
            .map(|function| {
                let arguments = arguments(function, grammars)?;
                Ok(json!({
                    "type": "object",
                    "properties": { "name": { "const": function["name"] }, self.dialect.arguments(): arguments },
                    "required": ["name", self.dialect.arguments()],
                    "additionalProperties": false,
                }))
            })
            .collect::<Result<_, Error>>()?;
        let call = json!({ "anyOf": calls });
        check_schema(&call)?;
        let call = with_few_blanks(call);
        let calls = self.dialect.grammar(&call, self.several && !matches!(self.choice, Choice::Named(_)));
        let opening = match self.dialect.opening_id(text) {
            Some(id) => format!("<[{id}]>"),
            None if self.dialect == ToolCallFormat::Bare => String::new(),
            None => Value::from(self.dialect.opening()).to_string(),
        };
        Ok(match (&self.choice, answer) {
            (Choice::Auto, None) => Grammar::After {
                opening: self.dialect.opening(),
                opening_id: self.dialect.opening_id(text),
                grammar: format!("start: calls\n{calls}"),
            },
            (Choice::Auto, Some(Grammar::Schema(schema))) => {
                let schema = compact(schema);
                Grammar::Lark(format!("start: answer | {opening} calls\nanswer: %json {schema}\n{calls}"))
            }
            (_, Some(Grammar::Regex(_) | Grammar::Lark(_) | Grammar::After { .. })) => {
                return Err(Error::usage("`tools` go with answers in JSON, and not with other grammars"));
            }
            // Whoever has to call has no other answer to give.
            (Choice::Required | Choice::Named(_), _) => {
                Grammar::Lark(format!("start: {opening} calls\n{calls}"))
            }
        })
    }
}

/// The schema of a function's arguments. One that cannot be followed is no schema at all, unless it is meant strictly.
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

/// A schema whose objects have no properties but those that it names, unless it speaks of others: a function has no
/// parameters but its own.
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

/// Arguments of calls in a conversation, which clients write as text and templates read as what the text says.
pub(crate) fn read_arguments(message: &mut Message) -> Result<(), ApiError> {
    let calls = match message.rest.get_mut("tool_calls") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(ApiError::of("messages", format!("`tool_calls` is a list, not {other}"))),
    };
    for call in calls {
        let Some(Value::Object(function)) = call.get_mut("function") else {
            let message =
                format!("a call of `tool_calls` has a `function` with a name and arguments, not {call}");
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
    fn a_function_has_no_parameters_but_its_own() {
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
