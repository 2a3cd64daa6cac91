//! Conversations to text: the checkpoint's own chat template.
//!
//! A template is a Jinja program in `chat_template.jinja`, or in `tokenizer_config.json` beside the texts of the special
//! tokens that it names. It is rendered as transformers renders it: lines of blocks leave no trace, strings and
//! dictionaries have Python's methods, JSON is spelled as Python spells it, and a template may refuse a conversation by
//! `raise_exception`. Nothing is added to what it gives: a rendered conversation is encoded without special tokens, for
//! the template has written them.

pub(crate) mod json;
pub(crate) mod methods;
pub(crate) mod python;
pub(crate) mod source;

use crate::error::{Error, panic_message};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, merge_maps};
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::path::Path;
use std::sync::LazyLock;

/// One turn of a conversation, as OpenAI's clients write it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said: text for nearly all.
    #[serde(default)]
    pub content: Json,
    /// Whatever else the message has, for the template to read: `tool_calls`, `name`, ...
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

impl Message {
    /// A message with text in it.
    pub fn new(role: &str, text: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: Json::String(text.into()), rest: Map::new() }
    }

    /// What the user says.
    pub fn user(text: impl Into<String>) -> Message {
        Message::new("user", text)
    }

    /// What the model has said.
    pub fn assistant(text: impl Into<String>) -> Message {
        Message::new("assistant", text)
    }

    /// What the model is to keep in mind.
    pub fn system(text: impl Into<String>) -> Message {
        Message::new("system", text)
    }
}

/// What a template is given.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Turn by turn.
    pub messages: &'a [Message],
    /// Descriptions of functions that the model may call, as OpenAI's clients write them.
    pub tools: &'a [Json],
    /// More variables that the template may know, such as `enable_thinking`.
    pub variables: &'a Map<String, Json>,
    /// Whether the text is to end where an answer begins.
    pub answer: bool,
}

impl<'a> Conversation<'a> {
    /// Messages that the model is to answer; no tools, and no variables.
    pub fn new(messages: &'a [Message]) -> Conversation<'a> {
        static NONE: LazyLock<Map<String, Json>> = LazyLock::new(Map::new);
        Conversation { messages, tools: &[], variables: &NONE, answer: true }
    }
}

/// A chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// Whether a conversation with tools has a template of its own.
    has_tool_use: bool,
    specials: Map<String, Json>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl Template {
    /// The template of the checkpoint whose files are in `directory`; none if it has none.
    pub fn read(directory: &Path) -> Result<Option<Template>, Error> {
        Template::find(|file| text(&directory.join(file)))
    }

    /// The template of a checkpoint whose files have the texts that `open` gives; none if it has none.
    pub fn find(open: impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Option<Template>, Error> {
        let json = |file: &str| match open(file)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Error::runtime(format!("{file} is not JSON: {error}"))),
            None => Ok(Json::Null),
        };
        let config = json("tokenizer_config.json")?;
        let specials = specials(&config);
        if let Some(source) = open("chat_template.jinja")? {
            return Template::new(&source, None, specials).map(Some);
        }
        let older = json("chat_template.json")?;
        for holder in [&config, &older] {
            match &holder["chat_template"] {
                Json::String(source) => return Template::new(source, None, specials).map(Some),
                Json::Array(named) => {
                    let find = |name: &str| {
                        let entry = named.iter().find(|entry| entry["name"] == name)?;
                        entry["template"].as_str()
                    };
                    if let Some(source) = find(DEFAULT) {
                        return Template::new(source, find(TOOL_USE), specials).map(Some);
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// A template from its text, another from `tool_use` for conversations with tools, and the texts of special tokens
    /// by the names that templates have for them (`bos_token`).
    pub fn new(source: &str, tool_use: Option<&str>, specials: Map<String, Json>) -> Result<Template, Error> {
        let mut environment = environment()?;
        for (name, source) in [(DEFAULT, Some(source)), (TOOL_USE, tool_use)] {
            if let Some(source) = source {
                on_a_high_stack(|| {
                    environment.add_template_owned(name, crate::text::chat_template::source::prepare(source))
                })?
                .map_err(|error| Error::runtime(format!("the chat template cannot be read: {error:#}")))?;
            }
        }
        Ok(Template { environment, has_tool_use: tool_use.is_some(), specials })
    }

    /// The conversation as the model reads it.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, Error> {
        let failed = |error: JinjaError| {
            let refused = error.kind() == ErrorKind::InvalidOperation && error.detail().is_some();
            let detail = error.detail().unwrap_or_default().to_owned();
            let message = match detail.strip_prefix(RAISED) {
                Some(raised) if refused => format!("the model's chat template refuses this: {raised}"),
                _ => format!("the chat template cannot be rendered: {error:#}"),
            };
            Error::usage(message)
        };
        let Conversation { messages, tools, variables, answer } = *conversation;
        let name = if self.has_tool_use && !tools.is_empty() { TOOL_USE } else { DEFAULT };
        let of = |map: &Map<String, Json>| Value::from(Serde(map));
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) };
        let given = context! {
            messages => Value::from(Serde(messages)),
            tools,
            documents => Value::from(()),
            add_generation_prompt => answer,
            ..merge_maps([of(variables), of(&self.specials)]),
        };
        let template = self.environment.get_template(name).map_err(failed)?;
        on_a_high_stack(|| template.render(given))?.map_err(failed)
    }
}

/// What marks a message that a template raised.
const RAISED: &str = "raised: ";

/// Templates nest as deep as the library lets them, which takes more than the stack of a server's thread.
const STACK: usize = 64 << 20;

/// What comes of work that goes deep.
fn on_a_high_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| Error::runtime(format!("the chat template has no thread: {error}")))?;
        thread.join().map_err(|panic| {
            Error::runtime(format!("the chat template cannot be used: {}", panic_message(&*panic)))
        })
    })
}

/// Instructions that a template may take: thousands of messages' worth, and less than a second's.
const FUEL: u64 = 3_000_000;

fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|error| Error::runtime(error.to_string()))?);
    crate::text::chat_template::python::install(&mut environment);
    environment.add_filter("tojson", crate::text::chat_template::json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, JinjaError> {
        Err(JinjaError::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, JinjaError> {
        use std::fmt::Write;
        let mut text = String::new();
        match write!(text, "{}", chrono::Local::now().format(&format)) {
            Ok(()) => Ok(text),
            Err(_) => Err(JinjaError::new(
                ErrorKind::InvalidOperation,
                format!("{format:?} is not a format of times"),
            )),
        }
    });
    Ok(environment)
}

/// The texts of special tokens, which the file gives as strings or as objects with a content.
fn specials(config: &Json) -> Map<String, Json> {
    let entries = config.as_object().into_iter().flatten();
    let texts = entries.filter(|(name, _)| name.ends_with("_token")).filter_map(|(name, value)| {
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        Some((name.clone(), Json::from(text)))
    });
    texts.collect()
}

/// A file's text; none if there is no such file.
fn text(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::runtime(format!("{}: cannot be read: {error}", path.display()))),
    }
}
