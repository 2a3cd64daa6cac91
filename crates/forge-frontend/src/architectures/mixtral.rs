//! Mixtral: the standard decoder with experts in every layer and normalized routing weights. All layers may
//! have a window.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::experts::Experts;
use crate::layers::sliding_window::Windows;
use forge_ir::Scores;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "MixtralForCausalLM",
    family: "mixtral",
    hub: &["mistralai/Mixtral-8x7B-Instruct-v0.1"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    epsilon: ("rms_norm_eps", 1e-5),
    theta: 1e6,
    key_heads: Some(8),
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    let keys = &["num_local_experts", "num_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, model.mlp.inner), Scores::Softmax);
    experts.choice.renormalize = true;
    experts.module = "block_sparse_moe";
    experts.projections = ["w1", "w3", "w2"];
    model.experts = Some(experts);
    // Unlike elsewhere, an absent key means no window.
    if config.get("sliding_window").is_some() {
        model.windows = Windows::of_all(config, model.context);
    }
    Box::new(model)
}
