//! config.json under construction from metadata, and what it is made from.

use crate::gguf::family::Family;
use crate::gguf::metadata::Metadata;
use serde_json::{Map, Value, json};

/// Facts from the tensors that the metadata lacks.
pub(crate) struct Tensors<'a> {
    /// Number of tensors.
    pub(crate) count: usize,
    /// Rows of the embedding table.
    pub(crate) vocabulary: usize,
    /// Whether the file has a tensor of that name.
    pub(crate) has: &'a dyn Fn(&str) -> bool,
    /// RoPE frequency factors, if any: one list for all contexts, or two.
    pub(crate) factors: Factors,
}

/// Divisors of RoPE frequencies.
#[derive(Default)]
pub(crate) struct Factors {
    /// For every context length.
    pub(crate) all: Option<Vec<f32>>,
    /// For short and for long contexts.
    pub(crate) both: Option<[Vec<f32>; 2]>,
}

/// Sizes that other keys depend on.
pub(crate) struct Shape {
    /// Layers.
    pub(crate) layers: u64,
    /// Hidden size.
    pub(crate) hidden: u64,
    /// Query heads.
    pub(crate) heads: u64,
    /// Channels of a head.
    pub(crate) width: u64,
    /// Maximum context length.
    pub(crate) context: u64,
}

/// A configuration under construction.
pub(crate) struct Reading<'a> {
    /// The file's metadata.
    pub(crate) metadata: &'a Metadata,
    /// Its architecture.
    pub(crate) family: &'static Family,
    /// Facts from its tensors.
    pub(crate) tensors: &'a Tensors<'a>,
    /// The keys set so far.
    pub(crate) config: Map<String, Value>,
}

impl Reading<'_> {
    /// Sets a key.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.config.insert(key.to_owned(), value);
    }

    /// A required positive integer.
    pub(crate) fn count(&self, key: &str) -> u64 {
        let key = self.metadata.own(key);
        let number = self.metadata.count_of_layers(&key);
        number.filter(|number| *number > 0).or_else(|| self.metadata.missing(&key)).unwrap_or(1)
    }

    /// Copies a required number.
    pub(crate) fn copy(&mut self, key: &str, as_key: &str) {
        let key = self.metadata.own(key);
        let number = self.metadata.number(&key).or_else(|| self.metadata.missing(&key));
        self.set(as_key, json!(number));
    }

    /// Copies a number with a default.
    pub(crate) fn copy_or(&mut self, key: &str, as_key: &str, default: f64) {
        let number = self.metadata.number(&self.metadata.own(key)).unwrap_or(default);
        self.set(as_key, json!(number));
    }
}
