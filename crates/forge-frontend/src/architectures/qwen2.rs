//! Qwen2: the standard decoder with biases on query, key and value only. The last layers may have a sliding
//! window.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::sliding_window::Windows;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Qwen2ForCausalLM",
    family: "qwen2",
    hub: &["Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct"],
    read,
};

const DEFAULTS: Defaults = Defaults { context: 32_768, key_heads: Some(32), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.attention.input_bias = true;
    model.windows = Windows::from_max_window_layers(config, model.layers, model.context);
    Box::new(model)
}
