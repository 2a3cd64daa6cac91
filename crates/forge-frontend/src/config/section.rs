//! An object of the configuration: getters that record which keys have been read.
//!
//! Getters never fail: they record the problem and return a placeholder, so that all problems of a file are
//! found at once. A null value counts as absent.

use crate::config::conventions::Conventions;
use crate::config::file::Config;
use crate::json::Document;
use crate::suggest::nearest;
use forge_ir::Diagnostic;
use serde_json::{Map, Value};

/// An object of the configuration: the whole file, or the value of a key.
#[derive(Clone)]
pub(crate) struct Section<'a> {
    pub(super) config: &'a Config,
    pub(super) path: String,
    pub(super) map: Option<&'a Map<String, Value>>,
}

/// Maximum count. Products of two counts fit in 64 bits.
const MAX_COUNT: u64 = u32::MAX as u64;

/// Maximum number of layers. Published models have fewer than 200.
const MAX_LAYERS: usize = 1000;

impl Config {
    /// The whole file.
    pub(crate) fn root(&self) -> Section<'_> {
        if !self.document.value.is_object() {
            self.fault(Diagnostic::new("F0201", format!("{} is not a JSON object", self.document.file)));
        }
        Section { config: self, path: String::new(), map: self.document.value.as_object() }
    }
}

