//! `chat`: a conversation in the terminal.
//!
//! The conversation is a list of messages; for each answer the whole of it is rendered by the model's chat template, and
//! the session reads only what it does not hold already. Answers go to standard output, everything else to standard
//! error, so that `echo "Hello" | model chat > answer.txt` gives answers alone. Ctrl-C ends an answer and not the program.

use crate::cli::arguments::Chat;
use crate::cli::command::{Command, Context};
use crate::cli::generate::{account, given, show};
use crate::cli::output::{CommandExit, Outcome, complain, print, remark};
use crate::error::Error;
use crate::session::generation::{FinishReason, GenerationParams};
use crate::session::session::{Generated, Session, no_conversations};
use crate::text::chat_template::{Conversation, Message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Map, Value};
use std::io::{IsTerminal, stderr, stdin};

impl Command for Chat {
    const NAME: &'static str = "chat";

    fn run(&self, context: &Context<'_>) -> Outcome {
        let (program, common, command) = (context.program, context.common, self);
        let setup = common.setup();
        let sampling = command.sampling.sampling(setup.sampling(program)?, program.info.vocabulary)?;
        let seed = command.sampling.seed();
        let variables =
            command.template_variables.iter().map(|text| variable(text)).collect::<Result<_, Error>>()?;
        let messages = match &command.load {
            Some(path) => load(&path.display().to_string())?,
            None => Vec::new(),
        };
        let (text, template) = (setup.text(program), setup.template(program)?);
        if template.is_none() {
            return Err(no_conversations().into());
        }
        let engine = setup.engine(program, None)?;
        text.ready()?;
        let session = Session::new(engine, Some(text), template);
        let session = session.chaining(command.run_ahead.tokens_per_pass);
        let settings = GenerationParams {
            sampling,
            seed,
            count: command.max_tokens.map_or(usize::MAX, |count| count as usize),
            ..GenerationParams::default()
        };
        let mut talk = ChatRepl { session, settings, variables, messages, last: None };
        if let Some(system) = &command.system {
            talk.set_system(system);
        }
        match &command.prompt {
            Some(prompt) => {
                talk.say(given(prompt)?.trim())?;
                remark(&talk.stats());
            }
            None => return talk.converse(program.info.name),
        }
        Ok(true)
    }
}

/// A conversation and what it is held with.
struct ChatRepl {
    session: Session,
    settings: GenerationParams,
    /// Of the template.
    variables: Map<String, Value>,
    messages: Vec<Message>,
    /// What came of the last answer.
    last: Option<Generated>,
}

/// What a line that begins with a slash asks for.
const HELP: &str = "\
/system TEXT  what the model is to keep in mind; without a text, nothing
/reset        begin again
/retry        another answer to the last question
/save FILE    write the conversation as JSON
/load FILE    go on with one that was written
/stats        how fast the last answer was, and how much room is left
/quit         end; so does Ctrl-D. Ctrl-C ends an answer
//TEXT        send a message that begins with a slash: //usr is /usr
TEXT \\       a backslash at the end of a line: the message goes on in the next line";

impl ChatRepl {
    /// Reads lines and answers them. Where nobody watches, it tells in the end whether all of them were right.
    fn converse(&mut self, name: &str) -> Outcome {
        let is_watched = stdin().is_terminal() && stderr().is_terminal();
        if is_watched {
            remark(&format!(
                "{name} on {}. /help lists commands; a line that ends with \\ goes on in the next.",
                self.session.describe()
            ));
        }
        let mut all_right = true;
        let mut editor = DefaultEditor::new().map_err(|error| Error::runtime(error.to_string()))?;
        // Lines of a message that goes on in the next.
        let mut pending = String::new();
        loop {
            let prompt = if pending.is_empty() { "> " } else { "… " };
            let line = match editor.readline(if is_watched { prompt } else { "" }) {
                Ok(line) => line,
                // The last line of a file may end with a backslash.
                Err(ReadlineError::Eof) if !pending.is_empty() => String::new(),
                Err(ReadlineError::Eof) => return Ok(is_watched || all_right),
                Err(ReadlineError::Interrupted) => {
                    pending.clear();
                    remark(&"Ctrl-D or /quit ends the conversation.");
                    continue;
                }
                Err(error) => return Err(Error::runtime(format!("standard input: {error}")).into()),
            };
            if let Some(begun) = line.strip_suffix('\\') {
                pending.push_str(begun);
                pending.push('\n');
                continue;
            }
            let line = std::mem::take(&mut pending) + &line;
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let _ = editor.add_history_entry(line);
            let outcome = match Typed::of(line) {
                Typed::Command("quit" | "exit") => return Ok(is_watched || all_right),
                Typed::Command(asked) => self.obey(asked),
                Typed::Message(text) => self.say(text),
            };
            match outcome {
                // What one message did wrong does not end the conversation.
                Err(CommandExit::Failed(Error::Usage(message))) => {
                    all_right = false;
                    complain(&message);
                }
                other => other?,
            }
        }
    }

