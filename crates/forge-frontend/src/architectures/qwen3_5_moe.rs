//! Qwen3.5 MoE: Qwen3.5 with routed experts and a gated shared expert in every layer.

use crate::architectures::{qwen2_moe, qwen3_5};
use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;

pub(crate) const ARCHITECTURE: Architecture =
    Architecture { class: "Qwen3_5MoeForCausalLM", family: "qwen3_5_moe_text", hub: &[], read };

/// The text model of a multimodal checkpoint.
pub(crate) const WRAPPED: Architecture = Architecture {
    class: "Qwen3_5MoeForConditionalGeneration",
    family: "qwen3_5_moe",
    hub: &["Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-122B-A10B"],
    read: read_wrapped,
};

const DEFAULTS: Defaults =
    Defaults { key_heads: Some(2), inner: "shared_expert_intermediate_size", ..qwen3_5::DEFAULTS };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    qwen3_5::plain(config, read_text)
}

fn read_wrapped(config: &Section<'_>) -> Box<dyn Blueprint> {
    qwen3_5::wrap(config, [WRAPPED.family, ARCHITECTURE.family], read_text)
}

fn read_text(config: &Section<'_>) -> Decoder {
    let mut model = qwen3_5::read_with_pictures(config, &DEFAULTS);
    let mut experts = qwen2_moe::experts(config, &model.mlp, model.mlp.inner);
    experts.choice.renormalize = true;
    model.experts = Some(experts);
    model
}
