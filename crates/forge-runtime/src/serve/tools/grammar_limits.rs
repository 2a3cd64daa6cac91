//! Size limits of grammars.
//!
//! A compilation cannot be interrupted, and its time, stack and memory grow with the grammar. The size is
//! therefore checked first. The worst grammar within these limits compiles in one to two seconds.

use forge_device::error::Error;
use llguidance::api::ParserLimits;
use serde_json::Value;
use std::collections::HashSet;

/// Nesting levels of a schema, references followed.
const SCHEMA_DEPTH: usize = 100;
/// Values in a schema, without annotations.
const SCHEMA_VALUES: usize = 5000;
/// Properties of one object.
const SCHEMA_PROPERTIES: usize = 500;
/// Bytes of all strings and names in a schema, without annotations.
const SCHEMA_BYTES: usize = 128 << 10;
/// Bytes of a regular expression.
const REGEX_BYTES: usize = 16 << 10;
/// `*`, `+`, `?` and `{` in a regular expression: compile time grows with their square.
const REGEX_REPETITIONS: usize = 250;
/// Bytes of a Lark grammar.
const LARK_BYTES: usize = 32 << 10;
/// Lines, alternatives and repetitions of a Lark grammar.
const LARK_OPERATORS: usize = 2000;

/// Sets llguidance's limits on time and memory for one grammar.
pub(crate) fn set_parser_limits(limits: &mut ParserLimits) {
    limits.initial_lexer_fuel = 300_000;
    limits.step_lexer_fuel = 100_000;
    limits.step_max_items = 10_000;
    limits.max_lexer_states = 20_000;
    limits.max_grammar_size = 50_000;
    // Errors go to clients, without the parser state.
    limits.verbose_errors = false;
}

fn too_large(message: String) -> Error {
    Error::usage(format!("{message}; simplify it"))
}

/// Rejects a schema that is too large or nested too deeply.
pub(crate) fn check_schema(schema: &Value) -> Result<(), Error> {
    let mut size = SchemaSize::default();
    size.measure(schema, false)?;
    let mut depths = DepthMeter { root: schema, open: HashSet::new(), known: Default::default() };
    depths.depth(schema, 0).map(drop)
}

/// Annotations, which do not affect the grammar.
fn is_annotation(keyword: &str) -> bool {
    ["description", "title", "examples", "example", "default", "$comment"].contains(&keyword)
}

/// Keywords whose members have arbitrary names.
fn is_named(keyword: &str) -> bool {
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"].contains(&keyword)
}

#[derive(Default)]
struct SchemaSize {
    values: usize,
    bytes: usize,
}

impl SchemaSize {
    /// `is_named_member`: whether the keys of `value` are names rather than keywords.
    fn measure(&mut self, value: &Value, is_named_member: bool) -> Result<(), Error> {
        self.values += 1;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => items.iter().try_for_each(|item| self.measure(item, false))?,
            Value::Object(fields) => {
                for (name, value) in fields {
                    if !is_named_member && is_annotation(name) && !matches!(value, Value::Object(_)) {
                        continue;
                    }
                    self.bytes += name.len();
                    match (name.as_str(), value) {
                        // Options of llguidance; some are regular expressions.
                        ("x-guidance", Value::Object(options)) => {
                            let texts = options.values().filter_map(Value::as_str);
                            texts.into_iter().try_for_each(check_regex)?;
                        }
                        ("pattern", Value::String(pattern)) if !is_named_member => check_regex(pattern)?,
                        ("properties" | "patternProperties", Value::Object(properties))
                            if !is_named_member && properties.len() > SCHEMA_PROPERTIES =>
                        {
                            return Err(too_large(format!(
                                "an object of the schema has {} properties; the limit is {SCHEMA_PROPERTIES}",
                                properties.len()
                            )));
                        }
                        _ => {}
                    }
                    if name == "patternProperties" && !is_named_member {
                        let patterns = value.as_object().into_iter().flatten();
                        patterns.map(|(pattern, _)| pattern).try_for_each(|pattern| check_regex(pattern))?;
                    }
                    self.measure(value, !is_named_member && is_named(name))?;
                }
            }
            _ => {}
        }
        if self.values > SCHEMA_VALUES {
            return Err(too_large(format!("the schema has more than {SCHEMA_VALUES} values")));
        }
        if self.bytes > SCHEMA_BYTES {
            return Err(too_large(format!("the schema has more than {} KiB of text", SCHEMA_BYTES >> 10)));
        }
        Ok(())
    }
}

