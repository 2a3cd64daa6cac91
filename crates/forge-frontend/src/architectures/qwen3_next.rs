//! Qwen3-Next: Gated DeltaNet in most layers, gated attention in the others, and routed experts with a gated
//! shared expert in layers that the configuration does not make dense.

use crate::architectures::{qwen2_moe, qwen3_5};
use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::defaults::Defaults;
use crate::layers::delta_net::Stored;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Qwen3NextForCausalLM",
    family: "qwen3_next",
    hub: &["Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Coder-Next"],
    read,
};

const DEFAULTS: Defaults = Defaults { key_heads: Some(2), ..qwen3_5::DEFAULTS };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = qwen3_5::read_mixed(config, &DEFAULTS, Stored::ByHead);
    let shared = config.count("shared_expert_intermediate_size");
    let mut experts = qwen2_moe::experts(config, &model.mlp, shared);
    experts.choice.renormalize = config.flag_or("norm_topk_prob", true);
    experts.dense = qwen2_moe::dense(config, model.layers);
    model.experts = Some(experts);
    // Multi-token prediction layers do not change logits.
    model.place.ignored = &["mtp."];
    Box::new(model)
}
