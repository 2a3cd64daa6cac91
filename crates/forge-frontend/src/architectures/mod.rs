//! The supported architectures, one file each.
//!
//! An [`Architecture`] reads a configuration into a [`Blueprint`], which builds the graph over the tensors.

pub(crate) mod cohere2;
pub(crate) mod deepseek_v2;
pub(crate) mod deepseek_v3;
pub(crate) mod ernie4_5;
pub(crate) mod gemma2;
pub(crate) mod gemma3;
pub(crate) mod gemma4;
pub(crate) mod glm4;
pub(crate) mod glm4_moe;
pub(crate) mod gpt2;
pub(crate) mod gpt_oss;
pub(crate) mod granite;
pub(crate) mod hunyuan_v1_dense;
pub(crate) mod llama;
pub(crate) mod mistral;
pub(crate) mod mixtral;
pub(crate) mod olmo2;
pub(crate) mod phi3;
pub(crate) mod qwen2;
pub(crate) mod qwen2_moe;
pub(crate) mod qwen3;
pub(crate) mod qwen3_5;
pub(crate) mod qwen3_5_moe;
pub(crate) mod qwen3_moe;
pub(crate) mod qwen3_next;
pub(crate) mod smollm3;

use crate::architecture_info;
use crate::builder::Builder;
use crate::config::Section;
use crate::tensors::Tensors;
use forge_ir::Apply;

/// All architectures, in the order of messages.
pub(crate) const ALL: &[Architecture] = &[
    crate::architectures::cohere2::ARCHITECTURE,
    crate::architectures::deepseek_v2::ARCHITECTURE,
    crate::architectures::deepseek_v3::ARCHITECTURE,
    crate::architectures::ernie4_5::ARCHITECTURE,
    crate::architectures::gemma2::ARCHITECTURE,
    crate::architectures::gemma3::ARCHITECTURE,
    crate::architectures::gemma3::WRAPPED,
    crate::architectures::gemma4::ARCHITECTURE,
    crate::architectures::gemma4::WRAPPED,
    crate::architectures::glm4::ARCHITECTURE,
    crate::architectures::glm4_moe::ARCHITECTURE,
    crate::architectures::gpt2::ARCHITECTURE,
    crate::architectures::gpt_oss::ARCHITECTURE,
    crate::architectures::granite::ARCHITECTURE,
    crate::architectures::hunyuan_v1_dense::ARCHITECTURE,
    crate::architectures::llama::ARCHITECTURE,
    crate::architectures::mistral::ARCHITECTURE,
    crate::architectures::mixtral::ARCHITECTURE,
    crate::architectures::olmo2::ARCHITECTURE,
    crate::architectures::phi3::ARCHITECTURE,
    crate::architectures::qwen2::ARCHITECTURE,
    crate::architectures::qwen2_moe::ARCHITECTURE,
    crate::architectures::qwen3::ARCHITECTURE,
    crate::architectures::qwen3_5::ARCHITECTURE,
    crate::architectures::qwen3_5::WRAPPED,
    crate::architectures::qwen3_5_moe::ARCHITECTURE,
    crate::architectures::qwen3_5_moe::WRAPPED,
    crate::architectures::qwen3_moe::ARCHITECTURE,
    crate::architectures::qwen3_next::ARCHITECTURE,
    crate::architectures::smollm3::ARCHITECTURE,
];

/// Multimodal classes and their text models. transformers loads the text model if the configuration is that
/// of the text model, whatever class it names.
const TEXT_MODELS: [[&Architecture; 2]; 2] = [
    [&crate::architectures::qwen3_5::WRAPPED, &crate::architectures::qwen3_5::ARCHITECTURE],
    [&crate::architectures::qwen3_5_moe::WRAPPED, &crate::architectures::qwen3_5_moe::ARCHITECTURE],
];

/// A supported architecture.
pub(crate) struct Architecture {
    /// `architectures` in config.json.
    pub(crate) class: &'static str,
    /// `model_type` in config.json.
    pub(crate) family: &'static str,
    /// Example repositories on the hub.
    pub(crate) hub: &'static [&'static str],
    /// Reads the configuration into a description. Problems are recorded in the configuration.
    pub(crate) read: fn(&Section<'_>) -> Box<dyn Blueprint>,
}

/// A model's description without its tensors.
pub(crate) trait Blueprint {
    /// Adjusts the description to the checkpoint's tensors before building. Returns notes for the user.
    fn find(&mut self, _tensors: &Tensors) -> Vec<String> {
        Vec::new()
    }

    /// Builds all layers and binds their tensors.
    fn build(&self, builder: &mut Builder<'_>) -> Parts;
}

/// The parts of a built graph.
pub(crate) struct Parts {
    /// Rows of the embedding table and of the head.
    pub(crate) vocabulary: usize,
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Maximum context length of the model.
    pub(crate) context: usize,
    /// Tensors that may be stored although the second of each pair is used instead; the two must be equal.
    pub(crate) copies: Vec<(String, String)>,
    /// Token ids -> stream.
    pub(crate) prologue: Apply,
    /// stream -> stream
    pub(crate) layers: Vec<Apply>,
    /// stream -> logits
    pub(crate) epilogue: Apply,
}

/// The architecture that a configuration names, or `None` after recording an error. Class names are compared
/// without case, because the first Llama checkpoints have `LLaMAForCausalLM`.
pub(crate) fn of(config: &Section<'_>) -> Option<&'static Architecture> {
    if config.is_broken() {
        return None;
    }
    let family = config.word("model_type");
    let classes = config.get("architectures");
    let class = classes.and_then(|classes| classes.get(0)).and_then(serde_json::Value::as_str);
    let (key, found) = match (class, family) {
        (Some(class), _) => {
            ("architectures[0]", ALL.iter().find(|known| known.class.eq_ignore_ascii_case(class)))
        }
        (None, Some(family)) => ("model_type", ALL.iter().find(|known| known.family == family)),
        (None, None) => {
            config.count("model_type");
            return None;
        }
    };
    match (found, family) {
        (None, _) => {
            let name = class.or(family).unwrap_or_default();
            config.refuse_architecture(key, name, &architecture_info::way_out(name, config.document()));
        }
        // A custom model type with its own code: the class determines the architecture.
        (Some(_), Some(family))
            if config.has_beside("auto_map") && ALL.iter().all(|known| known.family != family) => {}
        (Some(known), Some(family)) if known.family != family => {
            let text = text_model(known).filter(|text| text.family == family);
            if text.is_some() && config.get("text_config").is_none() {
                return text;
            }
            config.contradiction(
                "model_type",
                format!("the architecture {} has model_type {}, found {family}", known.class, known.family),
            );
        }
        _ => {}
    }
    found
}

/// The text model of a multimodal architecture.
fn text_model(known: &Architecture) -> Option<&'static Architecture> {
    let [_, text] = TEXT_MODELS.into_iter().find(|[wrapper, _]| wrapper.class == known.class)?;
    Some(text)
}

/// A note if the configuration names a multimodal class but is that of its text model.
pub(crate) fn note(config: &Section<'_>, architecture: &Architecture) -> Option<String> {
    let class = config.get("architectures")?.get(0)?.as_str()?;
    (!architecture.class.eq_ignore_ascii_case(class)).then(|| {
        format!(
            "architectures is {class}, but the configuration is that of its text model: compiling as {}",
            architecture.class
        )
    })
}
