//! Translates RoPE metadata: base, rotated fraction of a head, and scaling.
//!
//! Values that the converter derived from others are kept: a stretched base, or a factor per pair of
//! channels.

use crate::gguf::reading::{Factors, Reading, Shape};
use serde_json::{Value, json};

impl Reading<'_> {
    /// Sets the RoPE keys.
    pub(crate) fn rope(&mut self, shape: &Shape) {
        let metadata = self.metadata;
        let rope_key = metadata.own("rope.dimension_count");
        let channels = metadata.count(&rope_key).unwrap_or(shape.width);
        if self.family.partial_rope {
            let fraction = channels as f64 / shape.width as f64;
            // Rounded so that the fraction yields exactly this number of channels.
            let fraction = if ((shape.width as f64 * fraction) as u64) < channels {
                fraction.next_up()
            } else {
                fraction
            };
            self.set("partial_rotary_factor", json!(fraction));
        } else if channels != shape.width {
            metadata.reject(&rope_key, "partial RoPE is unsupported for this architecture");
        }
        let sections = metadata.own("rope.dimension_sections");
        let is_used = |sections: Vec<f64>| sections.iter().any(|section| *section != 0.0);
        if metadata.numbers(&sections).is_some_and(is_used) && !self.family.image_positions {
            metadata.reject(&sections, "multi-dimensional positions are unsupported");
        }
        metadata.mark_inert(&metadata.own("rope.scaling.finetuned"));
        self.copy_or("rope.freq_base", "rope_theta", 1e4);
        if let Some(scaling) = self.scaling(shape) {
            self.set("rope_scaling", scaling);
        }
    }

    /// The RoPE scaling object.
    pub(crate) fn scaling(&mut self, shape: &Shape) -> Option<Value> {
        let metadata = self.metadata;
        let own = |key: &str| metadata.own(&format!("rope.scaling.{key}"));
        let number = |key: &str| metadata.number(&own(key));
        let kind = own("type");
        let factor = number("factor").or_else(|| metadata.number(&metadata.own("rope.scale_linear")));
        let original = metadata.count(&own("original_context_length"));
        let named = metadata.word(&kind);
        // Old files have a factor without a type.
        let found =
            named.unwrap_or(if factor.is_some_and(|factor| factor != 1.0) { "linear" } else { "none" });
        let Factors { all, both } = &self.tensors.factors;
        if (all.is_some() || both.is_some()) && !["none", "longrope"].contains(&found) {
            metadata.reject(&kind, "the file also has RoPE factor tensors");
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
        if self.family.name == "phi3" {
            // It has no effect without scaling.
            self.set("original_max_position_embeddings", json!(original));
        }
        if let Some(factors) = all {
            // The same factors for every context length, without a magnitude, whatever type they were
            // computed from.
            return Some(json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": shape.context, "attention_factor": 1.0,
            }));
        }
        match found {
            "none" => {
                if factor.is_some_and(|factor| factor != 1.0) {
                    metadata.reject(&own("factor"), "the scaling type is none");
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
                if number("yarn_ext_factor").is_some_and(|factor| factor != 1.0) {
                    metadata.reject(&own("yarn_ext_factor"), "expected 1");
                }
                Some(scaling)
            }
            _ => {
                metadata.reject(&kind, "expected none, linear, yarn, or factors as tensors");
                None
            }
        }
    }
}
