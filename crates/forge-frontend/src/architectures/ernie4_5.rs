//! ERNIE 4.5: the standard decoder with interleaved RoPE. All projections may have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use forge_ir::Pairing;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Ernie4_5ForCausalLM",
    family: "ernie4_5",
    hub: &["baidu/ERNIE-4.5-0.3B-PT"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    epsilon: ("rms_norm_eps", 1e-5),
    theta: 5e5,
    tied: true,
    key_heads: Some(2),
    width: Some(128),
    pairing: Pairing::Interleaved,
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let bias = config.flag_or("use_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.mlp.bias = bias;
    Box::new(model)
}
