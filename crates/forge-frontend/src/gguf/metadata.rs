//! A file's metadata, read so that nothing in it goes unnoticed.
//!
//! It remembers every key that it was asked for. A key that was not asked for is a fault where llama.cpp's loader reads it
//! ([`crate::gguf::reference`]), because a model compiled without it could give wrong text. Getters never fail: they note the fault and
//! give nothing, so all faults are found at once.

use crate::gguf::value::Value;
use crate::suggest::nearest;
use forge_ir::Diagnostic;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// The metadata of a file and what is known of it so far.
pub(crate) struct Metadata {
    pub(crate) file: String,
    /// What stands before the keys that are the architecture's own.
    pub(crate) architecture: String,
    values: BTreeMap<String, Value>,
    asked: RefCell<BTreeSet<String>>,
    faults: RefCell<Vec<Diagnostic>>,
    notes: RefCell<Vec<String>>,
    broken: Cell<bool>,
}

impl Metadata {
    pub(crate) fn new(file: &str, values: BTreeMap<String, Value>) -> Metadata {
        let mut metadata = Metadata {
            file: file.to_owned(),
            architecture: String::new(),
            values,
            asked: RefCell::default(),
            faults: RefCell::default(),
            notes: RefCell::default(),
            broken: Cell::new(false),
        };
        metadata.architecture = metadata.word("general.architecture").unwrap_or_default().to_owned();
        metadata
    }

    /// The value of a key. Every getter goes through here.
    fn get(&self, key: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.values.get(key)
    }

    /// The key of the architecture's own.
    pub(crate) fn own(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Notes a fault that leaves the translation incomplete.
    pub(crate) fn fault(&self, message: String, notes: &[&str]) {
        self.broken.set(true);
        let fault = Diagnostic::new("F0110", message);
        self.faults.borrow_mut().push(notes.iter().fold(fault, |fault, note| fault.note(*note)));
    }

    fn wrong<T>(&self, key: &str, expected: &str) -> Option<T> {
        self.fault(format!("{key} of {} has to be {expected}", self.file), &[]);
        None
    }

    /// Notes that a key has a value that forge cannot compile.
    pub(crate) fn refuse(&self, key: &str, why: &str) {
        let value = match self.values.get(key) {
            Some(Value::List(values)) => format!("a list of {}", values.len()),
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Unsigned(number)) => number.to_string(),
            Some(Value::Signed(number)) => number.to_string(),
            Some(Value::Float(number)) => number.to_string(),
            Some(Value::Flag(flag)) => flag.to_string(),
            None => "left out".to_owned(),
        };
        self.fault(format!("forge cannot compile a model with {key} {value}"), &[why]);
    }

    /// Notes that a key is missing. One that is there has been found wrong.
    pub(crate) fn missing<T>(&self, key: &str) -> Option<T> {
        if !self.values.contains_key(key) {
            self.fault(format!("{} lacks {key}", self.file), &[]);
        }
        None
    }

