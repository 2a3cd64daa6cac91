//! Functions that a model may call: how they are asked for, and how its calls are told from its words.
//!
//! Models write calls as they were trained to, and each family differently. Which way it is shows in the chat template:
//! it is given a call in a conversation, and what it makes of it is what the model will write. A template that makes
//! nothing of it knows no calls, and tools are refused.
//!
//! A call is written under a grammar: its name is one of the functions', its arguments follow that function's schema.

use super::super::failure::Failure;
use super::super::template::{Conversation, Message, Template};
use super::super::text::Text;
use super::grammar::{Grammar, Grammars, with_few_blanks};
use super::refusal::Refusal;
use serde_json::{Map, Value, json};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one after another: Hermes, Qwen.
    Tagged,
    /// `{"name": ..., "parameters": {...}}` and nothing else: Llama 3.
    Bare,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`: Mistral.
    Listed,
}

impl Dialect {
    /// What a template makes of a call.
    pub(super) fn of(template: &Template) -> Option<Dialect> {
        let function = json!({ "name": "probed", "arguments": { "probing": "probe" } });
        let call = json!([{ "id": "probe0000", "type": "function", "function": function }]);
        let mut caller = Message::assistant("");
        caller.rest.insert("tool_calls".to_owned(), call);
        let tool = json!({
            "type": "function",
            "function": {
                "name": "described", "description": "-",
                "parameters": { "type": "object", "properties": { "p": { "type": "string", "description": "-" } } },
            },
        });
        let render = |caller: Message| {
            let messages = [Message::user("-"), caller];
            let none = Map::new();
            let conversation = Conversation {
                messages: &messages,
                tools: std::slice::from_ref(&tool),
                variables: &none,
                answer: false,
            };
            template.render(&conversation).ok()
        };
        let mut without = caller.clone();
        without.content = Value::Null;
        let text = render(caller).or_else(|| render(without))?;
        let (before, after) = text.split_once("probed")?;
        let (around, begin) = before.rsplit_once('{')?;
        // An object that begins with the name, and is in no other.
        if begin.split_whitespace().collect::<String>() != "\"name\":\"" || around.trim_end().ends_with(':') {
            return None;
        }
        let (keyed, parameters) = (after.contains("\"arguments\""), after.contains("\"parameters\""));
        let tag = around.rfind("<tool_call>").is_some_and(|at| !around[at..].contains("</tool_call>"));
        match (tag, around.contains("[TOOL_CALLS]")) {
            (true, false) if keyed => Some(Dialect::Tagged),
            (false, true) if keyed => Some(Dialect::Listed),
            (false, false) if parameters => Some(Dialect::Bare),
            _ => None,
        }
    }

    /// What comes before calls.
    pub(super) fn opening(self) -> &'static str {
        match self {
            Dialect::Tagged => "<tool_call>",
            Dialect::Bare => "",
            Dialect::Listed => "[TOOL_CALLS]",
        }
    }

    /// The opening as a single id, where it is one.
    pub(super) fn opening_id(self, text: &Text) -> Option<u32> {
        match text.encode(self.opening(), false).ok()?[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    fn arguments(self) -> &'static str {
        if self == Dialect::Bare { "parameters" } else { "arguments" }
    }

    /// A grammar of calls, after their opening; of one only, unless there may be several.
    fn grammar(self, call: &Value, several: bool) -> String {
        let (line, more) = ("(\"\\n\" | \" \")?", if several { "*" } else { "" });
        let calls = match (self, several) {
            (Dialect::Tagged, _) => {
                let rest = format!("{line} \"<tool_call>\" {line} call {line} \"</tool_call>\"");
                let rest = if several { format!(" ({rest}){more}") } else { String::new() };
                format!("{line} call {line} \"</tool_call>\"{rest}")
            }
            (Dialect::Bare, _) => "call".to_owned(),
            (Dialect::Listed, true) => "\" \"? \"[\" call (\", \"? call)* \"]\"".to_owned(),
            (Dialect::Listed, false) => "\" \"? \"[\" call \"]\"".to_owned(),
        };
        format!("calls: {calls}\ncall: %json {call}\n")
    }
}

/// Functions that a request offers.
pub(super) struct Tools {
    pub(super) dialect: Dialect,
    /// As the template is given them.
    pub(super) described: Vec<Value>,
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
    pub(super) fn new(
        described: Vec<Value>,
        choice: Option<Value>,
        several: bool,
        template: Option<&Template>,
    ) -> Result<Option<Tools>, Refusal> {
        let refused = |param: &str, message: String| Err(Refusal::of(param, message));
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
        match template.and_then(Dialect::of) {
            Some(dialect) => Ok(Some(Tools { dialect, described, choice, several })),
            None => refused("tools", "this model's chat template knows no tools".to_owned()),
        }
    }

    /// What the answer has to be: calls, or calls or `answer`.
    pub(super) fn grammar(
        &self,
        answer: Option<Grammar>,
        text: &Text,
        grammars: &Grammars,
    ) -> Result<Grammar, Failure> {
        let offered = self.described.iter().map(|tool| &tool["function"]);
        let offered = offered.filter(|function| match &self.choice {
            Choice::Named(name) => function["name"] == name.as_str(),
            _ => true,
        });
        let calls: Vec<Value> = offered
            .map(|function| {
                let arguments = arguments(function, grammars)?;
                Ok(json!({
                    "type": "object",
                    "properties": { "name": { "const": function["name"] }, self.dialect.arguments(): arguments },
                    "required": ["name", self.dialect.arguments()],
                    "additionalProperties": false,
                }))
            })
            .collect::<Result<_, Failure>>()?;
        let call = with_few_blanks(json!({ "anyOf": calls }));
        let calls = self.dialect.grammar(&call, self.several && !matches!(self.choice, Choice::Named(_)));
        let opening = match self.dialect.opening_id(text) {
            Some(id) => format!("<[{id}]>"),
            None if self.dialect == Dialect::Bare => String::new(),
            None => Value::from(self.dialect.opening()).to_string(),
        };
        Ok(match (&self.choice, answer) {
            (Choice::Auto, None) => Grammar::After {
                opening: self.dialect.opening(),
                opening_id: self.dialect.opening_id(text),
                grammar: format!("start: calls\n{calls}"),
            },
            (Choice::Auto, Some(Grammar::Schema(schema))) => {
                let schema = with_few_blanks(schema);
                Grammar::Lark(format!("start: answer | {opening} calls\nanswer: %json {schema}\n{calls}"))
            }
            (Choice::Auto, Some(_)) => {
                return Err(Failure::misuse("`tools` go with answers in JSON, and not with other grammars"));
            }
            _ => Grammar::Lark(format!("start: {opening} calls\n{calls}")),
        })
    }
}

/// The schema of a function's arguments. One that cannot be followed is no schema at all, unless it is meant strictly.
fn arguments(function: &Value, grammars: &Grammars) -> Result<Value, Failure> {
    let any = json!({ "type": "object" });
    let Some(schema) = function.get("parameters").filter(|schema| !schema.is_null()) else { return Ok(any) };
    let schema = closed(schema);
    match grammars.constraint(&Grammar::Schema(schema.clone())) {
        Ok(_) => Ok(schema),
        Err(Failure::Misuse(message)) if function["strict"] == true => {
            Err(Failure::Misuse(format!("function {}: {message}", function["name"])))
        }
        Err(Failure::Misuse(_)) => Ok(any),
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
pub(super) fn read_arguments(message: &mut Message) {
    let Some(Value::Array(calls)) = message.rest.get_mut("tool_calls") else { return };
    for call in calls {
        let arguments = &mut call["function"]["arguments"];
        if let Some(value) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *arguments = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};

    /// How templates of four families write a call, and one that knows none.
    #[test]
    fn a_template_shows_how_its_model_calls() {
        let calls = |before: &str, call: &str, after: &str| {
            format!(
                "{{% for m in messages %}}{{{{ m.content }}}}{{% if m.tool_calls %}}{before}{{% for c in m.tool_calls %}}\
                 {{% set f = c.function %}}{call}{{% endfor %}}{after}{{% endif %}}{{% endfor %}}"
            )
        };
        let object = |key: &str| {
            format!("{{{{ '{{\"name\": \"' + f.name + '\", \"{key}\": ' }}}}{{{{ f.arguments | tojson }}}}}}")
        };
        let described =
            "{% if tools %}{{ tools | tojson }} as <tool_call>\n{\"name\": <name>}\n</tool_call>{% endif %}";
        for (template, dialect) in [
            (
                calls("", &format!("\n<tool_call>\n{}\n</tool_call>", object("arguments")), ""),
                Some(Dialect::Tagged),
            ),
            (
                described.to_owned()
                    + &calls("", &format!("<tool_call>{}</tool_call>", object("arguments")), ""),
                Some(Dialect::Tagged),
            ),
            (calls("<|start|>assistant\n", &object("parameters"), "<|eot|>"), Some(Dialect::Bare)),
            ("{{ tools | tojson }}".to_owned() + &calls("", &object("parameters"), ""), Some(Dialect::Bare)),
            (
                calls("[TOOL_CALLS] [", "{{ (f | tojson)[:-1] }}, \"id\": \"{{ c.id }}\"}", "]"),
                Some(Dialect::Listed),
            ),
            // The name stands before the object; a call lies in an object of another kind; nothing is made of calls.
            (calls("[TOOL_CALLS]", "{{ f.name }}[ARGS]{{ f.arguments | tojson }}", ""), None),
            (calls("", "{{ c | tojson }}", ""), None),
            ("{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}".to_owned(), None),
            ("{{ raise_exception('no') }}".to_owned(), None),
        ] {
            let read = Template::new(&template, None, Map::new()).unwrap();
            assert_eq!(Dialect::of(&read), dialect, "{template}");
        }
    }

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

    #[test]
    fn calls_are_held_to_names_and_schemas() {
        let environment = ApproximateTokEnv::single_byte_env();
        let mut factory = ParserFactory::new_simple(&environment).unwrap();
        factory.quiet();
        let call = |key: &str| {
            json!({
                "type": "object",
                "properties": { "name": { "const": "f" }, key: { "type": "object", "properties": { "a": { "type": "integer" } },
                    "required": ["a"], "additionalProperties": false } },
                "required": ["name", key], "additionalProperties": false,
            })
        };
        for (dialect, several, text, whole) in [
            (Dialect::Tagged, false, "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", true),
            (Dialect::Tagged, false, "{\"name\":\"f\",\"arguments\":{\"a\":-1}}</tool_call>", true),
            (Dialect::Tagged, false, "{\"name\": \"g", false),
            (Dialect::Tagged, false, "{\"name\": \"f\", \"arguments\": {\"b", false),
            (
                Dialect::Tagged,
                true,
                "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}\n</tool_call>",
                true,
            ),
            (Dialect::Bare, true, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", true),
            (Dialect::Bare, true, "Words", false),
            (Dialect::Listed, false, " [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", true),
            (Dialect::Listed, false, "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {", false),
            (
                Dialect::Listed,
                true,
                "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"f\", \"arguments\": {\"a\": 2}}]",
                true,
            ),
        ] {
            let grammar = dialect.grammar(&with_few_blanks(call(dialect.arguments())), several);
            let grammar = TopLevelGrammar::from_lark(format!("start: calls\n{grammar}"));
            let mut matcher = Matcher::new(factory.create_parser(grammar));
            assert_eq!(matcher.get_error(), None, "{dialect:?}");
            let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
            let taken = matcher.try_consume_tokens(&bytes).unwrap();
            let is_whole = taken == bytes.len() && (matcher.is_stopped() || matcher.is_accepting().unwrap());
            assert_eq!(is_whole, whole, "{dialect:?} {text}: {taken} of {} bytes", bytes.len());
        }
    }
}
