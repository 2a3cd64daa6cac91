//! Qwen2 MoE: Qwen2 with routed experts and a gated shared expert, except in layers that the configuration
//! makes dense. Every second layer may have a sliding window.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::experts::{Experts, Shared};
use crate::layers::mlp::Mlp;
use crate::layers::sliding_window::Windows;
use forge_ir::Scores;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Qwen2MoeForCausalLM",
    family: "qwen2_moe",
    hub: &["Qwen/Qwen1.5-MoE-A2.7B-Chat", "Qwen/Qwen2-57B-A14B-Instruct"],
    read,
};

const DEFAULTS: Defaults = Defaults { context: 32_768, key_heads: Some(16), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.attention.input_bias = config.flag_or("qkv_bias", true);
    model.windows = Windows::before_max_window_layers(config, model.layers, model.context);
    let shared = config.count("shared_expert_intermediate_size");
    let mut experts = experts(config, &model.mlp, shared);
    experts.choice.renormalize = config.flag_or("norm_topk_prob", false);
    experts.dense = dense(config, model.layers);
    model.experts = Some(experts);
    Box::new(model)
}

/// Experts of every layer, with a gated shared expert of intermediate size `shared`.
pub(crate) fn experts(config: &Section<'_>, mlp: &Mlp, shared: usize) -> Experts {
    let inner = config.count("moe_intermediate_size");
    let keys = &["num_experts", "num_local_experts"];
    let mut experts = Experts::read(config, mlp, (keys, inner), Scores::Softmax);
    let mlp = Mlp { inner: shared, ..*mlp };
    experts.shared = Some(Shared { mlp, module: "shared_expert", gate: Some("shared_expert_gate") });
    experts
}

/// Dense layers: those in `mlp_only_layers`, and all but every `decoder_sparse_step`th.
pub(crate) fn dense(config: &Section<'_>, layers: usize) -> Vec<bool> {
    let step = config.count_or("decoder_sparse_step", 1);
    let listed = config.get("mlp_only_layers").map_or_else(Vec::new, |_| config.numbers("mlp_only_layers"));
    (0..layers).map(|layer| listed.contains(&(layer as f64)) || !(layer + 1).is_multiple_of(step)).collect()
}
