//! Llama: the standard decoder. Attention and MLP may have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "LlamaForCausalLM",
    family: "llama",
    hub: &[
        "meta-llama/Llama-3.2-1B-Instruct",
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    ],
    read,
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &Defaults::COMMON);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.mlp.bias = config.flag_or("mlp_bias", false);
    Box::new(model)
}
