//! Qwen3: the standard decoder with a norm of each query and key head. Attention may have biases; the last
//! layers may have a sliding window.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::attention::HeadNorm;
use crate::layers::sliding_window::Windows;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Qwen3ForCausalLM",
    family: "qwen3",
    hub: &["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"],
    read,
};

const DEFAULTS: Defaults =
    Defaults { context: 32_768, key_heads: Some(32), width: Some(128), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.head_norm = Some(HeadNorm::per_head(model.norm));
    model.windows = Windows::from_max_window_layers(config, model.layers, model.context);
    Box::new(model)
}
