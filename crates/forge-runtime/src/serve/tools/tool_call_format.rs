//! The syntax in which a model writes tool calls.
//!
//! Each model family has its own syntax, and the chat template shows it: the template renders a call in a
//! conversation as the model will write it. If a template does not render calls, tools are rejected.

use crate::text::chat_template::{Conversation, Message, Template};
use crate::text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// A tool call syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolCallFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one after another: Hermes, Qwen.
    Tagged,
    /// `{"name": ..., "parameters": {...}}` and nothing else: Llama 3.
    Bare,
    /// `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`: Mistral.
    Listed,
}

impl ToolCallFormat {
    /// The syntax that a template renders, if it renders calls.
    pub(crate) fn of(template: &Template) -> Option<ToolCallFormat> {
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
                add_generation_prompt: false,
            };
            template.render(&conversation).ok()
        };
        let mut without = caller.clone();
        without.content = Value::Null;
        let text = render(caller).or_else(|| render(without))?;
        let (before, after) = text.split_once("probed")?;
        let (around, begin) = before.rsplit_once('{')?;
        // The object starts with the name and is not nested in another object.
        if begin.split_whitespace().collect::<String>() != "\"name\":\"" || around.trim_end().ends_with(':') {
            return None;
        }
        let (keyed, parameters) = (after.contains("\"arguments\""), after.contains("\"parameters\""));
        let tag = around.rfind("<tool_call>").is_some_and(|at| !around[at..].contains("</tool_call>"));
        match (tag, around.contains("[TOOL_CALLS]")) {
            (true, false) if keyed => Some(ToolCallFormat::Tagged),
            (false, true) if keyed => Some(ToolCallFormat::Listed),
            (false, false) if parameters => Some(ToolCallFormat::Bare),
            _ => None,
        }
    }

    /// The text before calls.
    pub(crate) fn opening(self) -> &'static str {
        match self {
            ToolCallFormat::Tagged => "<tool_call>",
            ToolCallFormat::Bare => "",
            ToolCallFormat::Listed => "[TOOL_CALLS]",
        }
    }

    /// The opening as a single token id, if it is one.
    pub(crate) fn opening_id(self, text: &Tokenizer) -> Option<u32> {
        match text.encode(self.opening(), false).ok()?[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// The key of a call's arguments.
    pub(crate) fn arguments(self) -> &'static str {
        if self == ToolCallFormat::Bare { "parameters" } else { "arguments" }
    }

    /// A grammar of calls after their opening; of a single one unless `several`.
    pub(crate) fn grammar(self, call: &Value, several: bool) -> String {
        let (line, more) = ("(\"\\n\" | \" \")?", if several { "*" } else { "" });
        let calls = match (self, several) {
            (ToolCallFormat::Tagged, _) => {
                let rest = format!("{line} \"<tool_call>\" {line} call {line} \"</tool_call>\"");
                let rest = if several { format!(" ({rest}){more}") } else { String::new() };
                format!("{line} call {line} \"</tool_call>\"{rest}")
            }
            (ToolCallFormat::Bare, _) => "call".to_owned(),
            (ToolCallFormat::Listed, true) => "\" \"? \"[\" call (\", \"? call)* \"]\"".to_owned(),
            (ToolCallFormat::Listed, false) => "\" \"? \"[\" call \"]\"".to_owned(),
        };
        format!("calls: {calls}\ncall: %json {call}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tools::grammar::with_few_blanks;
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};

    /// Four families of templates, and some without calls.
    #[test]
    fn tool_call_formats_are_read_from_the_template() {
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
                Some(ToolCallFormat::Tagged),
            ),
            (
                described.to_owned()
                    + &calls("", &format!("<tool_call>{}</tool_call>", object("arguments")), ""),
                Some(ToolCallFormat::Tagged),
            ),
            (calls("<|start|>assistant\n", &object("parameters"), "<|eot|>"), Some(ToolCallFormat::Bare)),
            (
                "{{ tools | tojson }}".to_owned() + &calls("", &object("parameters"), ""),
                Some(ToolCallFormat::Bare),
            ),
            (
                calls("[TOOL_CALLS] [", "{{ (f | tojson)[:-1] }}, \"id\": \"{{ c.id }}\"}", "]"),
                Some(ToolCallFormat::Listed),
            ),
            // Name before the object; nested call; no calls rendered.
            (calls("[TOOL_CALLS]", "{{ f.name }}[ARGS]{{ f.arguments | tojson }}", ""), None),
            (calls("", "{{ c | tojson }}", ""), None),
            ("{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}".to_owned(), None),
            ("{{ raise_exception('no') }}".to_owned(), None),
        ] {
            let read = Template::new(&template, None, Map::new()).unwrap();
            assert_eq!(ToolCallFormat::of(&read), dialect, "{template}");
        }
    }
    #[test]
    fn tool_calls_are_constrained_to_names_and_schemas() {
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
            (
                ToolCallFormat::Tagged,
                false,
                "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                true,
            ),
            (ToolCallFormat::Tagged, false, "{\"name\":\"f\",\"arguments\":{\"a\":-1}}</tool_call>", true),
            (ToolCallFormat::Tagged, false, "{\"name\": \"g", false),
            (ToolCallFormat::Tagged, false, "{\"name\": \"f\", \"arguments\": {\"b", false),
            (
                ToolCallFormat::Tagged,
                true,
                "\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}\n</tool_call>",
                true,
            ),
            (ToolCallFormat::Bare, true, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", true),
            (ToolCallFormat::Bare, true, "Words", false),
            (ToolCallFormat::Listed, false, " [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", true),
            (ToolCallFormat::Listed, false, "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {", false),
            (
                ToolCallFormat::Listed,
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