    /// A text.
    pub(crate) fn word(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => self.wrong(key, "a text"),
        }
    }

    /// True or false.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Flag(flag) => Some(*flag),
            _ => self.wrong(key, "true or false"),
        }
    }

    /// A whole number, 0 or more.
    pub(crate) fn count(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) if *number >= 0 => Some(number.unsigned_abs()),
            _ => self.wrong(key, "a whole number, 0 or more"),
        }
    }

    /// A whole number, or a list of nothing but that number: some files say of every layer what all layers have.
    pub(crate) fn count_of_layers(&self, key: &str) -> Option<u64> {
        let Some(Value::List(values)) = self.get(key) else { return self.count(key) };
        match values.first() {
            Some(Value::Unsigned(first)) if values.iter().all(|value| *value == Value::Unsigned(*first)) => {
                Some(*first)
            }
            Some(Value::Signed(first)) if values.iter().all(|value| *value == Value::Signed(*first)) => {
                u64::try_from(*first).ok()
            }
            _ => {
                self.refuse(key, "forge knows this architecture with layers of one size alone");
                None
            }
        }
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(number) if number.is_finite() => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            _ => self.wrong(key, "a number"),
        }
    }

    /// A list of texts.
    pub(crate) fn words(&self, key: &str) -> Option<Vec<&str>> {
        let words = match self.get(key)? {
            Value::List(values) => values.iter().map(|value| match value {
                Value::Text(text) => Some(text.as_str()),
                _ => None,
            }),
            _ => return self.wrong(key, "a list of texts"),
        };
        words.collect::<Option<_>>().or_else(|| self.wrong(key, "a list of texts"))
    }

    /// A list of tokens.
    pub(crate) fn tokens(&self, key: &str) -> Option<Vec<u32>> {
        let Value::List(values) = self.get(key)? else { return self.wrong(key, "a list of tokens") };
        let token = |value: &Value| match value {
            Value::Unsigned(number) => u32::try_from(*number).ok(),
            Value::Signed(number) => u32::try_from(*number).ok(),
            _ => None,
        };
        values.iter().map(token).collect::<Option<_>>().or_else(|| self.wrong(key, "a list of tokens"))
    }

    /// A list of finite numbers.
    pub(crate) fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        let Value::List(values) = self.get(key)? else { return self.wrong(key, "a list of numbers") };
        let number = |value: &Value| match value {
            Value::Float(number) if number.is_finite() => Some(*number),
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            _ => None,
        };
        values.iter().map(number).collect::<Option<_>>().or_else(|| self.wrong(key, "a list of numbers"))
    }

    /// A list of truth values; none where the key has something else.
    pub(crate) fn flags(&self, key: &str) -> Option<Vec<bool>> {
        let Value::List(values) = self.get(key)? else { return None };
        let flag = |value: &Value| match value {
            Value::Flag(flag) => Some(*flag),
            Value::Unsigned(number) => Some(*number != 0),
            Value::Signed(number) => Some(*number != 0),
            _ => None,
        };
        values.iter().map(flag).collect::<Option<_>>().or_else(|| self.wrong(key, "a list of truth values"))
    }

    /// Refuses a truth value other than this. Absent is right.
    pub(crate) fn only(&self, key: &str, right: bool, why: &str) {
        if self.flag(key).is_some_and(|flag| flag != right) {
            self.refuse(key, why);
        }
    }

    /// Asks for a key that means nothing here, whatever its value.
    pub(crate) fn pass(&self, key: &str) {
        self.get(key);
    }

    /// The keys that begin like this.
    pub(crate) fn keys(&self, beginning: &str) -> impl Iterator<Item = &str> {
        let from = self.values.range(beginning.to_owned()..);
        from.map(|(key, _)| key.as_str()).take_while(move |key| key.starts_with(beginning))
    }

    /// Notes something that the user should know.
    pub(crate) fn note(&self, note: String) {
        self.notes.borrow_mut().push(note);
    }

    /// What the user should know.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// The keys that have no effect, and every fault found. Without a fault that leaves the translation incomplete, those of keys
    /// are among them that nothing asked for, that have an effect in llama.cpp, and that are not allowed to be there unknown.
    pub(crate) fn finish(self, allowed: &[String]) -> (Vec<String>, Vec<Diagnostic>) {
        let asked = self.asked.into_inner();
        let (mut ignored, mut faults) = (Vec::new(), self.faults.into_inner());
        if self.broken.get() {
            return (ignored, faults);
        }
        for (key, value) in self.values.iter().filter(|(key, _)| !asked.contains(*key)) {
            if allowed.contains(key) || !crate::gguf::reference::has_effect(&self.architecture, key, value) {
                ignored.push(key.clone());
                continue;
            }
            let message = format!(
                "the metadata of {} has a key that llama.cpp reads and forge does not: {key}",
                self.file
            );
            let mut fault = Diagnostic::new("F0207", message);
            if let Some(known) = nearest(key, asked.iter().map(String::as_str)) {
                fault = fault.note(format!("the nearest key that forge knows is {known}"));
            }
            faults.push(
                fault
                    .note("a model compiled without it could give wrong text, so nothing was written")
                    .note(format!("if you know that it has no effect: --ignore-config-key {key}")),
            );
        }
        (ignored, faults)
    }
}
