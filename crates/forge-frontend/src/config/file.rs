//! A model configuration that records which of its keys have been read.
//!
//! A key that is present and never read is an error if the reference implementation reads it
//! (`reference`): ignoring it could change the output. Other unread keys are accepted and listed.
//! Getters never fail: they record the problem and return a placeholder, so that all problems of a file are
//! found at once. A null value counts as absent.

use crate::config::conventions::Conventions;
use crate::json::Document;
use forge_ir::Diagnostic;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// A configuration file, with the keys read so far.
pub(crate) struct Config {
    /// The parsed file.
    pub(super) document: Document,
    /// Differences of the tensors' layout.
    pub(super) conventions: Conventions,
    /// Paths of the keys that have been read, present or not.
    pub(super) read: RefCell<BTreeSet<String>>,
    /// Paths of the keys that have no effect, at any value or in combination with other keys.
    pub(super) inert: RefCell<BTreeSet<String>>,
    /// Model types by the paths of the objects that configure them.
    pub(super) models: RefCell<BTreeMap<String, &'static str>>,
    /// Keys that were accepted without being read.
    pub(super) ignored: RefCell<Vec<String>>,
    /// Notes for the user.
    pub(super) notes: RefCell<Vec<String>>,
    /// Keys whose empty objects count as absent.
    pub(super) empty: RefCell<BTreeSet<String>>,
    /// All problems found so far.
    pub(super) faults: RefCell<Vec<Diagnostic>>,
    /// Whether a problem leaves the description incomplete.
    pub(super) incomplete: Cell<bool>,
}

/// Paths of the configuration keys that an architecture reads, whether or not they are present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Keys that were read.
    pub read: Vec<String>,
    /// Keys that have no effect, at any value or in combination with other keys.
    pub inert: Vec<String>,
    /// Present keys that were accepted without being read: the reference ignores them, or their value is the
    /// default.
    pub ignored: Vec<String>,
}

impl Config {
    /// A configuration of which no key has been read.
    pub(crate) fn new(document: Document, conventions: Conventions) -> Config {
        Config {
            document,
            conventions,
            read: RefCell::default(),
            inert: RefCell::default(),
            models: RefCell::default(),
            ignored: RefCell::default(),
            notes: RefCell::default(),
            empty: RefCell::default(),
            faults: RefCell::default(),
            incomplete: Cell::new(false),
        }
    }

    /// Whether a problem was found that leaves the description incomplete.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete.get()
    }

    /// All problems found.
    pub(crate) fn faults(self) -> Vec<Diagnostic> {
        self.faults.into_inner()
    }

    /// Notes on keys that were accepted without being read.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// The keys that were read, and the keys that were ignored and not read.
    pub(crate) fn keys(&self) -> Keys {
        let (read, inert) = (self.read.borrow(), self.inert.borrow());
        Keys {
            read: read.iter().cloned().collect(),
            inert: inert.difference(&read).cloned().collect(),
            ignored: self.ignored.borrow().clone(),
        }
    }

    /// Records a problem that leaves the description incomplete.
    pub(super) fn fault(&self, fault: Diagnostic) {
        self.incomplete.set(true);
        self.faults.borrow_mut().push(fault);
    }
}
