//! A call's JSON object, read letter by letter, so that its arguments can be told as they come.

use crate::serve::tools::tool_call_format::ToolCallFormat;
use crate::serve::tools::tool_call_parser::Segment;

/// An object of which the beginning has come.
#[derive(Clone, Debug)]
pub(crate) struct JsonScanner {
    arguments_key: &'static str,
    pub(crate) text: String,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Where the string began that is being read, or was read last, at the top.
    string: usize,
    /// The key whose value comes, at the top.
    key: Option<String>,
    pub(crate) name: Option<String>,
    is_told: bool,
    /// Where the arguments begin, end, and how far they have been told.
    arguments: Option<usize>,
    end: Option<usize>,
    told: usize,
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
            is_told: false,
            arguments: None,
            end: None,
            told: 0,
        }
    }

    /// Takes a letter; whether it is the object's last.
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

    /// The value at the top has ended before `at`.
    fn ended(&mut self, at: usize) {
        if self.arguments.is_some() && self.end.is_none() {
            self.end = Some(self.text[..at].trim_end().len());
        }
    }

    /// A string at the top is whole: a key, or the name.
    fn top_string(&mut self) {
        let string = serde_json::from_str::<String>(&self.text[self.string..]).unwrap_or_default();
        match self.key.as_deref() {
            None => self.key = Some(string),
            Some("name") => self.name = Some(string),
            Some(_) => {}
        }
    }

    /// Tells what has become known: the name, and then more of the arguments.
    pub(crate) fn tell(&mut self, parts: &mut Vec<Segment>) {
        let Some(name) = &self.name else { return };
        if !self.is_told {
            self.is_told = true;
            parts.push(Segment::Call { name: name.clone() });
        }
        if let Some(start) = self.arguments {
            let end = self.end.unwrap_or(self.text.len());
            let from = self.told.max(start);
            if end > from {
                parts.push(Segment::Arguments(self.text[from..end].to_owned()));
                self.told = end;
            }
        }
    }
}
