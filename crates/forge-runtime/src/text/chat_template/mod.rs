//! Chat templates: render a conversation with the checkpoint's Jinja template.
//!
//! The template is in `chat_template.jinja`, or in `tokenizer_config.json` together with the special tokens
//! that it names. It is rendered as transformers does: block lines leave no whitespace, strings and
//! dictionaries have Python's methods, JSON has Python's format, and `raise_exception` rejects a
//! conversation. The result is encoded without adding special tokens, because the template contains them.

pub(crate) mod json;
pub(crate) mod methods;
pub(crate) mod python;
pub(crate) mod source;

use forge_device::error::{Error, panic_message};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, merge_maps};
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::path::Path;
use std::sync::LazyLock;

/// A message of a conversation, in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The role: `system`, `user`, `assistant`, `tool`, or another that the template supports.
    pub role: String,
    /// The content; usually text.
    #[serde(default)]
    pub content: Json,
    /// Other fields of the message, such as `tool_calls` or `name`.
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

impl Message {
    /// A message with text content.
    pub fn new(role: &str, text: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: Json::String(text.into()), rest: Map::new() }
    }

    /// A user message.
    pub fn user(text: impl Into<String>) -> Message {
        Message::new("user", text)
    }

    /// An assistant message.
    pub fn assistant(text: impl Into<String>) -> Message {
        Message::new("assistant", text)
    }

    /// A system message.
    pub fn system(text: impl Into<String>) -> Message {
        Message::new("system", text)
    }
}

/// The input of a template.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// Function tools in OpenAI's format.
    pub tools: &'a [Json],
    /// Further template variables, such as `enable_thinking`.
    pub variables: &'a Map<String, Json>,
    /// Whether to add the generation prompt, after which the reply starts.
    pub add_generation_prompt: bool,
}

impl<'a> Conversation<'a> {
    /// A conversation to reply to, without tools or variables.
    pub fn new(messages: &'a [Message]) -> Conversation<'a> {
        static NONE: LazyLock<Map<String, Json>> = LazyLock::new(Map::new);
        Conversation { messages, tools: &[], variables: &NONE, add_generation_prompt: true }
    }
}

/// A chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// Whether conversations with tools have their own template.
    has_tool_use: bool,
    specials: Map<String, Json>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl Template {
    /// The template of the model in `directory`, if it has one.
    pub fn read(directory: &Path) -> Result<Option<Template>, Error> {
        Template::find(|file| text(&directory.join(file)))
    }

    /// The template of a checkpoint, if it has one. `open` returns the text of a file.
    pub fn find(open: impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Option<Template>, Error> {
        let json = |file: &str| match open(file)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Error::runtime(format!("{file} is not valid JSON: {error}"))),
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

    /// Compiles a template. `tool_use` is the template for conversations with tools; `specials` are the
    /// special tokens by their template names (`bos_token`).
    pub fn new(source: &str, tool_use: Option<&str>, specials: Map<String, Json>) -> Result<Template, Error> {
        let mut environment = environment()?;
        for (name, source) in [(DEFAULT, Some(source)), (TOOL_USE, tool_use)] {
            if let Some(source) = source {
                on_large_stack(|| {
                    environment.add_template_owned(name, crate::text::chat_template::source::prepare(source))
                })?
                .map_err(|error| Error::runtime(format!("invalid chat template: {error:#}")))?;
            }
        }
        Ok(Template { environment, has_tool_use: tool_use.is_some(), specials })
    }

    /// The rendered conversation.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, Error> {
        let render_error = |error: JinjaError| {
            let is_raised = error.kind() == ErrorKind::InvalidOperation && error.detail().is_some();
            let detail = error.detail().unwrap_or_default().to_owned();
            let message = match detail.strip_prefix(RAISED) {
                Some(raised) if is_raised => format!("rejected by the model's chat template: {raised}"),
                _ => format!("the chat template cannot be rendered: {error:#}"),
            };
            Error::usage(message)
        };
        let Conversation { messages, tools, variables, add_generation_prompt: answer } = *conversation;
        let name = if self.has_tool_use && !tools.is_empty() { TOOL_USE } else { DEFAULT };
        let of = |map: &Map<String, Json>| Value::from(Serde(map));
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) };
        let input = context! {
            messages => Value::from(Serde(messages)),
            tools,
            documents => Value::from(()),
            add_generation_prompt => answer,
            ..merge_maps([of(variables), of(&self.specials)]),
        };
        let template = self.environment.get_template(name).map_err(render_error)?;
        on_large_stack(|| template.render(input))?.map_err(render_error)
    }
}

/// The prefix of messages from `raise_exception`.
const RAISED: &str = "raised: ";

/// Stack size for rendering. Deeply nested templates need more than a server thread has.
const STACK: usize = 64 << 20;

/// Runs `work` on a thread with a large stack.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| {
            Error::runtime(format!("cannot start a thread for the chat template: {error}"))
        })?;
        thread
            .join()
            .map_err(|panic| Error::runtime(format!("the chat template failed: {}", panic_message(&*panic))))
    })
}

/// Instruction limit of a template: enough for thousands of messages, and less than a second.
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
            Err(_) => {
                Err(JinjaError::new(ErrorKind::InvalidOperation, format!("invalid time format {format:?}")))
            }
        }
    });
    Ok(environment)
}

/// The special tokens, which the file has as strings or as objects with `content`.
fn specials(config: &Json) -> Map<String, Json> {
    let entries = config.as_object().into_iter().flatten();
    let texts = entries.filter(|(name, _)| name.ends_with("_token")).filter_map(|(name, value)| {
        let text = value.as_str().or_else(|| value["content"].as_str())?;
        Some((name.clone(), Json::from(text)))
    });
    texts.collect()
}

/// The text of a file; `None` if it does not exist.
fn text(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::runtime(format!("{}: cannot be read: {error}", path.display()))),
    }
}
