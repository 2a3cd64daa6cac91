//! A file's metadata, which records which keys have been read.
//!
//! An unread key is an error if llama.cpp's loader reads it ([`crate::gguf::reference`]): ignoring it could
//! change the output. Getters never fail: they record the problem and return nothing, so that all problems are
//! found at once.

use crate::gguf::format::value::Value;
use crate::suggest::nearest;
use forge_ir::Diagnostic;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// The metadata of a file, with the keys read so far.
pub(crate) struct Metadata {
    pub(crate) file: String,
    /// Prefix of architecture-specific keys.
    pub(crate) architecture: String,
    values: BTreeMap<String, Value>,
    read_keys: RefCell<BTreeSet<String>>,
    faults: RefCell<Vec<Diagnostic>>,
    notes: RefCell<Vec<String>>,
    incomplete: Cell<bool>,
}

impl Metadata {
    pub(crate) fn new(file: &str, values: BTreeMap<String, Value>) -> Metadata {
        let mut metadata = Metadata {
            file: file.to_owned(),
            architecture: String::new(),
            values,
            read_keys: RefCell::default(),
            faults: RefCell::default(),
            notes: RefCell::default(),
            incomplete: Cell::new(false),
        };
        metadata.architecture = metadata.word("general.architecture").unwrap_or_default().to_owned();
        metadata
    }

    /// The value of a key of any type.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.get(key)
    }

    /// The value of a key. All getters use it.
    fn get(&self, key: &str) -> Option<&Value> {
        self.read_keys.borrow_mut().insert(key.to_owned());
        self.values.get(key)
    }

    /// The full name of an architecture-specific key.
    pub(crate) fn own(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Records an error that leaves the translation incomplete.
    pub(crate) fn fault(&self, message: String, notes: &[&str]) {
        self.incomplete.set(true);
        let fault = Diagnostic::new("F0110", message);
        self.faults.borrow_mut().push(notes.iter().fold(fault, |fault, note| fault.note(*note)));
    }

    fn wrong<T>(&self, key: &str, expected: &str) -> Option<T> {
        self.fault(format!("{key} of {}: expected {expected}", self.file), &[]);
        None
    }

    /// Records that the value of a key is unsupported.
    pub(crate) fn reject(&self, key: &str, why: &str) {
        let value = match self.values.get(key) {
            Some(Value::List(values)) => format!("a list of {}", values.len()),
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Unsigned(number)) => number.to_string(),
            Some(Value::Signed(number)) => number.to_string(),
            Some(Value::Float(number)) => number.to_string(),
            Some(Value::Flag(flag)) => flag.to_string(),
            None => "absent".to_owned(),
        };
        self.fault(format!("unsupported value {key} = {value}"), &[why]);
    }

    /// Records that a key is missing, unless it is present and has been reported as invalid.
    pub(crate) fn missing<T>(&self, key: &str) -> Option<T> {
        if !self.values.contains_key(key) {
            self.fault(format!("{}: missing key {key}", self.file), &[]);
        }
        None
    }

    /// A string.
    pub(crate) fn word(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(text) => Some(text),
            _ => self.wrong(key, "a text"),
        }
    }

    /// A boolean.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Flag(flag) => Some(*flag),
            _ => self.wrong(key, "a boolean"),
        }
    }

    /// A non-negative integer.
    pub(crate) fn count(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) if *number >= 0 => Some(number.unsigned_abs()),
            _ => self.wrong(key, "a non-negative integer"),
        }
    }

    /// A non-negative integer, or a list that repeats it: some files have a value per layer.
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
                self.reject(key, "values that differ between layers are unsupported for this architecture");
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

    /// A list of strings.
    pub(crate) fn words(&self, key: &str) -> Option<Vec<&str>> {
        let words = match self.get(key)? {
            Value::List(values) => values.iter().map(|value| match value {
                Value::Text(text) => Some(text.as_str()),
                _ => None,
            }),
            _ => return self.wrong(key, "a list of strings"),
        };
        words.collect::<Option<_>>().or_else(|| self.wrong(key, "a list of strings"))
    }

    /// A list of token ids.
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

    /// A list of booleans; `None` if the value is not a list.
    pub(crate) fn flags(&self, key: &str) -> Option<Vec<bool>> {
        let Value::List(values) = self.get(key)? else { return None };
        let flag = |value: &Value| match value {
            Value::Flag(flag) => Some(*flag),
            Value::Unsigned(number) => Some(*number != 0),
            Value::Signed(number) => Some(*number != 0),
            _ => None,
        };
        values.iter().map(flag).collect::<Option<_>>().or_else(|| self.wrong(key, "a list of booleans"))
    }

    /// Rejects any boolean but `right`. The key may be absent.
    pub(crate) fn allow_only(&self, key: &str, right: bool, why: &str) {
        if self.flag(key).is_some_and(|flag| flag != right) {
            self.reject(key, why);
        }
    }

    /// Marks a key as having no effect.
    pub(crate) fn mark_inert(&self, key: &str) {
        self.get(key);
    }

    /// Keys with this prefix.
    pub(crate) fn keys(&self, beginning: &str) -> impl Iterator<Item = &str> {
        let from = self.values.range(beginning.to_owned()..);
        from.map(|(key, _)| key.as_str()).take_while(move |key| key.starts_with(beginning))
    }

    /// Records a note for the user.
    pub(crate) fn note(&self, note: String) {
        self.notes.borrow_mut().push(note);
    }

    /// Notes for the user.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// The keys without effect, and all errors. If the translation is complete, unread keys that llama.cpp
    /// uses and that are not in `allowed` are errors.
    pub(crate) fn finish(self, allowed: &[String]) -> (Vec<String>, Vec<Diagnostic>) {
        let read_keys = self.read_keys.into_inner();
        let (mut ignored, mut faults) = (Vec::new(), self.faults.into_inner());
        if self.incomplete.get() {
            return (ignored, faults);
        }
        for (key, value) in self.values.iter().filter(|(key, _)| !read_keys.contains(*key)) {
            if allowed.contains(key) || !crate::gguf::reference::has_effect(&self.architecture, key, value) {
                ignored.push(key.clone());
                continue;
            }
            let message = format!("{}: unsupported key {key}, which llama.cpp reads", self.file);
            let mut fault = Diagnostic::new("F0207", message);
            if let Some(known) = nearest(key, read_keys.iter().map(String::as_str)) {
                fault = fault.note(format!("nearest supported key: {known}"));
            }
            faults.push(
                fault
                    .note("ignoring it could change the output")
                    .note(format!("if it has no effect, pass --ignore-config-key {key}")),
            );
        }
        (ignored, faults)
    }
}
