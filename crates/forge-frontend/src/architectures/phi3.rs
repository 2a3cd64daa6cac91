//! Phi 3: the standard decoder with fused query-key-value and gate-up projections. RoPE may be scaled
//! differently below and beyond the original context length (longrope).

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::rope_scaling::Kinds;
use crate::layers::sliding_window::Windows;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Phi3ForCausalLM",
    family: "phi3",
    hub: &["microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-4-mini-instruct"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 4096,
    epsilon: ("rms_norm_eps", 1e-5),
    partial: Some(1.0),
    scaling: Kinds::LongRope { original: 4096 },
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.attention.joined = Some("qkv_proj");
    model.mlp.joined = Some("gate_up_proj");
    // It has no effect without scaling.
    config.mark_inert("original_max_position_embeddings");
    // Unlike elsewhere, an absent key means no window.
    if config.get("sliding_window").is_some() {
        model.windows = Windows::of_all(config, model.context);
    }
    Box::new(model)
}
