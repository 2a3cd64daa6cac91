//! From metadata to how positions turn heads: base, share of a head, and scaling.
//!
//! Numbers that the converter made of others stay as it made them: a stretched base, or a factor for each pair of channels.

use crate::gguf::configuration::{Reading, Shape};
use crate::gguf::family::Family;
use serde_json::{Value, json};

/// What the frequencies of a rotation are divided by.
#[derive(Default)]
pub(crate) struct Factors {
    /// Whatever the context.
    pub(crate) all: Option<Vec<f32>>,
    /// In short contexts and in long ones.
    pub(crate) both: Option<[Vec<f32>; 2]>,
}

impl Reading<'_> {
    /// How heads are turned.
    pub(crate) fn rotation(&mut self, family: &Family, shape: &Shape) {
        let metadata = self.metadata;
        let turned = metadata.own("rope.dimension_count");
        let channels = metadata.count(&turned).unwrap_or(shape.width);
        if ["glm4", "phi3"].contains(&family.name) {
            let share = channels as f64 / shape.width as f64;
            // Rounded so that so many channels come of it.
            let share =
                if ((shape.width as f64 * share) as u64) < channels { share.next_up() } else { share };
            self.set("partial_rotary_factor", json!(share));
        } else if channels != shape.width {
            metadata.refuse(&turned, "forge knows this architecture only with heads that rotate as a whole");
        }
        let sections = metadata.own("rope.dimension_sections");
        if metadata.numbers(&sections).is_some_and(|sections| sections.iter().any(|section| *section != 0.0))
        {
            metadata.refuse(&sections, "forge knows positions along a text alone");
        }
        let trained = metadata.own("rope.scaling.finetuned");
        match family.name {
            "granite" => metadata.only(&trained, true, "forge knows Granite with rotations alone"),
            _ => metadata.pass(&trained),
        }
        self.copy_or("rope.freq_base", "rope_theta", 1e4);
        if let Some(scaling) = self.scaling(family, shape) {
            self.set("rope_scaling", scaling);
        }
    }

    /// How frequencies are scaled.
    fn scaling(&mut self, family: &Family, shape: &Shape) -> Option<Value> {
        let metadata = self.metadata;
        let own = |key: &str| metadata.own(&format!("rope.scaling.{key}"));
        let number = |key: &str| metadata.number(&own(key));
        let kind = own("type");
        let factor = number("factor").or_else(|| metadata.number(&metadata.own("rope.scale_linear")));
        let original = metadata.count(&own("original_context_length"));
        let named = metadata.word(&kind);
        // Long ago, a factor had no kind.
        let found =
            named.unwrap_or(if factor.is_some_and(|factor| factor != 1.0) { "linear" } else { "none" });
        let Factors { all, both } = &self.tensors.factors;
        if (all.is_some() || both.is_some()) && !["none", "longrope"].contains(&found) {
            metadata.refuse(&kind, "the file has factors of frequencies too");
        }
        if let Some([short, long]) = both {
            self.set(
                "original_max_position_embeddings",
                json!(original.or_else(|| metadata.missing(&own("original_context_length")))),
            );
            let mut scaling = json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
            if let Some(magnitude) = number("attn_factor") {
                scaling["attention_factor"] = json!(magnitude);
            }
            return Some(scaling);
        }
        if family.name == "phi3" {
            // Without scaled positions it means nothing.
            self.set("original_max_position_embeddings", json!(original));
        }
        if let Some(factors) = all {
            // The same for all contexts, and magnified by nothing: whatever kind they were computed by.
            return Some(json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": shape.context, "attention_factor": 1.0,
            }));
        }
        match found {
            "none" => {
                if factor.is_some_and(|factor| factor != 1.0) {
                    metadata.refuse(&own("factor"), "the kind of scaling is none");
                }
                None
            }
            "linear" => Some(
                json!({"rope_type": "linear", "factor": factor.or_else(|| metadata.missing(&own("factor")))}),
            ),
            "yarn" => {
                let original = original.or_else(|| metadata.missing(&own("original_context_length")));
                let factor = factor.or_else(|| metadata.missing(&own("factor")));
                let mut scaling = json!({
                    "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
                });
                for (key, as_key) in [
                    ("yarn_beta_fast", "beta_fast"),
                    ("yarn_beta_slow", "beta_slow"),
                    ("yarn_attn_factor", "attention_factor"),
                ] {
                    if let Some(number) = number(key) {
                        scaling[as_key] = json!(number);
                    }
                }
                if number("yarn_ext_factor").is_some_and(|share| share != 1.0) {
                    metadata
                        .refuse(&own("yarn_ext_factor"), "forge knows yarn with the whole of its ramp alone");
                }
                Some(scaling)
            }
            _ => {
                metadata.refuse(&kind, "forge knows none, linear, yarn, and factors that are tensors");
                None
            }
        }
    }
}
