//! `chat`: a chat in the terminal.
//!
//! The chat template renders the whole conversation for each reply; the session prefills only tokens that are
//! not in the KV cache. Replies go to standard output and everything else to standard error, so
//! `echo "Hello" | model chat > reply.txt` writes the reply alone. Ctrl-C stops a reply, not the program.

use crate::cli::arguments::Chat;
use crate::cli::command::{Command, Context};
use crate::cli::commands::generate::{read_prompt, show, summary};
use crate::cli::output::{CommandExit, Outcome, log_info, print, print_error};
use crate::session::generation::{FinishReason, GenerationParams};
use crate::session::session::{Generated, Session, missing_chat_template};
use crate::text::chat_template::{Conversation, Message};
use forge_device::error::Error;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Map, Value};
use std::io::{IsTerminal, stderr, stdin};

impl Command for Chat {
    const NAME: &'static str = "chat";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let setup = common.load_options();
        let sampling = command.sampling.sampling(setup.sampling(program)?, program.info.vocabulary)?;
        let seed = command.sampling.seed();
        let variables =
            command.template_variables.iter().map(|text| variable(text)).collect::<Result<_, Error>>()?;
        let messages = match &command.load {
            Some(path) => load(&path.display().to_string())?,
            None => Vec::new(),
        };
        let (text, template) = (setup.tokenizer(program), setup.template(program)?);
        if template.is_none() {
            return Err(missing_chat_template().into());
        }
        let engine = setup.engine(program, None)?;
        text.wait_ready()?;
        let session = Session::new(engine, Some(text), template);
        let session = session.with_tokens_per_pass(command.run_ahead.tokens_per_pass);
        let settings = GenerationParams {
            sampling,
            seed,
            max_tokens: command.max_tokens.map_or(usize::MAX, |count| count as usize),
            ..GenerationParams::default()
        };
        let mut repl = ChatRepl { session, settings, variables, messages, last: None };
        if let Some(system) = &command.system {
            repl.set_system(system);
        }
        match &command.prompt {
            Some(prompt) => {
                repl.send(read_prompt(prompt)?.trim())?;
                log_info(&repl.stats());
            }
            None => return repl.converse(program.info.name),
        }
        Ok(true)
    }
}

/// State of the interactive loop.
struct ChatRepl {
    session: Session,
    settings: GenerationParams,
    /// Variables of the chat template.
    variables: Map<String, Value>,
    messages: Vec<Message>,
    /// The last reply and its timings.
    last: Option<Generated>,
}

/// Output of `/help`.
const HELP: &str = "\
/system TEXT  set the system prompt; without TEXT, remove it
/reset        clear the conversation
/retry        regenerate the last reply
/save FILE    write the conversation as JSON
/load FILE    continue a saved conversation
/stats        speed of the last reply, and tokens in the context
/quit         exit, like Ctrl-D; Ctrl-C stops a reply
//TEXT        send a message that starts with a slash: //usr is /usr
TEXT \\       a backslash at the end of a line continues the message";

impl ChatRepl {
    /// Reads lines and replies to them. Without a terminal, the result says whether every line succeeded.
    fn converse(&mut self, name: &str) -> Outcome {
        let is_interactive = stdin().is_terminal() && stderr().is_terminal();
        if is_interactive {
            log_info(&format!(
                "{name} on {}. /help lists commands; \\ at the end of a line continues the message.",
                self.session.describe()
            ));
        }
        let mut all_right = true;
        let mut editor = DefaultEditor::new().map_err(|error| Error::runtime(error.to_string()))?;
        // Lines of an unfinished message.
        let mut pending = String::new();
        loop {
            let prompt = if pending.is_empty() { "> " } else { "… " };
            let line = match editor.readline(if is_interactive { prompt } else { "" }) {
                Ok(line) => line,
                // The last line of the input may end with a backslash.
                Err(ReadlineError::Eof) if !pending.is_empty() => String::new(),
                Err(ReadlineError::Eof) => return Ok(is_interactive || all_right),
                Err(ReadlineError::Interrupted) => {
                    pending.clear();
                    log_info(&"use Ctrl-D or /quit to exit");
                    continue;
                }
                Err(error) => return Err(Error::runtime(format!("standard input: {error}")).into()),
            };
            if let Some(part) = line.strip_suffix('\\') {
                pending.push_str(part);
                pending.push('\n');
                continue;
            }
            let line = std::mem::take(&mut pending) + &line;
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let _ = editor.add_history_entry(line);
            let outcome = match InputLine::of(line) {
                InputLine::Command("quit" | "exit") => return Ok(is_interactive || all_right),
                InputLine::Command(command) => self.run_command(command),
                InputLine::Message(text) => self.send(text),
            };
            match outcome {
                // A wrong message does not end the conversation.
                Err(CommandExit::Failed(Error::Usage(message))) => {
                    all_right = false;
                    print_error(&message);
                }
                other => other?,
            }
        }
    }

