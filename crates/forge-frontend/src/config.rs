//! Reading a configuration so that nothing in it goes unnoticed.
//!
//! A [`Config`] remembers every key that it was asked for. A key that is in the file and was never asked for is a fault where
//! the reference implementation reads it ([`crate::reference`]), because a model compiled without it could give wrong text; where
//! the reference does not read it either, it is accepted and listed. Getters never fail: they note the fault and return a
//! harmless stand-in, so that all faults of a file are found at once. A key whose value is null counts as absent.

use crate::json::Document;
use crate::reference;
use crate::suggest::nearest;
use forge_ir::Diagnostic;
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// A configuration file and what is known of it so far.
pub(crate) struct Config {
    document: Document,
    conventions: Conventions,
    asked: RefCell<BTreeSet<String>>,
    passed: RefCell<BTreeSet<String>>,
    /// The types of models, by the paths of the objects that configure them.
    models: RefCell<BTreeMap<String, &'static str>>,
    /// Keys that were accepted without being read.
    ignored: RefCell<Vec<String>>,
    /// What a user should know of them.
    notes: RefCell<Vec<String>>,
    /// Keys whose empty objects count as absent.
    empty: RefCell<BTreeSet<String>>,
    faults: RefCell<Vec<Diagnostic>>,
    broken: Cell<bool>,
}

/// How a checkpoint's tensors differ from those that the architectures' authors publish. Nothing differs by default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conventions {
    /// The rows of queries and keys lie such that neighbouring channels of a head turn together.
    pub(crate) neighbours_turn: bool,
    /// Gains are whole, also where others keep them less 1.
    pub(crate) whole_gains: bool,
    /// Matrices have a row for each output, also where others store them the other way round.
    pub(crate) rows_are_outputs: bool,
}

/// An object of the configuration: the whole file, or the value of one of its keys.
#[derive(Clone)]
pub(crate) struct Section<'a> {
    config: &'a Config,
    path: String,
    map: Option<&'a Map<String, Value>>,
}

/// A key of the file that nothing asked for.
struct Unread<'a> {
    /// The path of the object that it is in; empty for the whole file.
    object: String,
    key: &'a str,
    value: &'a Value,
}

impl Unread<'_> {
    fn path(&self) -> String {
        if self.object.is_empty() { self.key.to_owned() } else { format!("{}.{}", self.object, self.key) }
    }
}

/// Which keys of a configuration mean something to its architecture, by their paths and whether they are there or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Those that were asked for.
    pub read: Vec<String>,
    /// Those that have no effect: at any value, or beside what other keys say.
    pub inert: Vec<String>,
    /// Those of the file that were accepted without being read, since the reference does not read them or their value is its default.
    pub ignored: Vec<String>,
}

/// The largest number that a count may be: products of two fit a 64-bit integer.
const LARGEST: u64 = u32::MAX as u64;

/// The most layers of a model; published ones have less than two hundred.
const MOST_LAYERS: usize = 1000;

impl Config {
    /// A configuration of which nothing has been asked.
    pub(crate) fn new(document: Document, conventions: Conventions) -> Config {
        Config {
            document,
            conventions,
            asked: RefCell::default(),
            passed: RefCell::default(),
            models: RefCell::default(),
            ignored: RefCell::default(),
            notes: RefCell::default(),
            empty: RefCell::default(),
            faults: RefCell::default(),
            broken: Cell::new(false),
        }
    }

