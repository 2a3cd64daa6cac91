//! Cohere 2: the standard decoder with parallel attention and MLP, and LayerNorm. Sliding-window layers use
//! interleaved RoPE; every fourth layer has full attention without RoPE. Logits are scaled. Attention may
//! have biases.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::{Decoder, Norms};
use crate::defaults::Defaults;
use crate::graph::operations::NormKind;
use crate::layers::sliding_window::Windows;
use forge_ir::Pairing;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Cohere2ForCausalLM",
    family: "cohere2",
    hub: &["CohereLabs/c4ai-command-r7b-12-2024"],
    read,
};

const DEFAULTS: Defaults = Defaults {
    context: 8192,
    epsilon: ("layer_norm_eps", 1e-5),
    tied: true,
    pairing: Pairing::Interleaved,
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    if model.attention.width * model.attention.query_heads != model.hidden {
        let message = "head_dim must be hidden_size divided by the number of heads";
        config.report_inconsistency("head_dim", message.to_owned());
    }
    model.norm.kind = NormKind::Layer { bias: false };
    model.norms = Norms { mlp: None, ..model.norms };
    model.parallel = true;
    model.logit_scale = config.positive_or("logit_scale", 0.0625) as f32;
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.windows = Windows::all_but_every_nth(config, model.layers, model.context, 4);
    model.no_rope = (0..model.layers).map(|layer| !model.windows.include(layer)).collect();
    Box::new(model)
}
