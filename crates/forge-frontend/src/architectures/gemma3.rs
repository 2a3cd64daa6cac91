//! Gemma 3: Gemma 2 with norms of heads instead of caps of scores, and rotations of two bases: one where a layer sees a
//! window, another where it sees everything, whose positions alone may be scaled. Most checkpoints wrap it together with
//! what sees pictures, which a model of text leaves alone.

use crate::architectures::{Architecture, Blueprint, gemma2};
use crate::attention::{HeadNorm, rope};
use crate::config::Section;
use crate::decoder::{Decoder, Defaults};
use crate::mlx_layout::Place;
use crate::multimodal;
use crate::sliding_window::Windows;
use forge_ir::{Activation, Rotation};
use serde_json::Value;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "Gemma3ForCausalLM",
    family: "gemma3_text",
    hub: &["google/gemma-3-270m-it", "google/gemma-3-1b-it"],
    read,
};

/// The same beside what sees pictures.
pub(crate) const WRAPPED: Architecture = Architecture {
    class: "Gemma3ForConditionalGeneration",
    family: "gemma3",
    hub: &["google/gemma-3-4b-it"],
    read: read_wrapped,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    // Of which published files tell only what is another.
    sizes: Some([262_208, 8]),
    tied: true,
    key_heads: Some(4),
    width: Some(256),
    activation: ("hidden_activation", Activation::GeluTanh),
    ..Defaults::USUAL
};

/// The base of the rotation in layers that see everything, and in those that see a window.
const BASES: [f64; 2] = [1e6, 1e4];

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    Box::new(read_text(config))
}

fn read_wrapped(config: &Section<'_>) -> Box<dyn Blueprint> {
    let families = [WRAPPED.family, ARCHITECTURE.family];
    Box::new(multimodal::read(config, families, read_text, |text, model| {
        // Transformers caps the logits of Gemma 3 by itself, and forgets to where it is wrapped; others do not forget.
        text.only(
            "final_logit_softcapping",
            Value::Null,
            "whether gemma3 caps its logits depends on who computes them",
        );
        model.place = Place {
            scope: "language_model.model.",
            head: "language_model.lm_head",
            ignored: &["vision_tower.", "multi_modal_projector."],
        };
        for config in [config, text] {
            config.only(
                "tie_word_embeddings",
                true,
                "forge knows gemma3 with the embeddings for a head alone",
            );
        }
    }))
}

fn read_text(config: &Section<'_>) -> Decoder {
    let mut model = Decoder::read_unrotated(config, &DEFAULTS);
    gemma2::finish(config, &mut model);
    model.attention.head_norm = Some(HeadNorm::of_heads(model.norm));
    model.softcap = config
        .get("final_logit_softcapping")
        .and_then(|_| gemma2::cap(config, "final_logit_softcapping", 1.0));
    let [everywhere, window] = rotations(config, &model);
    model.turn(everywhere);
    model.attention.window_rotation = Some(window);
    model.windows = Windows::of_all_but(config, model.layers, model.context, 6);
    model
}

/// Of layers that see everything, and of those that see a window.
fn rotations(config: &Section<'_>, model: &Decoder) -> [Rotation; 2] {
    let rope = rope(model.attention.width, model.context, &DEFAULTS);
    let nested = config.section("rope_parameters");
    let old = config.section("rope_scaling");
    if nested.is_some() && old.is_some() {
        let message = "rope_scaling is of older files, and rope_parameters of newer ones";
        config.contradiction("rope_scaling", message.to_owned());
    }
    let part = |key: &str| nested.as_ref().and_then(|nested| nested.section(key));
    let [everywhere, window] =
        [("full_attention", old), ("sliding_attention", None)].map(|(key, old)| part(key).or(old));
    let of = |scaling: Option<Section<'_>>, key: &str, usual: f64| {
        let beside = config.number_or(key, usual);
        let theta = scaling.as_ref().map_or(beside, |scaling| scaling.number_or("rope_theta", beside));
        rope.turned(config, scaling.as_ref(), theta)
    };
    [of(everywhere, "rope_theta", BASES[0]), of(window, "rope_local_base_freq", BASES[1])]
}
