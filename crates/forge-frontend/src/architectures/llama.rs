//! Llama: the standard decoder; biases, where there are any, on whole blocks.

use super::{Architecture, Blueprint};
use crate::config::Section;
use crate::decoder::{Decoder, Defaults};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { class: "LlamaForCausalLM", family: "llama", read };

const DEFAULTS: Defaults = Defaults {
    context: 2048,
    epsilon: 1e-6,
    theta: 1e4,
    tied: false,
    key_heads: None,
    width: None,
    activation: Defaults::SILU,
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.mlp.bias = config.flag_or("mlp_bias", false);
    Box::new(model)
}
