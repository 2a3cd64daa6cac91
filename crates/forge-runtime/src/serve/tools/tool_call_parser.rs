//! Calls in a text that comes piece by piece, told from words as soon as they can be.

use crate::serve::tools::json_stream::JsonScanner;
use crate::serve::tools::tool_call_format::ToolCallFormat;

/// What a piece of text turns out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Words.
    Words(String),
    /// A call begins.
    Call { name: String },
    /// More of the arguments of the call that began last.
    Arguments(String),
}

/// Reads one text.
#[derive(Clone, Debug)]
pub(crate) struct ToolCallParser {
    dialect: ToolCallFormat,
    opening_id: Option<u32>,
    state: State,
    /// Text that may be the beginning of something.
    held: String,
    /// Whether anything has been said.
    is_begun: bool,
    /// Whether nothing has been said since a call.
    is_after_call: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Words, or calls to come.
    Words,
    /// Between calls: what comes is a call, or what stands between two, or words again.
    Between,
    /// Inside a call.
    Inside(JsonScanner),
}

impl ToolCallParser {
    /// For a text whose model writes calls so, and opens them with that id, if it is one.
    pub(crate) fn new(dialect: ToolCallFormat, opening_id: Option<u32>) -> ToolCallParser {
        ToolCallParser {
            dialect,
            opening_id,
            state: State::Words,
            held: String::new(),
            is_begun: false,
            is_after_call: false,
        }
    }

    /// Takes a piece: an id, and the text that came of it.
    pub(crate) fn push(&mut self, id: Option<u32>, text: &str) -> Vec<Segment> {
        let mut parts = Vec::new();
        // An opening that is a special token has no text.
        let is_opened = id.is_some() && id == self.opening_id && matches!(self.state, State::Words);
        if is_opened && !text.contains(self.dialect.opening()) {
            self.words(&mut parts, true);
            self.state = State::Between;
        }
        self.held.push_str(text);
        self.read(&mut parts);
        parts
    }

    /// What is left when the text has ended.
    pub(crate) fn finish(&mut self) -> Vec<Segment> {
        let mut parts = Vec::new();
        match &self.state {
            State::Words => self.words(&mut parts, false),
            // A call that was cut before it had a name was never one.
            State::Inside(object) if object.name.is_none() => parts.push(Segment::Words(object.text.clone())),
            State::Between | State::Inside(_) => {}
        }
        parts
    }

    fn read(&mut self, parts: &mut Vec<Segment>) {
        loop {
            match &mut self.state {
                State::Words if self.dialect == ToolCallFormat::Bare => {
                    let begin = self.held.trim_start();
                    if self.is_begun || !(begin.is_empty() || begin.starts_with('{')) {
                        return self.words(parts, false);
                    }
                    if begin.is_empty() {
                        return;
                    }
                    self.held = begin.to_owned();
                    self.state = State::Between;
                }
                State::Words => {
                    let opening = self.dialect.opening();
                    if let Some(at) = self.held.find(opening) {
                        let rest = self.held.split_off(at + opening.len());
                        self.held.truncate(at);
                        self.words(parts, true);
                        self.held = rest;
                        self.state = State::Between;
                        continue;
                    }
                    // What may be the beginning of an opening, and the blanks before it, are held back.
                    let keep = (0..opening.len()).rev().find(|&count| self.held.ends_with(&opening[..count]));
                    let words = self.held.len() - keep.unwrap_or(0);
                    let words = self.held[..words].trim_end().len();
                    let held = self.held.split_off(words);
                    self.words(parts, false);
                    self.held = held;
                    return;
                }
                State::Between => {
                    let Some(first) = self.held.chars().find(|letter| !" \n\t\r,[]".contains(*letter)) else {
                        return;
                    };
                    if first == '{' {
                        self.held = self.held[self.held.find('{').unwrap_or(0)..].to_owned();
                        self.state = State::Inside(JsonScanner::new(self.dialect));
                    } else {
                        let closing = "</tool_call>";
                        let text =
                            self.held.trim_start_matches([' ', '\n', '\t', '\r', ',', '[', ']']).to_owned();
                        if self.dialect == ToolCallFormat::Tagged
                            && closing.starts_with(&text)
                            && text.len() < closing.len()
                        {
                            return;
                        }
                        self.held = text.strip_prefix(closing).map_or(text.clone(), str::to_owned);
                        self.state = State::Words;
                        self.is_after_call = true;
                        if self.held.is_empty() {
                            return;
                        }
                    }
                }
                State::Inside(object) => {
                    let text = std::mem::take(&mut self.held);
                    for (at, letter) in text.char_indices() {
                        if object.push(letter) {
                            self.held = text[at + letter.len_utf8()..].to_owned();
                            object.tell(parts);
                            if object.name.is_none() {
                                parts.push(Segment::Words(object.text.clone()));
                            }
                            self.is_begun = true;
                            self.state = State::Between;
                            break;
                        }
                    }
                    match &mut self.state {
                        State::Inside(object) => return object.tell(parts),
                        _ if self.held.is_empty() => return,
                        _ => {}
                    }
                }
            }
        }
    }

