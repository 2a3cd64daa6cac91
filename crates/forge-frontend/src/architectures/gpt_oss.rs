//! gpt-oss: the standard decoder with experts in every layer, whose gate and up outputs are clamped.
//! Attention has sinks, and all projections have biases; every second layer has a sliding window. Experts may
//! be stored in mxfp4.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::experts::Experts;
use crate::layers::rope_scaling::Kinds;
use crate::layers::sliding_window::Windows;
use crate::quantization::mxfp4;
use forge_ir::{Gating, Scores};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "GptOssForCausalLM",
    family: "gpt_oss",
    hub: &["openai/gpt-oss-20b", "openai/gpt-oss-120b"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    epsilon: ("rms_norm_eps", 1e-5),
    theta: 150_000.0,
    key_heads: Some(8),
    width: Some(64),
    scaling: Kinds::Yarn { factor: 32.0, original: 4096 },
    ..Defaults::COMMON
};

/// Default of `sliding_window`.
const WINDOW: usize = 128;

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    // The reference reads only `swiglu_alpha` for the activation.
    config.allow_only("hidden_act", "silu", "expected silu");
    mxfp4::read(config);
    let bias = config.flag_or("attention_bias", true);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.sinks = true;
    model.windows = Windows::alternating_or(config, model.layers, model.context, WINDOW);
    let keys = &["num_local_experts", "num_experts"];
    let mut experts = Experts::read(config, &model.mlp, (keys, model.mlp.inner), Scores::Softmax);
    experts.choice.renormalize = true;
    experts.router = "router";
    experts.bias = true;
    experts.alternate = true;
    experts.gating = Gating::Clamped {
        limit: config.positive_or("swiglu_limit", 7.0) as f32,
        sharpness: config.number_or("swiglu_alpha", 1.702) as f32,
    };
    model.experts = Some(experts);
    Box::new(model)
}
