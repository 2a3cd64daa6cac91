//! JSON with source locations, so that an error can point at its key.
//!
//! [`parse`] returns the value and the locations of all keys. It rejects duplicate keys, of which serde_json
//! would silently keep the last.

use forge_ir::Diagnostic;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

/// A JSON file's value and the locations of its keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Document {
    /// Name of the file.
    pub(crate) file: String,
    /// Parsed value.
    pub(crate) value: Value,
    places: Vec<KeySpan>,
}

/// Location of a key and of the keys in its value. It has the key's own name, not its path: the paths of many
/// keys below a long one would take far more memory than the file.
#[derive(Clone, Debug)]
struct KeySpan {
    /// Name; an element of a list is called `[0]`.
    name: String,
    key: Range<usize>,
    value: Range<usize>,
    /// Whether the object has an earlier key of this name.
    is_twice: bool,
    inner: Vec<KeySpan>,
}

/// The location of a path.
fn find<'a>(places: &'a [KeySpan], path: &str) -> Option<&'a KeySpan> {
    places.iter().find_map(|place| {
        let rest = path.strip_prefix(place.name.as_str())?;
        match rest.as_bytes().first() {
            None => Some(place),
            Some(b'.') => find(&place.inner, &rest[1..]),
            Some(b'[') => find(&place.inner, rest),
            Some(_) => None,
        }
    })
}

impl Document {
    /// Span of a key, by path: `rope_scaling.factor`. For an element of a list, `a[0]`, the span is its
    /// value.
    pub(crate) fn key(&self, path: &str) -> Option<Range<usize>> {
        find(&self.places, path).map(|place| place.key.clone())
    }

    /// Span of a key's value, or of the key if the value spans several lines.
    pub(crate) fn value(&self, path: &str) -> Option<Range<usize>> {
        find(&self.places, path).map(|place| place.value.clone())
    }
}

/// Diagnostic code for invalid JSON.
pub(crate) const NOT_JSON: &str = "F0201";

/// Parses a file's text.
pub(crate) fn parse(file: &str, text: &str) -> Result<Document, Vec<Diagnostic>> {
    let value: Value = match serde_json::from_str(&with_quoted_floats(text)) {
        Ok(value) => value,
        Err(error) => {
            let at = offset(text, error.line(), error.column());
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or_default().to_owned();
            return Err(vec![Diagnostic::new(NOT_JSON, format!("{file} is not valid JSON")).at(
                file,
                character(text, at),
                what,
            )]);
        }
    };
    let places = Scanner { text, at: 0 }.value().map(|(_, places)| places).unwrap_or_default();
    let mut twice = Vec::new();
    find_duplicates(&places, &mut Vec::new(), &mut twice);
    let twice: Vec<Diagnostic> = twice
        .iter()
        .map(|(path, span)| {
            Diagnostic::new("F0209", format!("{file}: duplicate key {path}"))
                .at(file, span.clone(), "duplicate")
                .note("JSON does not define which one counts: remove one")
        })
        .collect();
    if twice.is_empty() { Ok(Document { file: file.to_owned(), value, places }) } else { Err(twice) }
}

/// The text with `NaN`, `Infinity` and `-Infinity` quoted. Python's `json` writes these literals, which JSON
/// lacks. A key that must be a number then rejects the string.
///
/// Valid JSON is returned unchanged, and no byte before the first such literal moves.
fn with_quoted_floats(text: &str) -> Cow<'_, str> {
    const NAMES: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
    if !NAMES.iter().any(|name| text.contains(name)) {
        return Cow::Borrowed(text);
    }
    let mut quoted = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            _ if first.is_ascii_alphanumeric() || "-+.".contains(first) => {
                let ends = |c: char| !(c.is_ascii_alphanumeric() || "-+.".contains(c));
                rest.find(ends).unwrap_or(rest.len())
            }
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        if NAMES.contains(&token) {
            quoted.extend(["\"", token, "\""]);
        } else {
            quoted.push_str(token);
        }
        rest = after;
    }
    Cow::Owned(quoted)
}

/// Length of the string literal at the start of a text, including quotes; the whole length if it is not
/// terminated.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Maximum number of duplicate keys reported.
const MAX_REPORTED: usize = 20;

/// Paths and locations of duplicate keys.
fn find_duplicates<'a>(
    places: &'a [KeySpan],
    path: &mut Vec<&'a str>,
    twice: &mut Vec<(String, Range<usize>)>,
) {
    for place in places {
        path.push(&place.name);
        if place.is_twice && twice.len() < MAX_REPORTED {
            twice.push((path.join(".").replace(".[", "["), place.key.clone()));
        }
        find_duplicates(&place.inner, path, twice);
        path.pop();
    }
}

