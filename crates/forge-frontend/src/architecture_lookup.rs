//! Finds the architecture that a configuration names.

use crate::architecture_info;
use crate::architectures::{ALL, TEXT_MODELS};
use crate::blueprint::Architecture;
use crate::config::section::Section;

/// The architecture that a configuration names, or `None` after recording an error. Class names are compared
/// without case, because the first Llama checkpoints have `LLaMAForCausalLM`.
pub(crate) fn of(config: &Section<'_>) -> Option<&'static Architecture> {
    if config.is_incomplete() {
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
            config.reject_architecture(key, name, &architecture_info::remedies(name, config.document()));
        }
        // A custom model type with its own code: the class determines the architecture.
        (Some(_), Some(family))
            if config.contains_key_unread("auto_map") && ALL.iter().all(|known| known.family != family) => {}
        (Some(known), Some(family)) if known.family != family => {
            let text = text_model(known).filter(|text| text.family == family);
            if text.is_some() && config.get("text_config").is_none() {
                return text;
            }
            config.report_inconsistency(
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
