//! Gemma 2: the standard decoder with norms before and after both branches, whose gains are stored minus 1.
//! Embeddings are scaled by the square root of their width, scores and logits have softcaps, and every second
//! layer has a sliding window.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::{Decoder, Norms};
use crate::defaults::Defaults;
use crate::layers::sliding_window::Windows;
use forge_ir::Activation;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Gemma2ForCausalLM",
    family: "gemma2",
    hub: &["google/gemma-2-2b-it", "google/gemma-2-9b-it"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 8192,
    tied: true,
    key_heads: Some(4),
    width: Some(256),
    activation: ("hidden_activation", Activation::GeluTanh),
    ..Defaults::USUAL
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    finish(config, &mut model);
    model.attention.softcap = cap(config, "attn_logit_softcapping", 50.0);
    model.softcap = cap(config, "final_logit_softcapping", 30.0);
    model.windows = Windows::of_every_second(config, model.layers, model.context);
    Box::new(model)
}

/// Options shared by all Gemma versions.
pub(crate) fn finish(config: &Section<'_>, model: &mut Decoder) {
    model.embedding_scale = (model.hidden as f64).sqrt() as f32;
    model.norm.plus_one = !config.conventions().gains_include_one;
    model.norms = Norms {
        attention: Some("input_layernorm"),
        output: Some("post_attention_layernorm"),
        mlp: Some("pre_feedforward_layernorm"),
        down: Some("post_feedforward_layernorm"),
    };
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.scale = config.positive_or("query_pre_attn_scalar", 256.0).sqrt().recip() as f32;
    config.only("use_bidirectional_attention", false, "only causal attention is supported");
}

/// A softcap; null means none.
pub(crate) fn cap(config: &Section<'_>, key: &str, default: f64) -> Option<f32> {
    if config.is_null(key) { None } else { Some(config.positive_or(key, default) as f32) }
}
