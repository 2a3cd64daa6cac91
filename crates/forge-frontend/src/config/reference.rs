//! The configuration keys that Hugging Face transformers reads, by model type.
//!
//! `reference_keys.json` is extracted from its sources by `cargo xtask reference-keys`. A key that
//! transformers never reads is accepted. A key that transformers reads and forge does not is accepted only at
//! its default value.

use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Keys extracted from one release of transformers.
#[derive(Deserialize)]
struct Reference {
    /// The release.
    transformers: String,
    /// By `model_type`.
    models: BTreeMap<String, Model>,
}

/// Keys that a model's code reads from its configuration.
#[derive(Deserialize)]
pub(crate) struct Model {
    /// Keys with the configuration class's defaults; null if required or computed.
    keys: BTreeMap<String, Value>,
    /// Keys read from nested objects, by object name.
    #[serde(default)]
    nested: BTreeMap<String, BTreeSet<String>>,
}

static REFERENCE: LazyLock<Reference> = LazyLock::new(|| {
    serde_json::from_str(include_str!("reference_keys.json"))
        .unwrap_or_else(|error| panic!("reference_keys.json, which is part of forge: {error}"))
});

/// The release of transformers that the keys were extracted from.
pub(crate) fn release() -> &'static str {
    &REFERENCE.transformers
}

/// The keys of a model type.
pub(crate) fn model(model_type: &str) -> Option<&'static Model> {
    REFERENCE.models.get(model_type)
}

impl Model {
    /// Whether a key has an effect in transformers, compared with leaving it out. `object` is the path of its
    /// object below the model's: empty, or `rope_parameters`.
    pub(crate) fn has_effect(&self, object: &str, key: &str, value: &Value) -> bool {
        match object.split('.').next() {
            None | Some("") => self.keys.get(key).is_some_and(|default| !is_same(default, value)),
            Some(object) => self.nested.get(object).is_none_or(|keys| keys.contains(key)),
        }
    }
}

/// Whether two values are equal; 1 and 1.0 are.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architectures;
    use serde_json::json;

    #[test]
    fn every_architecture_has_a_reference() {
        for architecture in architectures::ALL {
            assert!(model(architecture.family).is_some(), "{}", architecture.family);
        }
    }

    #[test]
    fn keys_with_effect_are_read_by_transformers_and_not_default() {
        let llama = model("llama").unwrap();
        assert!(llama.has_effect("", "attention_bias", &json!(true)));
        assert!(!llama.has_effect("", "attention_bias", &json!(false)));
        assert!(!llama.has_effect("", "pretraining_tp", &json!(2)));
        assert!(!llama.has_effect("", "is_llama_config", &json!(true)));
        assert!(llama.has_effect("rope_parameters", "factor", &json!(8)));
        assert!(llama.has_effect("rope_parameters.full_attention", "factor", &json!(8)));
        assert!(!llama.has_effect("rope_parameters", "fog", &json!(8)));
    }
}
