//! Keys that have not been read: an error if they have an effect in the reference implementation.

use crate::config::file::Config;
use crate::config::reference;
use crate::config::section::Section;
use crate::json::Document;
use crate::suggest::nearest;
use forge_ir::Diagnostic;
use serde_json::Value;

/// A key that has not been read.
struct Unread<'a> {
    /// Path of its object; empty for the whole file.
    object: String,
    key: &'a str,
    value: &'a Value,
}

impl Unread<'_> {
    fn path(&self) -> String {
        if self.object.is_empty() { self.key.to_owned() } else { format!("{}.{}", self.object, self.key) }
    }
}

impl Config {
    /// Every unread key that is not in `allowed`, whether or not it has an effect.
    pub(crate) fn unread_keys(&self, allowed: &[String]) -> Vec<String> {
        self.unread(allowed).iter().map(Unread::path).collect()
    }

    fn unread(&self, allowed: &[String]) -> Vec<Unread<'_>> {
        let mut unread = Vec::new();
        self.find_unread(&self.root(), allowed, &mut unread);
        // Sorted: the order in the map depends on serde_json's features.
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

    /// Accepts every unread key that has no effect in the reference implementation and records an error for
    /// the others.
    pub(crate) fn reject_unread_keys(&self, family: &str, allowed: &[String]) {
        let (unknown, ignored): (Vec<Unread<'_>>, Vec<Unread<'_>>) =
            self.unread(allowed).into_iter().partition(|unread| self.has_effect(unread));
        let (read, inert) = (self.read.borrow(), self.inert.borrow());
        for unread in &ignored {
            // A key of the same object that was read and is absent.
            let (path, Unread { object, key, .. }) = (unread.path(), unread);
            let siblings = read.iter().filter_map(|known| {
                let (parent, name) = known.rsplit_once('.').unwrap_or(("", known));
                (parent == *object && self.document.key(known).is_none()).then_some(name)
            });
            // Names of special tokens are similar but never typos of each other.
            let siblings = siblings.filter(|name| !name.contains("_token_"));
            if let Some(known) = nearest(key, siblings) {
                self.notes.borrow_mut().push(format!(
                    "{}: transformers ignores {path}; did you mean {known}?",
                    self.document.file
                ));
            }
        }
        *self.ignored.borrow_mut() = ignored.iter().map(Unread::path).collect();
        for unread in unknown {
            let (path, Unread { object, key, .. }) = (unread.path(), &unread);
            let release = reference::release();
            let message = format!("unsupported key {path}, which transformers {release} reads");
            let mut fault = Diagnostic::new("F0207", message);
            if let Some(span) = self.document.key(&path) {
                fault = fault.at(&self.document.file, span, format!("not supported for {family}"));
            }
            // Only keys of the same object are suggested.
            let siblings = read.union(&inert).filter_map(|known| {
                let (parent, known) = known.rsplit_once('.').unwrap_or(("", known));
                (parent == *object).then_some(known)
            });
            if let Some(known) = nearest(key, siblings) {
                fault = fault.note(format!("nearest supported key: {known}"));
            }
            let fault = fault
                .note("ignoring it could change the output")
                .note(format!("if it has no effect, pass --ignore-config-key {path}"));
            // Tensors are still checked: the description is complete without the key.
            self.faults.borrow_mut().push(fault);
        }
    }

    /// Records an error for every allowed key that is absent: it is probably misspelled.
    pub(crate) fn reject_absent_keys(&self, allowed: &[String]) {
        let Document { file, value, .. } = &self.document;
        let Some(map) = value.as_object() else { return };
        for path in allowed.iter().filter(|path| self.document.key(path).is_none()) {
            let message = format!("--ignore-config-key {path}: {file} has no such key");
            let mut fault = Diagnostic::new("F0207", message);
            if let Some(found) = nearest(path, map.keys().map(String::as_str)) {
                fault = fault.note(format!("nearest key: {found}"));
            }
            self.faults.borrow_mut().push(fault.note(format!("remove --ignore-config-key {path}")));
        }
    }

    fn find_unread<'a>(&'a self, section: &Section<'a>, allowed: &[String], unread: &mut Vec<Unread<'a>>) {
        for (key, value) in section.map.into_iter().flatten() {
            let path = section.path_of(key);
            if !section.is_known(key) && !allowed.contains(&path) {
                unread.push(Unread { object: section.path.clone(), key, value });
            } else if let (true, Some(map)) = (self.was_read(&path), value.as_object()) {
                self.find_unread(&Section { config: self, path, map: Some(map) }, allowed, unread);
            }
        }
    }

    /// Whether any key of the object at a path has been read.
    fn was_read(&self, path: &str) -> bool {
        let inside = format!("{path}.");
        let read = self.read.borrow();
        read.range(inside.clone()..).next().is_some_and(|key| key.starts_with(&inside))
    }
}
