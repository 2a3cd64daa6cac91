//! Removes private data from a report: paths, the user's name and the machine's name.

use serde_json::Value;
use std::process::Command;

/// Texts that must not be in a report, each with what it is. Longer ones first.
pub(super) struct Redactor(Vec<(String, &'static str)>);

impl Redactor {
    /// The texts of this machine and user.
    pub(super) fn of_this_machine() -> Redactor {
        let variable = |name: &str| std::env::var(name).ok();
        let command = |name: &str, argument: &str| {
            let output = Command::new(name).arg(argument).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let host = command("uname", "-n");
        let short_host = host.as_ref().and_then(|host| host.split('.').next()).map(str::to_owned);
        Redactor::new(vec![
            (variable("HOME"), "home directory"),
            (variable("USER"), "user name"),
            (variable("LOGNAME"), "user name"),
            (command("id", "-un"), "user name"),
            (command("id", "-F"), "full name"),
            (host, "host name"),
            (short_host, "host name"),
            (command("scutil", "--get=ComputerName"), "host name"),
        ])
    }

    fn new(texts: Vec<(Option<String>, &'static str)>) -> Redactor {
        let texts = texts.into_iter().filter_map(|(text, kind)| Some((text?, kind)));
        // A single letter is no name.
        let mut texts: Vec<_> = texts.filter(|(text, _)| text.trim().len() > 1).collect();
        texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Redactor(texts)
    }

    /// A value with all of its texts redacted.
    pub(super) fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(values) => values.iter().map(|value| self.value(value)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), self.value(value))).collect()
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        let mut text = without_paths(text);
        for (secret, kind) in &self.0 {
            while let Some(start) = find_word(&text, secret) {
                text.replace_range(start..start + secret.len(), &format!("<{kind}>"));
            }
        }
        text
    }

    /// What kind of private text a value contains, if any. Keys are the report's own.
    pub(super) fn find(&self, value: &Value) -> Option<&'static str> {
        match value {
            Value::String(text) => self.find_in(text),
            Value::Array(values) => values.iter().find_map(|value| self.find(value)),
            Value::Object(fields) => fields.values().find_map(|value| self.find(value)),
            _ => None,
        }
    }

    fn find_in(&self, text: &str) -> Option<&'static str> {
        self.0.iter().find(|(secret, _)| find_word(text, secret).is_some()).map(|(_, kind)| *kind)
    }
}

/// The start of a text between characters that are not part of a word. A placeholder is not searched.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(word).map(|(start, _)| start).find(|&start| {
        let (before, after) = (&text[..start], &text[start + word.len()..]);
        let in_placeholder = before.ends_with('<') || after.starts_with('>');
        !is_part(before.chars().next_back()) && !is_part(after.chars().next()) && !in_placeholder
    })
}

/// Replaces absolute paths. A path begins behind a space, a quote or a similar sign.
fn without_paths(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut before = None;
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let begins =
            before.is_none_or(|before: char| before.is_whitespace() || "\"'`(=:,[<".contains(before));
        let is_home = rest.starts_with("~/");
        if begins && (letter == '/' || is_home) {
            let end = |letter: char| letter.is_whitespace() || "\"'`);,]>".contains(letter);
            let length = rest.find(end).unwrap_or(rest.len());
            if length > 1 {
                result += "<path>";
                (before, rest) = (Some('>'), &rest[length..]);
                continue;
            }
        }
        result.push(letter);
        (before, rest) = (Some(letter), &rest[letter.len_utf8()..]);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_and_names_are_removed() {
        let text = |text: &str| Some(text.to_owned());
        let redactor = Redactor::new(vec![
            (text("/Users/maxine"), "home directory"),
            (text("maxine"), "user name"),
            (text("maxines-mac.local"), "host name"),
            (text("maxines-mac"), "host name"),
            (text("x"), "user name"),
            (None, "full name"),
        ]);
        for (before, after) in [
            (
                "pipelines saved to /Users/maxine/Library/Caches/forge/a.metalarchive; 0.50 s",
                "pipelines saved to <path>; 0.50 s",
            ),
            ("error: \"/tmp/a b\": no file", "error: \"<path> b\": no file"),
            ("35.2 tok/s, 3/4, a / b", "35.2 tok/s, 3/4, a / b"),
            ("~/models/llama, (/dev/null)", "<path>, (<path>)"),
            ("maxine on maxines-mac.local, maxines-mac", "<user name> on <host name>, <host name>"),
            ("maximum, maxine_x, maxine's", "maximum, maxine_x, <user name>'s"),
            ("Metal, Apple M4 Max", "Metal, Apple M4 Max"),
        ] {
            assert_eq!(redactor.text(before), after);
            assert_eq!(redactor.find_in(after), None, "{after}");
        }
        assert_eq!(redactor.find(&json!({ "steps": ["by maxine"] })), Some("user name"));
        assert_eq!(redactor.find(&json!({ "maxine": [1] })), None, "keys are the report's own");
        let value = json!({ "steps": [{ "stderr": "/Users/maxine/a", "seconds": 1.5 }] });
        assert_eq!(redactor.value(&value), json!({ "steps": [{ "stderr": "<path>", "seconds": 1.5 }] }));
    }
}