    /// The whole file.
    pub(crate) fn root(&self) -> Section<'_> {
        if !self.document.value.is_object() {
            self.fault(Diagnostic::new("F0201", format!("{} is not an object", self.document.file)));
        }
        Section { config: self, path: String::new(), map: self.document.value.as_object() }
    }

    /// Whether a fault was found that leaves the model's description incomplete.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// All faults found.
    pub(crate) fn faults(self) -> Vec<Diagnostic> {
        self.faults.into_inner()
    }

    /// What a user should know of keys that were accepted without being read.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// The keys that something asked for, and those that were passed over and nothing asked for.
    pub(crate) fn keys(&self) -> Keys {
        let (read, passed) = (self.asked.borrow(), self.passed.borrow());
        Keys {
            read: read.iter().cloned().collect(),
            inert: passed.difference(&read).cloned().collect(),
            ignored: self.ignored.borrow().clone(),
        }
    }

    /// Every key that nothing asked for, whether or not it has an effect, and that is not allowed to be there unknown.
    pub(crate) fn unread_keys(&self, allowed: &[String]) -> Vec<String> {
        self.unread(allowed).iter().map(Unread::path).collect()
    }

    fn unread(&self, allowed: &[String]) -> Vec<Unread<'_>> {
        let mut unread = Vec::new();
        self.find_unread(&self.root(), allowed, &mut unread);
        // In an order of ours: that of the file is kept or not as the program is built.
        unread.sort_by_key(Unread::path);
        unread
    }

    /// Whether an unread key has an effect in the reference implementation.
    fn has_effect(&self, Unread { object, key, value }: &Unread<'_>) -> bool {
        let models = self.models.borrow();
        let inside = |model: &str| match model {
            "" => Some(object.as_str()),
            _ => object.strip_prefix(model).filter(|rest| rest.is_empty() || rest.starts_with('.')),
        };
        // The innermost object that configures a model.
        let owner = models.iter().rev().find_map(|(path, model)| Some((inside(path)?, *model)));
        let model = owner.and_then(|(inner, model)| Some((inner, reference::model(model)?)));
        model.is_none_or(|(inner, model)| model.has_effect(inner.trim_start_matches('.'), key, value))
    }

    /// Accepts every unread key that has no effect in the reference implementation, and notes a fault for every other one.
    pub(crate) fn refuse_unread(&self, family: &str, allowed: &[String]) {
        let (unknown, ignored): (Vec<Unread<'_>>, Vec<Unread<'_>>) =
            self.unread(allowed).into_iter().partition(|unread| self.has_effect(unread));
        let (asked, passed) = (self.asked.borrow(), self.passed.borrow());
        for unread in &ignored {
            // Of the same object, and not there itself.
            let (path, Unread { object, key, .. }) = (unread.path(), unread);
            let siblings = asked.iter().filter_map(|known| {
                let (parent, name) = known.rsplit_once('.').unwrap_or(("", known));
                (parent == *object && self.document.key(known).is_none()).then_some(name)
            });
            // Names of special tokens are alike and none of them is meant by another.
            let siblings = siblings.filter(|name| !name.contains("_token_"));
            if let Some(known) = nearest(key, siblings) {
                self.notes.borrow_mut().push(format!(
                    "{} has {path}, which transformers does not read; it reads {known}, which is not there",
                    self.document.file
                ));
            }
        }
        *self.ignored.borrow_mut() = ignored.iter().map(Unread::path).collect();
        for unread in unknown {
            let (path, Unread { object, key, .. }) = (unread.path(), &unread);
            let release = reference::release();
            let message = format!("transformers {release} reads the key {path}, and forge does not");
            let mut fault = Diagnostic::new("F0207", message);
            if let Some(span) = self.document.key(&path) {
                fault = fault.at(&self.document.file, span, format!("not a key of {family}"));
            }
            // Of the same object only: a key is not missed where another kind of thing is told.
            let siblings = asked.union(&passed).filter_map(|known| {
                let (parent, known) = known.rsplit_once('.').unwrap_or(("", known));
                (parent == *object).then_some(known)
            });
            if let Some(known) = nearest(key, siblings) {
                fault = fault.note(format!("the nearest key that forge knows is {known}"));
            }
            let fault = fault
                .note("a model compiled without it could give wrong text, so nothing was written")
                .note(format!("if you know that it has no effect: --ignore-config-key {path}"));
            // Not a reason to leave the tensors unchecked: the description is complete without the key.
            self.faults.borrow_mut().push(fault);
        }
    }

    /// Notes a fault for every key that is to be allowed and is not there: another one is meant.
    pub(crate) fn refuse_absent(&self, allowed: &[String]) {
        let Document { file, value, .. } = &self.document;
        let Some(map) = value.as_object() else { return };
        for path in allowed.iter().filter(|path| self.document.key(path).is_none()) {
            let message = format!("{file} has no key {path}, which --ignore-config-key names");
            let mut fault = Diagnostic::new("F0207", message);
            if let Some(found) = nearest(path, map.keys().map(String::as_str)) {
                fault = fault.note(format!("it has {found}"));
            }
            self.faults.borrow_mut().push(fault.note(format!("leave out --ignore-config-key {path}")));
        }
    }

    fn find_unread<'a>(&'a self, section: &Section<'a>, allowed: &[String], unread: &mut Vec<Unread<'a>>) {
        for (key, value) in section.map.into_iter().flatten() {
            let path = section.path_of(key);
            if !section.was_known(key) && !allowed.contains(&path) {
                unread.push(Unread { object: section.path.clone(), key, value });
            } else if let (true, Some(map)) = (self.was_opened(&path), value.as_object()) {
                self.find_unread(&Section { config: self, path, map: Some(map) }, allowed, unread);
            }
        }
    }

    /// Whether anything was asked of the object at a path.
    fn was_opened(&self, path: &str) -> bool {
        let inside = format!("{path}.");
        let asked = self.asked.borrow();
        asked.range(inside.clone()..).next().is_some_and(|key| key.starts_with(&inside))
    }

    fn fault(&self, fault: Diagnostic) {
        self.broken.set(true);
        self.faults.borrow_mut().push(fault);
    }
}

