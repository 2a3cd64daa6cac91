//! OLMo 2: the standard decoder with norms after both branches instead of before, and norms over all query
//! heads and over all key heads. Attention may have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::{Decoder, Norms};
use crate::defaults::Defaults;
use crate::layers::attention::HeadNorm;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Olmo2ForCausalLM",
    family: "olmo2",
    hub: &["allenai/OLMo-2-0425-1B-Instruct"],
    read,
};

const DEFAULTS: Defaults = Defaults { epsilon: ("rms_norm_eps", 1e-5), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.norms = Norms {
        attention: None,
        output: Some("post_attention_layernorm"),
        mlp: None,
        down: Some("post_feedforward_layernorm"),
    };
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.head_norm = Some(HeadNorm { of_all: true, ..HeadNorm::per_head(model.norm) });
    Box::new(model)
}