/// Nesting depth of schemas, local references followed. A recursive reference adds nothing.
struct DepthMeter<'a> {
    root: &'a Value,
    open: HashSet<&'a str>,
    known: std::collections::HashMap<&'a str, usize>,
}

impl<'a> DepthMeter<'a> {
    /// Levels below `value`, which is itself at `level`.
    fn depth(&mut self, value: &'a Value, level: usize) -> Result<usize, Error> {
        if level > SCHEMA_DEPTH {
            return Err(too_large(format!("the schema is nested deeper than {SCHEMA_DEPTH} levels")));
        }
        let mut deepest = 0;
        match value {
            Value::Array(items) => {
                for item in items {
                    deepest = deepest.max(self.depth(item, level)?);
                }
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    let below = match (name.as_str(), value) {
                        // Definitions count where they are used.
                        ("$defs" | "definitions", _) => 0,
                        ("$ref", Value::String(reference)) => self.reference(reference, level + 1)?,
                        // Names are no level.
                        (name, _) if is_named(name) => self.depth(value, level)?,
                        _ => self.depth(value, level + 1)?,
                    };
                    deepest = deepest.max(below + 1);
                }
            }
            _ => return Ok(0),
        }
        Ok(deepest)
    }

    fn reference(&mut self, reference: &'a str, level: usize) -> Result<usize, Error> {
        let Some(target) = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) else {
            return Ok(0);
        };
        if let Some(&depth) = self.known.get(reference) {
            return match level + depth > SCHEMA_DEPTH {
                true => Err(too_large(format!("the schema is nested deeper than {SCHEMA_DEPTH} levels"))),
                false => Ok(depth),
            };
        }
        if !self.open.insert(reference) {
            return Ok(0);
        }
        let depth = self.depth(target, level);
        self.open.remove(reference);
        let depth = depth?;
        self.known.insert(reference, depth);
        Ok(depth)
    }
}

/// Rejects a regular expression that is too large.
pub(crate) fn check_regex(expression: &str) -> Result<(), Error> {
    if expression.len() > REGEX_BYTES {
        return Err(too_large(format!("a regular expression has more than {} KiB", REGEX_BYTES >> 10)));
    }
    if operators(expression, "*+?{") > REGEX_REPETITIONS {
        return Err(too_large(format!(
            "a regular expression has more than {REGEX_REPETITIONS} repetitions (`*`, `+`, `?`, `{{`)"
        )));
    }
    Ok(())
}

/// Occurrences of any of `characters` in `text` that are not escaped by a backslash.
fn operators(text: &str, characters: &str) -> usize {
    let mut is_escaped = false;
    let mut count = 0;
    for character in text.chars() {
        count += usize::from(!is_escaped && characters.contains(character));
        is_escaped = character == '\\' && !is_escaped;
    }
    count
}

