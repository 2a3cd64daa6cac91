//! GLM 4.5 MoE: the standard decoder with routed and shared experts in all layers but the first few. Router
//! scores are sigmoid with a correction bias. Half of a head's channels rotate; heads may have norms.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::attention::HeadNorm;
use crate::layers::experts::{Experts, groups};
use forge_ir::Scores;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Glm4MoeForCausalLM",
    family: "glm4_moe",
    hub: &["zai-org/GLM-4.5-Air", "zai-org/GLM-4.6"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    epsilon: ("rms_norm_eps", 1e-5),
    key_heads: Some(8),
    partial: Some(0.5),
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.attention.input_bias = config.flag_or("attention_bias", false);
    if config.flag_or("use_qk_norm", false) {
        model.attention.head_norm = Some(HeadNorm::per_head(model.norm));
    }
    let inner = config.count("moe_intermediate_size");
    let keys = &["n_routed_experts", "num_local_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, inner), Scores::Sigmoid);
    experts.choice.correction = Some("e_score_correction_bias");
    experts.choice.renormalize = config.flag_or("norm_topk_prob", true);
    experts.choice.factor = config.positive_or("routed_scaling_factor", 1.0) as f32;
    experts.choice.groups = groups(config, &experts, 2, [1, 1]);
    experts.read_deepseek(config, &model.mlp, model.layers, [1, 1]);
    model.experts = Some(experts);
    // Multi-token prediction layers follow the last; they do not change logits.
    model.ignores_further_layers = true;
    Box::new(model)
}