/// The byte offset of a line and column, both 1-based, as serde_json counts them.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

/// Range of the character that contains a byte; empty at the end of the text.
fn character(text: &str, at: usize) -> Range<usize> {
    let start = (0..=at).rev().find(|start| text.is_char_boundary(*start)).unwrap_or(0);
    let length = text[start..].chars().next().map_or(0, char::len_utf8);
    start..start + length
}

/// Scanner for text that serde_json has accepted, which bounds the nesting depth. On other text it stops
/// early.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    /// A value's span, and the locations in it.
    fn value(&mut self) -> Option<(Range<usize>, Vec<KeySpan>)> {
        let first = self.peek()?;
        let start = self.at;
        let mut inner = Vec::new();
        match first {
            b'{' => inner = self.members()?,
            b'[' => inner = self.elements()?,
            b'"' => self.string().map(|_| ())?,
            _ => {
                let rest = &self.text.as_bytes()[start..];
                let end = |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
                let length = rest.iter().position(end).unwrap_or(rest.len());
                if length == 0 {
                    return None;
                }
                self.at += length;
            }
        }
        Some((start..self.at, inner))
    }

    fn members(&mut self) -> Option<Vec<KeySpan>> {
        self.at += 1;
        let (mut names, mut places) = (BTreeSet::new(), Vec::new());
        loop {
            match self.peek()? {
                b'}' => break,
                b',' => self.at += 1,
                _ => {
                    let (name, key) = self.string()?;
                    self.peek().filter(|byte| *byte == b':')?;
                    self.at += 1;
                    let (value, inner) = self.value()?;
                    let is_twice = !names.insert(name.clone());
                    let is_long = self.text.get(value.clone())?.contains('\n');
                    let value = if is_long { key.clone() } else { value };
                    places.push(KeySpan { name, key, value, is_twice, inner });
                }
            }
        }
        self.at += 1;
        Some(places)
    }

    fn elements(&mut self) -> Option<Vec<KeySpan>> {
        self.at += 1;
        let (mut index, mut places) = (0, Vec::new());
        loop {
            match self.peek()? {
                b']' => break,
                b',' => {
                    self.at += 1;
                    index += 1;
                }
                _ => {
                    let (value, inner) = self.value()?;
                    let name = format!("[{index}]");
                    places.push(KeySpan { name, key: value.clone(), value, is_twice: false, inner });
                }
            }
        }
        self.at += 1;
        Some(places)
    }

    /// A string literal: its content, and its span including quotes.
    fn string(&mut self) -> Option<(String, Range<usize>)> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        if bytes.get(start) != Some(&b'"') {
            return None;
        }
        let mut at = start + 1;
        while *bytes.get(at)? != b'"' {
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        self.at = at + 1;
        let literal = self.text.get(start..self.at)?;
        Some((serde_json::from_str(literal).ok()?, start..self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_match_the_source_text() {
        let text = r#"{ "a" : {"b": [1, {"c": -2.5e1}], "d\"x": "]}" }, "e":null }"#;
        let document = parse("f", text).unwrap();
        let value = |path: &str| document.value(path).map(|span| &text[span]);
        assert_eq!(value("a.b[1].c"), Some("-2.5e1"));
        assert_eq!(value("a.d\"x"), Some("\"]}\""));
        assert_eq!(value("e"), Some("null"));
        assert_eq!(document.key("a").map(|span| &text[span]), Some("\"a\""));
        assert_eq!(value("b"), None);
    }

    #[test]
    fn python_only_numbers_become_strings() {
        let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "NaN": "Infinity \" NaN", "d": 1e3}"#;
        let document = parse("f", text).unwrap();
        let expected = serde_json::json!({
            "a": [0.0, "Infinity"], "b": "-Infinity", "c": "NaN", "NaN": "Infinity \" NaN", "d": 1000.0
        });
        assert_eq!(document.value, expected);
        assert_eq!(document.value("d").map(|span| &text[span]), Some("1e3"));
        assert!(parse("f", r#"{"a": Infinityx}"#).is_err());
    }

    #[test]
    fn rejects_duplicate_keys() {
        let faults = parse("f", r#"{"a": {"b": 1, "b": 2}, "b": 3}"#).unwrap_err();
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].place.as_ref().unwrap().span, 15..18);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in ".{0,60}") {
            let _ = parse("f", &text);
            Scanner { text: &text, at: 0 }.value();
        }

        #[test]
        fn json_fragments_are_parsed_or_rejected(
            pieces in proptest::collection::vec(r#"[\[\]{},:"]|\\u00|"a"|null|1e|\PC"#, 0..40)
        ) {
            let text = pieces.concat();
            let _ = parse("f", &text);
            Scanner { text: &text, at: 0 }.value();
        }
    }
}