/// Rejects a Lark grammar that is too large, and schemas and expressions in it that are.
pub(crate) fn check_lark(grammar: &str) -> Result<(), Error> {
    if grammar.len() > LARK_BYTES {
        return Err(too_large(format!("the grammar has more than {} KiB", LARK_BYTES >> 10)));
    }
    if operators(grammar, "*+?{|\n~") > LARK_OPERATORS {
        return Err(too_large(format!(
            "the grammar has more than {LARK_OPERATORS} lines, alternatives and repetitions"
        )));
    }
    for (at, mark) in grammar.match_indices("%json") {
        let values = serde_json::Deserializer::from_str(&grammar[at + mark.len()..]).into_iter::<Value>();
        // Invalid JSON is rejected by the parser.
        if let Some(Ok(schema)) = values.into_iter().next() {
            check_schema(&schema)?;
        }
    }
    for line in grammar.lines() {
        let rest = line.split_once('/').map_or("", |(_, rest)| rest);
        check_regex(rest)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn message(result: Result<(), Error>) -> String {
        result.map_or_else(|failure| failure.to_string(), |()| String::new())
    }

    /// Definitions `d0`, `d1`, ..., each of which refers to the next.
    fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
        let next = |index: usize| json!({ "$ref": format!("#/$defs/d{}", index + 1) });
        let mut definitions: Map<String, Value> =
            (0..length).map(|index| (format!("d{index}"), link(next(index)))).collect();
        definitions.insert(format!("d{length}"), json!({ "type": "string" }));
        json!({ "$defs": definitions, "$ref": "#/$defs/d0" })
    }

    #[test]
    fn schemas_are_measured_with_their_references() {
        for link in [
            (|next| next) as fn(Value) -> Value,
            |next| json!({ "anyOf": [next, next] }),
            |next| json!({ "type": "array", "items": next }),
            |next| json!({ "type": "object", "properties": { "a": next }, "required": ["a"] }),
        ] {
            assert_eq!(message(check_schema(&chain(20, link))), "");
            assert!(message(check_schema(&chain(300, link))).contains("nested deeper than 100 levels"));
        }
        // A list of lists of itself.
        let tree = json!({
            "$defs": { "node": { "type": "array", "items": { "$ref": "#/$defs/node" } } },
            "anyOf": [{ "$ref": "#/$defs/node" }, { "$ref": "#" }],
        });
        assert_eq!(message(check_schema(&tree)), "");
        let words: Vec<String> = (0..6000).map(|index| format!("w{index}")).collect();
        assert!(message(check_schema(&json!({ "enum": words }))).contains("more than 5000 values"));
        assert!(message(check_schema(&json!({ "const": "x".repeat(200_000) }))).contains("128 KiB of text"));
        let long = "x".repeat(200_000);
        assert_eq!(message(check_schema(&json!({ "type": "string", "description": long }))), "");
        let pattern = json!({ "properties": { "a": { "type": "string", "pattern": "a*".repeat(300) } } });
        assert!(message(check_schema(&pattern)).contains("more than 250 repetitions"));
        // A property may have the name of a keyword.
        let named = json!({ "properties": { "pattern": { "type": "string" }, "description": { "pattern": "a*".repeat(300) } } });
        assert!(message(check_schema(&named)).contains("more than 250 repetitions"));
    }

    #[test]
    fn repetitions_of_an_expression_are_limited() {
        assert_eq!(message(check_regex(r"[a-z]{1,9}(-[0-9]+)?\+\*\?")), "");
        assert_eq!(message(check_regex(&r"\*".repeat(1000))), "");
        assert!(message(check_regex(&"a*".repeat(20_000))).contains("KiB"));
        assert!(message(check_regex(&"a?".repeat(300))).contains("repetitions"));
    }

    #[test]
    fn rejects_grammars_with_too_many_lines() {
        assert_eq!(message(check_lark("start: \"x\" (\"yes\" | \"no\")")), "");
        let words: Vec<String> = (0..3000).map(|index| format!("\"w{index}\"")).collect();
        assert!(message(check_lark(&format!("start: {}", words.join("|")))).contains("2000 lines"));
        assert!(message(check_lark(&"a".repeat(40_000))).contains("32 KiB"));
        let deep = chain(300, |next| next);
        assert!(message(check_lark(&format!("start: %json {deep}"))).contains("nested deeper"));
        assert!(message(check_lark(&format!("start: /{}/", "a*".repeat(300)))).contains("repetitions"));
    }
}
