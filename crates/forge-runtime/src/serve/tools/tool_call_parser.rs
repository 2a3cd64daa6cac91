//! Streaming parser that separates tool calls from text.

use crate::serve::tools::json_stream::JsonScanner;
use crate::serve::tools::tool_call_format::ToolCallFormat;

/// A segment of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Text.
    Words(String),
    /// The start of a call.
    Call { name: String },
    /// More of the arguments of the last call.
    Arguments(String),
}

/// The parser of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct ToolCallParser {
    dialect: ToolCallFormat,
    opening_id: Option<u32>,
    state: State,
    /// Text that may be the start of an opening.
    held: String,
    /// Whether any text or call was emitted.
    is_begun: bool,
    /// Whether no text was emitted since the last call.
    is_after_call: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Text, possibly followed by calls.
    Words,
    /// Between calls: another call, separators, or text may follow.
    Between,
    /// Inside a call.
    Inside(JsonScanner),
}

impl ToolCallParser {
    /// A parser for this syntax. `opening_id` is the token that opens calls, if it is a single token.
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

    /// Adds a token and its text.
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

    /// Returns the rest at the end of the output.
    pub(crate) fn finish(&mut self) -> Vec<Segment> {
        let mut parts = Vec::new();
        match &self.state {
            State::Words => self.words(&mut parts, false),
            // A call cut off before its name is treated as text.
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
                    // Holds back a possible start of an opening, and whitespace before it.
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
                            object.emit(parts);
                            if object.name.is_none() {
                                parts.push(Segment::Words(object.text.clone()));
                            }
                            self.is_begun = true;
                            self.state = State::Between;
                            break;
                        }
                    }
                    match &mut self.state {
                        State::Inside(object) => return object.emit(parts),
                        _ if self.held.is_empty() => return,
                        _ => {}
                    }
                }
            }
        }
    }

    /// Emits the held text, without trailing whitespace before a call and without leading whitespace after
    /// one.
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

    /// The segments of a text in pieces of `size` characters: text, and calls as `|name:arguments`.
    fn read(dialect: ToolCallFormat, text: &str, size: usize) -> String {
        let mut calls = ToolCallParser::new(dialect, None);
        let letters: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in letters.chunks(size) {
            parts.extend(calls.push(None, &piece.iter().collect::<String>()));
        }
        parts.extend(calls.finish());
        let mut output = String::new();
        for part in parts {
            match part {
                Segment::Words(words) => output.push_str(&words),
                Segment::Call { name } => output.push_str(&format!("|{name}:")),
                Segment::Arguments(arguments) => output.push_str(&arguments),
            }
        }
        output
    }

    #[test]
    fn calls_are_separated_from_text_in_pieces_of_any_size() {
        use ToolCallFormat::{Bare, Listed, Tagged};
        for (dialect, text, expected) in [
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
            // Cut off in the arguments, and before the name.
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
                assert_eq!(read(dialect, text, size), expected, "{dialect:?} {text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn tool_call_openings_without_text_are_recognized_by_token() {
        let mut calls = ToolCallParser::new(ToolCallFormat::Listed, Some(9));
        assert_eq!(calls.push(Some(3), "So: "), [Segment::Words("So:".to_owned())]);
        assert_eq!(calls.push(Some(9), ""), []);
        let parts = calls.push(Some(4), "[{\"name\": \"f\", \"arguments\": {}}]");
        assert_eq!(parts, [Segment::Call { name: "f".to_owned() }, Segment::Arguments("{}".to_owned())]);
        assert_eq!(calls.finish(), []);
    }
}
