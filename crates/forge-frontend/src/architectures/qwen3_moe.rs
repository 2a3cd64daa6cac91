//! Qwen3 MoE: Qwen3 with experts, except in layers that the configuration makes dense. Either all layers have
//! a sliding window or none.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::attention::HeadNorm;
use crate::layers::experts::Experts;
use crate::layers::sliding_window::Windows;
use forge_ir::Scores;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Qwen3MoeForCausalLM",
    family: "qwen3_moe",
    hub: &["Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Coder-30B-A3B-Instruct"],
    read,
};

const DEFAULTS: Defaults = Defaults { context: 32_768, key_heads: Some(4), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.head_norm = Some(HeadNorm::per_head(model.norm));
    model.windows = Windows::all_if_used(config, model.context);
    let inner = config.count("moe_intermediate_size");
    let keys = &["num_experts", "num_local_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, inner), Scores::Softmax);
    experts.choice.renormalize = config.flag_or("norm_topk_prob", false);
    experts.dense = crate::architectures::qwen2_moe::dense(config, model.layers);
    model.experts = Some(experts);
    Box::new(model)
}
