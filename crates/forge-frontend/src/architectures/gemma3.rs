//! Gemma 3: Gemma 2 with head norms instead of score softcaps, and two RoPE bases: one for sliding-window
//! layers, another for full-attention layers, whose positions alone may be scaled. Most checkpoints are
//! multimodal; forge uses the text model.

use crate::architectures::gemma2;
use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::{Decoder, TensorPrefixes};
use crate::defaults::Defaults;
use crate::layers::attention::{HeadNorm, rope_config};
use crate::layers::sliding_window::Windows;
use crate::multimodal;
use forge_ir::{Activation, RopeParameters};
use serde_json::Value;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Gemma3ForCausalLM",
    family: "gemma3_text",
    hub: &["google/gemma-3-270m-it", "google/gemma-3-1b-it"],
    read,
};

/// The text model of a multimodal checkpoint.
pub(crate) const WRAPPED: Architecture = Architecture {
    class: "Gemma3ForConditionalGeneration",
    family: "gemma3",
    hub: &["google/gemma-3-4b-it"],
    read: read_wrapped,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    // Published files contain only values that differ from these defaults.
    sizes: Some([262_208, 8]),
    tied: true,
    key_heads: Some(4),
    width: Some(256),
    activation: ("hidden_activation", Activation::GeluTanh),
    ..Defaults::COMMON
};

/// RoPE bases of full-attention and of sliding-window layers.
const BASES: [f64; 2] = [1e6, 1e4];

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    Box::new(read_text(config))
}

fn read_wrapped(config: &Section<'_>) -> Box<dyn Blueprint> {
    let families = [WRAPPED.family, ARCHITECTURE.family];
    Box::new(multimodal::read(config, families, read_text, |text, model| {
        // transformers caps logits in the text-only class but not in the multimodal class; other runtimes cap
        // in both.
        text.allow_only(
            "final_logit_softcapping",
            Value::Null,
            "implementations differ in whether gemma3 caps its logits",
        );
        model.place = TensorPrefixes {
            scope: "language_model.model.",
            head: "language_model.lm_head",
            ignored: &["vision_tower.", "multi_modal_projector."],
        };
        for config in [config, text] {
            config.allow_only("tie_word_embeddings", true, "gemma3 requires a tied head");
        }
    }))
}

fn read_text(config: &Section<'_>) -> Decoder {
    let mut model = Decoder::read_without_rope(config, &DEFAULTS);
    gemma2::finish(config, &mut model);
    model.attention.head_norm = Some(HeadNorm::per_head(model.norm));
    model.softcap = config
        .get("final_logit_softcapping")
        .and_then(|_| gemma2::cap(config, "final_logit_softcapping", 1.0));
    let [everywhere, window] = rope_parameters(config, &model);
    model.set_rope(everywhere);
    model.attention.window_rope = Some(window);
    model.windows = Windows::all_but_every_nth(config, model.layers, model.context, 6);
    model
}

/// RoPE of full-attention and of sliding-window layers.
fn rope_parameters(config: &Section<'_>, model: &Decoder) -> [RopeParameters; 2] {
    let rope = rope_config(model.attention.width, model.context, &DEFAULTS);
    let nested = config.section("rope_parameters");
    let old = config.section("rope_scaling");
    if nested.is_some() && old.is_some() {
        let message = "rope_scaling and rope_parameters are both present; remove one";
        config.report_inconsistency("rope_scaling", message.to_owned());
    }
    let part = |key: &str| nested.as_ref().and_then(|nested| nested.section(key));
    let [everywhere, window] =
        [("full_attention", old), ("sliding_attention", None)].map(|(key, old)| part(key).or(old));
    let of = |scaling: Option<Section<'_>>, key: &str, usual: f64| {
        let default_theta = config.number_or(key, usual);
        let theta =
            scaling.as_ref().map_or(default_theta, |scaling| scaling.number_or("rope_theta", default_theta));
        rope.parameters(config, scaling.as_ref(), theta)
    };
    [of(everywhere, "rope_theta", BASES[0]), of(window, "rope_local_base_freq", BASES[1])]
}
