//! Llama: the standard decoder; biases, where there are any, on whole blocks.

use super::{Architecture, Blueprint};
use crate::config::Section;
use crate::decoder::{Decoder, Defaults};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { class: "LlamaForCausalLM", family: "llama", read };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &Defaults::USUAL);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.mlp.bias = config.flag_or("mlp_bias", false);
    Box::new(model)
}
