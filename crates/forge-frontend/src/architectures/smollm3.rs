//! SmolLM3: the standard decoder; by default every fourth layer has no RoPE. Attention and MLP may have
//! biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use serde_json::Value;

pub(crate) const ARCHITECTURE: Architecture =
    Architecture { class: "SmolLM3ForCausalLM", family: "smollm3", hub: &["HuggingFaceTB/SmolLM3-3B"], read };

const DEFAULTS: Defaults =
    Defaults { context: 32_768, theta: 2e6, tied: true, key_heads: Some(4), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.mlp.bias = config.flag_or("mlp_bias", false);
    model.no_rope = no_rope(config, model.layers);
    config.allow_only("use_sliding_window", false, "sliding windows are unsupported for SmolLM3");
    // It has no effect without sliding-window layers.
    config.mark_inert("sliding_window");
    config.allow_only("layer_types", "full_attention", "sliding windows are unsupported for SmolLM3");
    Box::new(model)
}

/// Whether each layer has no RoPE: `no_rope_layers` has a 0 for it, despite its name; without it, every
/// `no_rope_layer_interval`th.
fn no_rope(config: &Section<'_>, layers: usize) -> Vec<bool> {
    config.mark_inert("no_rope_layer_interval");
    let Some(listed) = config.get("no_rope_layers") else {
        let interval = config.count_or("no_rope_layer_interval", 4);
        return (1..=layers).map(|layer| layer.is_multiple_of(interval)).collect();
    };
    let flags = listed.as_array().and_then(|flags| flags.iter().map(Value::as_u64).collect());
    let flags: Vec<u64> = flags.unwrap_or_else(|| {
        config.reject("no_rope_layers", "expected a list of ones and zeros", &[]);
        vec![1; layers]
    });
    if flags.len() < layers {
        let message = format!("no_rope_layers has {} entries for {layers} layers", flags.len());
        config.report_inconsistency("no_rope_layers", message);
    }
    flags.iter().map(|flag| *flag == 0).collect()
}