    /// Says the words that are held; without the blanks at their end if a call follows, or at their beginning if one has
    /// come before.
    fn words(&mut self, parts: &mut Vec<Segment>, before_call: bool) {
        let held = std::mem::take(&mut self.held);
        let words = if before_call { held.trim_end() } else { &held };
        let words = if self.is_after_call { words.trim_start() } else { words };
        if !words.is_empty() {
            (self.is_begun, self.is_after_call) = (true, false);
            parts.push(Segment::Words(words.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text gives, in pieces of `size` letters: words, and calls as `name(arguments)`.
    fn read(dialect: ToolCallFormat, text: &str, size: usize) -> String {
        let mut calls = ToolCallParser::new(dialect, None);
        let letters: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in letters.chunks(size) {
            parts.extend(calls.push(None, &piece.iter().collect::<String>()));
        }
        parts.extend(calls.finish());
        let mut told = String::new();
        for part in parts {
            match part {
                Segment::Words(words) => told.push_str(&words),
                Segment::Call { name } => told.push_str(&format!("|{name}:")),
                Segment::Arguments(arguments) => told.push_str(&arguments),
            }
        }
        told
    }

    #[test]
    fn calls_are_told_from_words_however_they_come() {
        use ToolCallFormat::{Bare, Listed, Tagged};
        for (dialect, text, told) in [
            (Tagged, "Just words.", "Just words."),
            (Tagged, "a < b <tool", "a < b <tool"),
            (
                Tagged,
                "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>",
                "I look.|f:{\"a\": \"}\\\"{\"}",
            ),
            (
                Tagged,
                "<tool_call>{\"arguments\": {\"x\": [1, {}]}, \"name\": \"f\"}</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":{}}\n</tool_call>\nDone.",
                "|f:{\"x\": [1, {}]}|g:{}Done.",
            ),
            // Cut in the middle of the arguments, and before the name.
            (Tagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b", "|f:{\"a\": \"b"),
            (Tagged, "<tool_call>\n{\"na", "{\"na"),
            (Tagged, "<tool_call>{\"nothing\": 1}</tool_call>", "{\"nothing\": 1}"),
            (
                Bare,
                "{\"name\": \"f\", \"parameters\": {\"a\": {\"name\": \"no\"}}}",
                "|f:{\"a\": {\"name\": \"no\"}}",
            ),
            (Bare, "Words {\"name\": \"f\"}", "Words {\"name\": \"f\"}"),
            (Bare, "  \n{\"name\": \"f\", \"parameters\": {}}", "|f:{}"),
            (
                Listed,
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
                "|f:{\"a\": 1}|g:{}",
            ),
            (Listed, "No [TOOL] here", "No [TOOL] here"),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(read(dialect, text, size), told, "{dialect:?} {text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn an_opening_without_text_is_known_by_its_id() {
        let mut calls = ToolCallParser::new(ToolCallFormat::Listed, Some(9));
        assert_eq!(calls.push(Some(3), "So: "), [Segment::Words("So:".to_owned())]);
        assert_eq!(calls.push(Some(9), ""), []);
        let parts = calls.push(Some(4), "[{\"name\": \"f\", \"arguments\": {}}]");
        assert_eq!(parts, [Segment::Call { name: "f".to_owned() }, Segment::Arguments("{}".to_owned())]);
        assert_eq!(calls.finish(), []);
    }
}
