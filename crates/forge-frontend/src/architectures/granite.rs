//! Granite: the standard decoder with multipliers for embeddings, branches, scores and logits. Attention and
//! MLP may have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "GraniteForCausalLM",
    family: "granite",
    hub: &["ibm-granite/granite-3.3-2b-instruct"],
    read,
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &Defaults::COMMON);
    let factor = |key: &str| config.positive_or(key, 1.0) as f32;
    model.embedding_scale = factor("embedding_multiplier");
    model.branch_scale = factor("residual_multiplier");
    model.attention.scale = factor("attention_multiplier");
    model.logit_scale = factor("logits_scaling").recip();
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.mlp.bias = config.flag_or("mlp_bias", false);
    Box::new(model)
}