impl<'a> Section<'a> {
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key, null and absent alike being none. Every getter goes through here.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.config.asked.borrow_mut().insert(self.path_of(key));
        let is_empty = || self.config.empty.borrow().contains(&self.path_of(key));
        self.map?.get(key).filter(|value| !value.is_null() && !is_empty())
    }

    /// Says that the object configures a model of this type.
    pub(crate) fn configures(&self, model_type: &'static str) {
        self.config.models.borrow_mut().insert(self.path.clone(), model_type);
    }

    /// Notes that a key is known and has no effect, unless it is asked for as well.
    pub(crate) fn pass_over(&self, key: &str) {
        self.config.passed.borrow_mut().insert(self.path_of(key));
    }

    /// Takes a key whose value is an empty object for one that is not there, as files have it that some tools wrote.
    pub(crate) fn absent_if_empty(&self, key: &str) {
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        if self.map.and_then(|map| map.get(key)).is_some_and(is_empty) {
            self.config.empty.borrow_mut().insert(self.path_of(key));
        }
    }

    /// Whether a key is there that means nothing to the model itself, and is not asked for by this.
    pub(crate) fn has_beside(&self, key: &str) -> bool {
        self.map.is_some_and(|map| map.contains_key(key))
    }

    /// Whether a key is there and null, for the few that mean something else by that than by being absent.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.get(key);
        self.map.is_some_and(|map| map.get(key) == Some(&Value::Null))
    }

    /// Whether a fault was found that leaves the model's description incomplete.
    pub(crate) fn is_broken(&self) -> bool {
        self.config.is_broken()
    }

    /// The file that it is of.
    pub(crate) fn document(&self) -> &'a Document {
        &self.config.document
    }

    /// How the checkpoint's tensors are stored.
    pub(crate) fn conventions(&self) -> Conventions {
        self.config.conventions
    }

    /// Whether a key was asked for or passed over.
    pub(crate) fn was_known(&self, key: &str) -> bool {
        let path = self.path_of(key);
        self.config.asked.borrow().contains(&path) || self.config.passed.borrow().contains(&path)
    }

    /// The keys that it has.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.into_iter().flat_map(|map| map.keys()).map(String::as_str)
    }

    /// Asks for every key of the object: what they mean depends on something that was refused already.
    pub(crate) fn ask_all(&self) {
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

    /// A positive whole number that has to be there.
    pub(crate) fn count(&self, key: &str) -> usize {
        match self.get(key) {
            Some(value) => self.as_count(key, value),
            None => self.missing(key, 1),
        }
    }

    /// A number of layers, of which each is described before any of its tensors is looked for.
    pub(crate) fn layers(&self, key: &str) -> usize {
        let layers = self.count(key);
        if layers <= MOST_LAYERS {
            return layers;
        }
        self.contradiction(key, format!("{key} is {layers}, and forge takes {MOST_LAYERS} at most"));
        1
    }

    /// A positive whole number with a default.
    pub(crate) fn count_or(&self, key: &str, default: usize) -> usize {
        self.get(key).map_or(default, |value| self.as_count(key, value))
    }

    fn as_count(&self, key: &str, value: &Value) -> usize {
        match value.as_u64() {
            Some(number @ 1..=LARGEST) => return number as usize,
            // Beyond 64 bits a whole number is read as one that is not.
            _ if value.as_f64().is_some_and(|number| number > LARGEST as f64 && number.fract() == 0.0) => {
                self.refuse(key, &format!("larger than {LARGEST}, the largest that forge takes"), &[]);
            }
            _ => {
                self.wrong::<usize>(key, "a positive whole number");
            }
        }
        1
    }

    /// A finite number that has to be there.
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

    /// A number above 0 with a default.
    pub(crate) fn positive_or(&self, key: &str, default: f64) -> f64 {
        let number = self.number_or(key, default);
        if number as f32 > 0.0 {
            return number;
        }
        self.contradiction(key, format!("{key} is {number}, and has to be positive"));
        default
    }

    /// A number that is 0 or more with a default: what norms add to a mean of squares, of which they take the root.
    pub(crate) fn at_least_0_or(&self, key: &str, default: f64) -> f64 {
        let number = self.number_or(key, default);
        if number >= 0.0 {
            return number;
        }
        self.contradiction(key, format!("{key} is {number}, and has to be 0 or more"));
        default
    }

    fn as_number(&self, key: &str, value: &Value) -> f64 {
        match value.as_f64().filter(|number| (*number as f32).is_finite()) {
            Some(number) => number,
            None => self.wrong(key, "a number").unwrap_or(1.0),
        }
    }

    /// True or false, with a default.
    pub(crate) fn flag_or(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            None => default,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => self.wrong(key, "true or false").unwrap_or(default),
        }
    }

    /// A text, if it is there.
    pub(crate) fn word(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Value::String(word) => Some(word),
            _ => self.wrong(key, "a text"),
        }
    }

    /// A list of texts, if it is there.
    pub(crate) fn words(&self, key: &str) -> Option<Vec<&'a str>> {
        let words = self.get(key)?.as_array().and_then(|values| values.iter().map(Value::as_str).collect());
        match words {
            Some(words) => Some(words),
            None => self.wrong(key, "a list of texts"),
        }
    }

    /// A list of finite numbers that has to be there.
    pub(crate) fn numbers(&self, key: &str) -> Vec<f64> {
        let Some(value) = self.get(key) else { return self.missing(key, Vec::new()) };
        let finite = |value: &Value| value.as_f64().filter(|number| (*number as f32).is_finite());
        match value.as_array().and_then(|values| values.iter().map(finite).collect()) {
            Some(numbers) => numbers,
            None => self.wrong(key, "a list of numbers").unwrap_or_default(),
        }
    }

    /// One token or a list of tokens; negative numbers stand for none.
    pub(crate) fn tokens(&self, key: &str) -> Vec<u32> {
        let values = match self.get(key) {
            None => &[],
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let tokens: Option<Vec<i64>> = values.iter().map(Value::as_i64).collect();
        match tokens {
            Some(tokens) => tokens.into_iter().filter_map(|token| u32::try_from(token).ok()).collect(),
            None => self.wrong(key, "a token's number or a list of them").unwrap_or_default(),
        }
    }

    /// Notes that the value of a key is one that forge cannot compile, and the ways out.
    pub(crate) fn refuse(&self, key: &str, why: &str, notes: &[String]) {
        let path = self.path_of(key);
        let value = self.map.and_then(|map| map.get(key)).map(Value::to_string).unwrap_or_default();
        let fault = Diagnostic::new("F0205", format!("forge cannot compile a model with {path} {value}"));
        self.fault_at(&path, fault, why, notes);
    }

    /// Refuses any value of a key but this one, or a list of nothing but this one. Absent is right too.
    pub(crate) fn only(&self, key: &str, right: impl Into<Value>, why: &str) {
        let right = right.into();
        let is_right = |value: &Value| match value {
            Value::Array(values) => values.iter().all(|value| *value == right),
            value => *value == right,
        };
        if self.get(key).is_some_and(|value| !is_right(value)) {
            self.refuse(key, why, &[]);
        }
    }

    /// Notes that no architecture is known by the name under a key.
    pub(crate) fn refuse_architecture(&self, key: &str, name: &str, notes: &[String]) {
        let fault = Diagnostic::new("F0202", format!("forge does not know the architecture {name}"));
        self.fault_at(key, fault, "unknown", notes);
    }

    /// Notes that what keys say does not fit together. Not noted when a fault was found before, as stand-ins are
    /// then among the numbers.
    pub(crate) fn contradiction(&self, key: &str, message: String) {
        if !self.config.is_broken() {
            let path = self.path_of(key);
            self.fault_at(&path, Diagnostic::new("F0206", message), "does not fit the rest", &[]);
        }
    }

    fn missing<T>(&self, key: &str, stand_in: T) -> T {
        let path = self.path_of(key);
        let file = &self.config.document.file;
        let mut fault = Diagnostic::new("F0203", format!("{file} lacks the key {path}"));
        if let Some(found) = nearest(key, self.map.into_iter().flat_map(|map| map.keys()).map(String::as_str))
        {
            fault = fault.note(format!("it has {found}"));
        }
        self.config.fault(fault);
        stand_in
    }

    fn wrong<T>(&self, key: &str, expected: &str) -> Option<T> {
        let path = self.path_of(key);
        let fault = Diagnostic::new("F0204", format!("{path} has to be {expected}"));
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
