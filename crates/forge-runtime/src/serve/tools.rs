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
        let before = &text[..text.find("probed")?];
        let call = &text[before.rfind('{')?..];
        let of_list = before.rfind("[TOOL_CALLS]").is_some() && call.contains("\"arguments\"");
        let of_tag = before.rfind("<tool_call>").is_some_and(|at| !before[at..].contains("</tool_call>"));
        match (of_list, of_tag, call.contains("\"parameters\"")) {
            (true, ..) => Some(Dialect::Listed),
            (_, true, _) if call.contains("\"arguments\"") => Some(Dialect::Tagged),
            (_, false, true) => Some(Dialect::Bare),
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
    match grammars.constraint(&Grammar::Schema(schema.clone())) {
        Ok(_) => Ok(schema.clone()),
        Err(Failure::Misuse(message)) if function["strict"] == true => {
            Err(Failure::Misuse(format!("function {}: {message}", function["name"])))
        }
        Err(Failure::Misuse(_)) => Ok(any),
        Err(failure) => Err(failure),
    }
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
