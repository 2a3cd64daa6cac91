//! Qwen3.5: Qwen3 with Gated DeltaNet in most layers. Attention layers rotate part of each head and have an
//! output gate. Most checkpoints are multimodal; forge uses the text model.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::{Decoder, TensorPrefixes};
use crate::defaults::Defaults;
use crate::layers::attention::HeadNorm;
use crate::layers::delta_net;
use crate::layers::delta_net::{DeltaNet, Stored};
use crate::multimodal;

pub(crate) const ARCHITECTURE: Architecture =
    Architecture { class: "Qwen3_5ForCausalLM", family: "qwen3_5_text", hub: &[], read };

/// The text model of a multimodal checkpoint.
pub(crate) const WRAPPED: Architecture = Architecture {
    class: "Qwen3_5ForConditionalGeneration",
    family: "qwen3_5",
    hub: &["Qwen/Qwen3.5-0.8B", "Qwen/Qwen3.5-27B"],
    read: read_wrapped,
};

pub(crate) const DEFAULTS: Defaults = Defaults {
    context: 32_768,
    key_heads: Some(4),
    width: Some(256),
    partial: Some(0.25),
    ..Defaults::COMMON
};

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    plain(config, read_text)
}

fn read_wrapped(config: &Section<'_>) -> Box<dyn Blueprint> {
    wrap(config, [WRAPPED.family, ARCHITECTURE.family], read_text)
}

fn read_text(config: &Section<'_>) -> Decoder {
    read_with_pictures(config, &DEFAULTS)
}

/// Prefixes of the text model's tensor names in a multimodal checkpoint.
const NESTED: TensorPrefixes = TensorPrefixes {
    scope: "model.language_model.",
    ignored: &["model.visual.", "mtp."],
    ..TensorPrefixes::STANDARD
};

/// A text-only model, which may have multi-token prediction layers. transformers also loads it from a
/// multimodal checkpoint.
pub(crate) fn plain(config: &Section<'_>, read: impl Fn(&Section<'_>) -> Decoder) -> Box<dyn Blueprint> {
    let mut model = read(config);
    model.place.ignored = &["mtp."];
    model.nested = Some(NESTED);
    Box::new(model)
}

/// The text model of a multimodal configuration.
pub(crate) fn wrap(
    config: &Section<'_>,
    families: [&'static str; 2],
    read: impl Fn(&Section<'_>) -> Decoder,
) -> Box<dyn Blueprint> {
    Box::new(multimodal::read(config, families, read, |_, model| {
        model.place = NESTED;
        model.converted = Some(TensorPrefixes::CONVERTED);
        if config.flag_or("tie_word_embeddings", false) != model.tied {
            let message = "tie_word_embeddings differs between the model and its text model";
            config.report_inconsistency("tie_word_embeddings", message.to_owned());
        }
    }))
}

/// Reads a text model that may have multimodal RoPE.
pub(crate) fn read_with_pictures(config: &Section<'_>, defaults: &Defaults) -> Decoder {
    for key in ["rope_parameters", "rope_scaling"] {
        // Image positions use other RoPE sections; text positions are the same in all sections.
        if let Some(positions) = config.section(key) {
            positions.mark_inert("mrope_section");
            positions.mark_inert("mrope_interleaved");
        }
    }
    read_mixed(config, defaults, Stored::Apart)
}

/// Reads what all such models share.
pub(crate) fn read_mixed(config: &Section<'_>, defaults: &Defaults, stored: Stored) -> Decoder {
    let mut model = Decoder::read(config, defaults);
    let bias = config.flag_or("attention_bias", false);
    model.attention.input_bias = bias;
    model.attention.output_bias = bias;
    model.attention.gated = true;
    model.norm.plus_one = !config.conventions().gains_include_one;
    model.attention.head_norm = Some(HeadNorm::per_head(model.norm));
    let block = DeltaNet::read(config, model.hidden, model.norm.epsilon, stored);
    model.linear = Some((block, delta_net::layers(config, model.layers)));
    model
}