    /// Answers a message.
    fn say(&mut self, text: &str) -> Result<(), CommandExit> {
        self.messages.push(Message::user(text));
        let answered = self.answer();
        if answered.is_err() {
            self.messages.pop();
        }
        answered
    }

    /// Has the model take its turn.
    fn answer(&mut self) -> Result<(), CommandExit> {
        let ChatRepl { session, settings, variables, messages, .. } = self;
        let conversation = Conversation { messages, tools: &[], variables, answer: true };
        let prompt = session.prompt(&conversation)?;
        let written = show(session, &prompt, settings.clone(), true)?;
        print("\n")?;
        match written.end {
            FinishReason::Context => {
                remark(&"The context is full: /reset begins again, --ctx-size makes more room.")
            }
            FinishReason::Count => {
                remark(&format!("The answer was cut at {} ids (--count).", settings.count))
            }
            _ => {}
        }
        // The next answer is not to be made of the same dice.
        settings.seed = settings.seed.wrapping_add(1);
        messages.push(Message::assistant(written.text.clone()));
        self.last = Some(written);
        Ok(())
    }

    /// Does what a line with a slash asks for.
    fn obey(&mut self, asked: &str) -> Result<(), CommandExit> {
        let (word, rest) = asked.split_once(char::is_whitespace).unwrap_or((asked, ""));
        let rest = rest.trim();
        match word {
            "help" => remark(&HELP),
            "stats" => remark(&self.stats()),
            "system" => {
                self.set_system(rest);
                remark(&match rest {
                    "" => "system message removed".to_owned(),
                    _ => format!("system message set, {} characters", rest.chars().count()),
                });
            }
            "reset" => self.messages.retain(|message| message.role == "system"),
            "retry" => return self.retry(),
            "save" => {
                save(rest, &self.messages)?;
                remark(&format!("{} saved to {rest}", counted(&self.messages)));
            }
            "load" => {
                self.messages = load(rest)?;
                remark(&format!("{} loaded from {rest}", counted(&self.messages)));
            }
            _ => {
                let advice = "/help lists commands, and // sends a message that begins with a slash";
                return Err(Error::usage(format!("/{word}: unknown command; {advice}")).into());
            }
        }
        Ok(())
    }

    /// Answers the last question again.
    fn retry(&mut self) -> Result<(), CommandExit> {
        let is_answered = self.messages.last().is_some_and(|message| message.role == "assistant");
        if !is_answered {
            return Err(Error::usage("there is no answer yet").into());
        }
        let before = self.messages.pop();
        let answered = self.answer();
        if answered.is_err() {
            self.messages.extend(before);
        }
        answered
    }

    /// Puts a message before all others, or takes it away.
    fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| message.role != "system");
        if !text.is_empty() {
            self.messages.insert(0, Message::system(text));
        }
    }

    fn stats(&self) -> String {
        let context = self.session.context();
        match &self.last {
            Some(last) => format!("{} · {} of {context} positions", account(last), self.session.length()),
            None => format!("nothing has been said; {context} positions"),
        }
    }
}

/// A line of a conversation.
#[derive(Debug, PartialEq)]
enum Typed<'a> {
    /// What follows the slash.
    Command(&'a str),
    /// What is said to the model.
    Message(&'a str),
}

impl Typed<'_> {
    /// A slash begins a command, and two a message that begins with one.
    fn of(line: &str) -> Typed<'_> {
        match line.strip_prefix('/') {
            Some(message) if message.starts_with('/') => Typed::Message(message),
            Some(command) => Typed::Command(command),
            None => Typed::Message(line),
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

/// A variable of the template: a name and JSON, or else text.
fn variable(text: &str) -> Result<(String, Value), Error> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        Error::usage(format!("--chat-template-kwarg {text}: a name and a value are wanted, such as a=true"))
    })?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

fn save(path: &str, messages: &[Message]) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::usage("/save wants the name of a file"));
    }
    let text = serde_json::to_string_pretty(messages).map_err(|error| Error::runtime(error.to_string()))?;
    std::fs::write(path, text + "\n").map_err(|error| Error::usage(format!("{path}: {error}")))
}

fn load(path: &str) -> Result<Vec<Message>, Error> {
    if path.is_empty() {
        return Err(Error::usage("/load wants the name of a file"));
    }
    let trouble = |what: String| Error::usage(format!("{path}: {what}"));
    let text = std::fs::read(path).map_err(|error| trouble(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| trouble(format!("is not a list of messages: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_begins_a_command_and_two_begin_a_message() {
        for (line, typed) in [
            ("/help", Typed::Command("help")),
            ("/save a b", Typed::Command("save a b")),
            ("//usr/bin", Typed::Message("/usr/bin")),
            ("a/b", Typed::Message("a/b")),
        ] {
            assert_eq!(Typed::of(line), typed);
        }
    }
}
