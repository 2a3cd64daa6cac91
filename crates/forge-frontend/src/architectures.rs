//! The architectures that forge knows, one file each.
//!
//! An [`Architecture`] reads a configuration into a [`Blueprint`]; the blueprint builds the graph over the tensors.

mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod ernie4_5;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_oss;
mod granite;
mod hunyuan_v1_dense;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod smollm3;

use crate::builder::Builder;
use crate::config::Section;
use crate::families;
use crate::tensors::Tensors;
use forge_ir::Apply;

/// Every architecture; the order is that of messages.
pub(crate) const ALL: &[Architecture] = &[
    cohere2::ARCHITECTURE,
    deepseek_v2::ARCHITECTURE,
    deepseek_v3::ARCHITECTURE,
    ernie4_5::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    gemma3::WRAPPED,
    gemma4::ARCHITECTURE,
    gemma4::WRAPPED,
    glm4::ARCHITECTURE,
    glm4_moe::ARCHITECTURE,
    gpt2::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
    granite::ARCHITECTURE,
    hunyuan_v1_dense::ARCHITECTURE,
    llama::ARCHITECTURE,
    mistral::ARCHITECTURE,
    mixtral::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    phi3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen2_moe::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen3_5::ARCHITECTURE,
    qwen3_5::WRAPPED,
    qwen3_5_moe::ARCHITECTURE,
    qwen3_5_moe::WRAPPED,
    qwen3_moe::ARCHITECTURE,
    qwen3_next::ARCHITECTURE,
    smollm3::ARCHITECTURE,
];

/// Classes of multimodal models, and those of their text models, which transformers loads where the configuration is the text
/// model's, whatever class it names.
const TEXT_MODELS: [[&Architecture; 2]; 2] =
    [[&qwen3_5::WRAPPED, &qwen3_5::ARCHITECTURE], [&qwen3_5_moe::WRAPPED, &qwen3_5_moe::ARCHITECTURE]];

/// How one family of checkpoints is understood.
pub(crate) struct Architecture {
    /// What `architectures` says in config.json.
    pub(crate) class: &'static str,
    /// What `model_type` says in config.json.
    pub(crate) family: &'static str,
    /// Repositories of the hub that hold such models, for people who look for one.
    pub(crate) hub: &'static [&'static str],
    /// From the configuration to a description of the model. Faults are noted in the configuration.
    pub(crate) read: fn(&Section<'_>) -> Box<dyn Blueprint>,
}

/// A model's description, complete but for its tensors.
pub(crate) trait Blueprint {
    /// Takes in what the tensors alone tell, before anything is built. Gives notes for the user on what was decided by them.
    fn find(&mut self, _tensors: &Tensors) -> Vec<String> {
        Vec::new()
    }

    /// Builds every layer, binding tensors as it goes.
    fn build(&self, builder: &mut Builder<'_>) -> Parts;
}

/// What a blueprint has built.
pub(crate) struct Parts {
    /// Rows of the embedding table and of the head.
    pub(crate) vocabulary: usize,
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    /// Positions the model was made for.
    pub(crate) context: usize,
    /// Tensors that may be in the file although the second is used in their place; they have to be equal.
    pub(crate) copies: Vec<(String, String)>,
    /// ids -> stream
    pub(crate) prologue: Apply,
    /// stream -> stream
    pub(crate) layers: Vec<Apply>,
    /// stream -> logits
    pub(crate) epilogue: Apply,
}

/// The architecture that a configuration names, or the fault noted in it. Letters' case in a class does not count: the first
/// Llama checkpoints are of a `LLaMAForCausalLM`.
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
            config.refuse_architecture(key, name, &families::way_out(name, config.document()));
        }
        // A type of the authors' own, whose code comes with the checkpoint: the class says what is computed.
        (Some(_), Some(family))
            if config.has_beside("auto_map") && ALL.iter().all(|known| known.family != family) => {}
        (Some(known), Some(family)) if known.family != family => {
            let text = text_model(known).filter(|text| text.family == family);
            if text.is_some() && config.get("text_config").is_none() {
                return text;
            }
            config.contradiction(
                "model_type",
                format!("the architecture {} is of the type {}, not {family}", known.class, known.family),
            );
        }
        _ => {}
    }
    found
}

/// The text model of a multimodal one.
fn text_model(known: &Architecture) -> Option<&'static Architecture> {
    let [_, text] = TEXT_MODELS.into_iter().find(|[wrapper, _]| wrapper.class == known.class)?;
    Some(text)
}

/// Says that a configuration names the class of a multimodal model, and is read as that of its text model.
pub(crate) fn note(config: &Section<'_>, architecture: &Architecture) -> Option<String> {
    let class = config.get("architectures")?.get(0)?.as_str()?;
    (!architecture.class.eq_ignore_ascii_case(class)).then(|| {
        format!(
            "architectures names {class}, and model_type and the other keys are those of its text model: it is compiled as {}",
            architecture.class
        )
    })
}