    /// Adds a user message and generates the reply.
    fn send(&mut self, text: &str) -> Result<(), CommandExit> {
        self.messages.push(Message::user(text));
        let outcome = self.generate_reply();
        if outcome.is_err() {
            self.messages.pop();
        }
        outcome
    }

    /// Generates the assistant's reply to the conversation.
    fn generate_reply(&mut self) -> Result<(), CommandExit> {
        let ChatRepl { session, settings, variables, messages, .. } = self;
        let conversation = Conversation { messages, tools: &[], variables, add_generation_prompt: true };
        let prompt = session.prompt(&conversation)?;
        let generated = show(session, &prompt, settings.clone(), true)?;
        print("\n")?;
        match generated.finish_reason {
            FinishReason::Context => log_info(&"the context is full: use /reset, or a larger --ctx-size"),
            FinishReason::Length => {
                log_info(&format!("the reply was cut at {} tokens (--max-tokens)", settings.max_tokens))
            }
            _ => {}
        }
        // The next reply uses another seed.
        settings.seed = settings.seed.wrapping_add(1);
        messages.push(Message::assistant(generated.text.clone()));
        self.last = Some(generated);
        Ok(())
    }

    /// Runs a slash command.
    fn run_command(&mut self, command: &str) -> Result<(), CommandExit> {
        let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match word {
            "help" => log_info(&HELP),
            "stats" => log_info(&self.stats()),
            "system" => {
                self.set_system(rest);
                log_info(&match rest {
                    "" => "system prompt removed".to_owned(),
                    _ => format!("system prompt set, {} characters", rest.chars().count()),
                });
            }
            "reset" => self.messages.retain(|message| message.role == "system"),
            "retry" => return self.retry(),
            "save" => {
                save(rest, &self.messages)?;
                log_info(&format!("{} saved to {rest}", counted(&self.messages)));
            }
            "load" => {
                self.messages = load(rest)?;
                log_info(&format!("{} loaded from {rest}", counted(&self.messages)));
            }
            _ => {
                let advice = "/help lists commands; // starts a message with a slash";
                return Err(Error::usage(format!("/{word}: unknown command; {advice}")).into());
            }
        }
        Ok(())
    }

    /// Regenerates the last reply.
    fn retry(&mut self) -> Result<(), CommandExit> {
        let has_reply = self.messages.last().is_some_and(|message| message.role == "assistant");
        if !has_reply {
            return Err(Error::usage("there is no reply yet").into());
        }
        let before = self.messages.pop();
        let outcome = self.generate_reply();
        if outcome.is_err() {
            self.messages.extend(before);
        }
        outcome
    }

    /// Sets the system prompt, or removes it if `text` is empty.
    fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| message.role != "system");
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
        }
    }

    fn stats(&self) -> String {
        let context = self.session.context();
        match &self.last {
            Some(last) => {
                format!("{} · context {} of {context} tokens", summary(last), self.session.length())
            }
            None => format!("no reply yet · context 0 of {context} tokens"),
        }
    }
}

/// An input line.
#[derive(Debug, PartialEq)]
enum InputLine<'a> {
    /// A command, without its slash.
    Command(&'a str),
    /// A user message.
    Message(&'a str),
}

impl InputLine<'_> {
    /// Parses a line: `/` starts a command, `//` a message that starts with a slash.
    fn of(line: &str) -> InputLine<'_> {
        match line.strip_prefix('/') {
            Some(message) if message.starts_with('/') => InputLine::Message(message),
            Some(command) => InputLine::Command(command),
            None => InputLine::Message(line),
        }
    }
}

/// `1 message`, `3 messages`.
fn counted(messages: &[Message]) -> String {
    match messages.len() {
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    }
}

/// Parses `NAME=VALUE` for the chat template. The value is JSON, or text if it is not valid JSON.
fn variable(text: &str) -> Result<(String, Value), Error> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        Error::usage(format!(
            "--chat-template-kwarg {text}: expected NAME=VALUE, such as enable_thinking=false"
        ))
    })?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

fn save(path: &str, messages: &[Message]) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::usage("/save needs a file name"));
    }
    let text = serde_json::to_string_pretty(messages).map_err(|error| Error::runtime(error.to_string()))?;
    std::fs::write(path, text + "\n").map_err(|error| Error::usage(format!("{path}: {error}")))
}

fn load(path: &str) -> Result<Vec<Message>, Error> {
    if path.is_empty() {
        return Err(Error::usage("/load needs a file name"));
    }
    let trouble = |what: String| Error::usage(format!("{path}: {what}"));
    let text = std::fs::read(path).map_err(|error| trouble(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| trouble(format!("not a list of messages: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_starts_a_command_and_two_a_message() {
        for (line, typed) in [
            ("/help", InputLine::Command("help")),
            ("/save a b", InputLine::Command("save a b")),
            ("//usr/bin", InputLine::Message("/usr/bin")),
            ("a/b", InputLine::Message("a/b")),
        ] {
            assert_eq!(InputLine::of(line), typed);
        }
    }
}
