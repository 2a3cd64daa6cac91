//! Incremental scanner for the JSON object of a tool call, so that arguments can be streamed.

use crate::serve::tools::tool_call_format::ToolCallFormat;
use crate::serve::tools::tool_call_parser::Segment;

/// A partially received object.
#[derive(Clone, Debug)]
pub(crate) struct JsonScanner {
    arguments_key: &'static str,
    pub(crate) text: String,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Start of the current or last string at the top level.
    string: usize,
    /// The key whose value follows, at the top level.
    key: Option<String>,
    pub(crate) name: Option<String>,
    is_name_emitted: bool,
    /// Start and end of the arguments, and how much of them was emitted.
    arguments: Option<usize>,
    end: Option<usize>,
    emitted: usize,
}

impl JsonScanner {
    pub(crate) fn new(dialect: ToolCallFormat) -> JsonScanner {
        JsonScanner {
            arguments_key: dialect.arguments(),
            text: String::new(),
            depth: 0,
            in_string: false,
            is_escaped: false,
            string: 0,
            key: None,
            name: None,
            is_name_emitted: false,
            arguments: None,
            end: None,
            emitted: 0,
        }
    }

    /// Adds a character. Returns whether the object is complete.
    pub(crate) fn push(&mut self, letter: char) -> bool {
        let at = self.text.len();
        self.text.push(letter);
        if self.in_string {
            match letter {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' => self.is_escaped = true,
                '"' => {
                    self.in_string = false;
                    if self.depth == 1 {
                        self.top_string();
                    }
                }
                _ => {}
            }
            return false;
        }
        if self.depth == 1 && self.key.as_deref() == Some(self.arguments_key) {
            match (self.arguments, letter) {
                (None, ':' | ' ' | '\n' | '\t' | '\r') => {}
                (None, _) => self.arguments = Some(at),
                _ => {}
            }
        }
        match letter {
            '"' => {
                self.in_string = true;
                self.string = at;
            }
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.ended(at);
                    return true;
                }
            }
            ',' if self.depth == 1 => {
                self.ended(at);
                self.key = None;
            }
            _ => {}
        }
        false
    }

    /// Ends the top-level value before `at`.
    fn ended(&mut self, at: usize) {
        if self.arguments.is_some() && self.end.is_none() {
            self.end = Some(self.text[..at].trim_end().len());
        }
    }

    /// Handles a complete string at the top level: a key, or the name.
    fn top_string(&mut self) {
        let string = serde_json::from_str::<String>(&self.text[self.string..]).unwrap_or_default();
        match self.key.as_deref() {
            None => self.key = Some(string),
            Some("name") => self.name = Some(string),
            Some(_) => {}
        }
    }

    /// Emits what is known: the name, then more of the arguments.
    pub(crate) fn emit(&mut self, parts: &mut Vec<Segment>) {
        let Some(name) = &self.name else { return };
        if !self.is_name_emitted {
            self.is_name_emitted = true;
            parts.push(Segment::Call { name: name.clone() });
        }
        if let Some(start) = self.arguments {
            let end = self.end.unwrap_or(self.text.len());
            let from = self.emitted.max(start);
            if end > from {
                parts.push(Segment::Arguments(self.text[from..end].to_owned()));
                self.emitted = end;
            }
        }
    }
}
