//! GLM 4: the standard decoder with norms before and after both branches and a fused gate and up projection.
//! Half of a head's channels rotate, interleaved; queries, keys and values may have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::{Decoder, Norms};
use crate::defaults::Defaults;
use forge_ir::Pairing;

pub(crate) const ARCHITECTURE: Architecture =
    Architecture { class: "Glm4ForCausalLM", family: "glm4", hub: &["zai-org/GLM-4-9B-0414"], read };

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    epsilon: ("rms_norm_eps", 1.5625e-7),
    key_heads: Some(2),
    width: Some(128),
    partial: Some(0.5),
    pairing: Pairing::Interleaved,
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.norms =
        Norms { output: Some("post_self_attn_layernorm"), down: Some("post_mlp_layernorm"), ..model.norms };
    model.attention.input_bias = config.flag_or("attention_bias", true);
    model.mlp.joined = Some("gate_up_proj");
    Box::new(model)
}