impl<'a> Section<'a> {
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key; null counts as absent. All getters use it.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.config.read.borrow_mut().insert(self.path_of(key));
        let is_empty = || self.config.empty.borrow().contains(&self.path_of(key));
        self.map?.get(key).filter(|value| !value.is_null() && !is_empty())
    }

    /// Marks the object as the configuration of a model of this type.
    pub(crate) fn configures(&self, model_type: &'static str) {
        self.config.models.borrow_mut().insert(self.path.clone(), model_type);
    }

    /// Marks a key as having no effect, unless it is also read.
    pub(crate) fn mark_inert(&self, key: &str) {
        self.config.inert.borrow_mut().insert(self.path_of(key));
    }

    /// Treats a key whose value is an empty object as absent. Some tools write such objects.
    pub(crate) fn absent_if_empty(&self, key: &str) {
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        if self.map.and_then(|map| map.get(key)).is_some_and(is_empty) {
            self.config.empty.borrow_mut().insert(self.path_of(key));
        }
    }

    /// Whether a key is present, without marking it as read. For keys that do not affect the model itself.
    pub(crate) fn contains_key_unread(&self, key: &str) -> bool {
        self.map.is_some_and(|map| map.contains_key(key))
    }

    /// The value of a key, without marking it as read.
    pub(crate) fn get_unread(&self, key: &str) -> Option<&'a Value> {
        self.map?.get(key)
    }

    /// Whether a key is present and null, for the few keys where null differs from absent.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.get(key);
        self.map.is_some_and(|map| map.get(key) == Some(&Value::Null))
    }

    /// Whether a problem was found that leaves the description incomplete.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.config.is_incomplete()
    }

    /// The document that the object belongs to.
    pub(crate) fn document(&self) -> &'a Document {
        &self.config.document
    }

    /// How the checkpoint's tensors are stored.
    pub(crate) fn conventions(&self) -> Conventions {
        self.config.conventions
    }

    /// Whether a key was read or ignored.
    pub(crate) fn is_known(&self, key: &str) -> bool {
        let path = self.path_of(key);
        self.config.read.borrow().contains(&path) || self.config.inert.borrow().contains(&path)
    }

    /// The object's keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.into_iter().flat_map(|map| map.keys()).map(String::as_str)
    }

    /// Marks every key of the object as read: their meaning depends on a value that was rejected already.
    pub(crate) fn read_all(&self) {
        self.map.into_iter().flat_map(|map| map.keys()).for_each(|key| {
            self.get(key);
        });
    }

    /// An object.
    pub(crate) fn section(&self, key: &str) -> Option<Section<'a>> {
        let value = self.get(key)?;
        match value.as_object() {
            Some(map) => Some(Section { config: self.config, path: self.path_of(key), map: Some(map) }),
            None => self.wrong(key, "an object"),
        }
    }

    /// A required positive integer.
    pub(crate) fn count(&self, key: &str) -> usize {
        match self.get(key) {
            Some(value) => self.as_count(key, value),
            None => self.missing(key, 1),
        }
    }

    /// A required number of layers, bounded because every layer is described before its tensors are looked
    /// up.
    pub(crate) fn layers(&self, key: &str) -> usize {
        let layers = self.count(key);
        if layers <= MAX_LAYERS {
            return layers;
        }
        self.report_inconsistency(key, format!("{key} is {layers}; the maximum is {MAX_LAYERS}"));
        1
    }

    /// A positive integer with a default.
    pub(crate) fn count_or(&self, key: &str, default: usize) -> usize {
        self.get(key).map_or(default, |value| self.as_count(key, value))
    }

    fn as_count(&self, key: &str, value: &Value) -> usize {
        match value.as_u64() {
            Some(number @ 1..=MAX_COUNT) => return number as usize,
            // serde_json reads integers beyond 64 bits as floats.
            _ if value.as_f64().is_some_and(|number| number > MAX_COUNT as f64 && number.fract() == 0.0) => {
                self.reject(key, &format!("the maximum is {MAX_COUNT}"), &[]);
            }
            _ => {
                self.wrong::<usize>(key, "a positive integer");
            }
        }
        1
    }

    /// A required finite number.
    pub(crate) fn number(&self, key: &str) -> f64 {
        match self.get(key) {
            Some(value) => self.as_number(key, value),
            None => self.missing(key, 1.0),
        }
    }

    /// A finite number with a default.
    pub(crate) fn number_or(&self, key: &str, default: f64) -> f64 {
        self.get(key).map_or(default, |value| self.as_number(key, value))
    }

    /// A positive number with a default.
    pub(crate) fn positive_or(&self, key: &str, default: f64) -> f64 {
        let number = self.number_or(key, default);
        if number as f32 > 0.0 {
            return number;
        }
        self.report_inconsistency(key, format!("{key} is {number}; it must be positive"));
        default
    }

    /// A non-negative number with a default, such as a norm's epsilon.
    pub(crate) fn at_least_0_or(&self, key: &str, default: f64) -> f64 {
        let number = self.number_or(key, default);
        if number >= 0.0 {
            return number;
        }
        self.report_inconsistency(key, format!("{key} is {number}; it must be 0 or more"));
        default
    }

    fn as_number(&self, key: &str, value: &Value) -> f64 {
        match value.as_f64().filter(|number| (*number as f32).is_finite()) {
            Some(number) => number,
            None => self.wrong(key, "a finite number").unwrap_or(1.0),
        }
    }

    /// A boolean with a default.
    pub(crate) fn flag_or(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            None => default,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => self.wrong(key, "a boolean").unwrap_or(default),
        }
    }

    /// An optional string.
    pub(crate) fn word(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Value::String(word) => Some(word),
            _ => self.wrong(key, "a string"),
        }
    }

    /// An optional list of strings.
    pub(crate) fn words(&self, key: &str) -> Option<Vec<&'a str>> {
        let words = self.get(key)?.as_array().and_then(|values| values.iter().map(Value::as_str).collect());
        match words {
            Some(words) => Some(words),
            None => self.wrong(key, "a list of strings"),
        }
    }

    /// A required list of finite numbers.
    pub(crate) fn numbers(&self, key: &str) -> Vec<f64> {
        let Some(value) = self.get(key) else { return self.missing(key, Vec::new()) };
        let finite = |value: &Value| value.as_f64().filter(|number| (*number as f32).is_finite());
        match value.as_array().and_then(|values| values.iter().map(finite).collect()) {
            Some(numbers) => numbers,
            None => self.wrong(key, "a list of numbers").unwrap_or_default(),
        }
    }

    /// One token id or a list of token ids; negative numbers stand for none.
    pub(crate) fn tokens(&self, key: &str) -> Vec<u32> {
        let values = match self.get(key) {
            None => &[],
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let tokens: Option<Vec<i64>> = values.iter().map(Value::as_i64).collect();
        match tokens {
            Some(tokens) => tokens.into_iter().filter_map(|token| u32::try_from(token).ok()).collect(),
            None => self.wrong(key, "a token id or a list of token ids").unwrap_or_default(),
        }
    }

    /// Records that the value of a key is unsupported, and why.
    pub(crate) fn reject(&self, key: &str, why: &str, notes: &[String]) {
        let path = self.path_of(key);
        let value = self.map.and_then(|map| map.get(key)).map(Value::to_string).unwrap_or_default();
        let fault = Diagnostic::new("F0205", format!("unsupported value {path} = {value}"));
        self.fault_at(&path, fault, why, notes);
    }

    /// Rejects any value of a key but `right` or a list that contains only `right`. The key may be absent.
    pub(crate) fn allow_only(&self, key: &str, right: impl Into<Value>, why: &str) {
        let right = right.into();
        let is_right = |value: &Value| match value {
            Value::Array(values) => values.iter().all(|value| *value == right),
            value => *value == right,
        };
        if self.get(key).is_some_and(|value| !is_right(value)) {
            self.reject(key, why, &[]);
        }
    }

    /// Records that the architecture named by a key is unsupported.
    pub(crate) fn reject_architecture(&self, key: &str, name: &str, notes: &[String]) {
        let fault = Diagnostic::new("F0202", format!("unsupported architecture {name}"));
        self.fault_at(key, fault, "unsupported", notes);
    }

    /// Records that values of keys are inconsistent. Skipped after an earlier error, because placeholders may
    /// be among the values.
    pub(crate) fn report_inconsistency(&self, key: &str, message: String) {
        if !self.config.is_incomplete() {
            let path = self.path_of(key);
            self.fault_at(&path, Diagnostic::new("F0206", message), "inconsistent with the other keys", &[]);
        }
    }

    fn missing<T>(&self, key: &str, placeholder: T) -> T {
        let path = self.path_of(key);
        let file = &self.config.document.file;
        let mut fault = Diagnostic::new("F0203", format!("{file}: missing key {path}"));
        if let Some(found) = nearest(key, self.map.into_iter().flat_map(|map| map.keys()).map(String::as_str))
        {
            fault = fault.note(format!("nearest key: {found}"));
        }
        self.config.fault(fault);
        placeholder
    }

    fn wrong<T>(&self, key: &str, expected: &str) -> Option<T> {
        let path = self.path_of(key);
        let fault = Diagnostic::new("F0204", format!("{path}: expected {expected}"));
        self.fault_at(&path, fault, &format!("not {expected}"), &[]);
        None
    }

    fn fault_at(&self, path: &str, fault: Diagnostic, label: &str, notes: &[String]) {
        let document = &self.config.document;
        let fault = match document.value(path) {
            Some(span) => fault.at(&document.file, span, label),
            None => fault.note(label),
        };
        self.config.fault(notes.iter().fold(fault, |fault, note| fault.note(note.as_str())));
    }
}
