//! Mistral: the standard decoder without biases. All layers have a sliding window unless the configuration
//! disables it.

use crate::blueprint::{Architecture, Blueprint};
use crate::config::section::Section;
use crate::decoder::Decoder;
use crate::defaults::Defaults;
use crate::layers::sliding_window::Windows;

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    class: "MistralForCausalLM",
    family: "mistral",
    hub: &["mistralai/Mistral-7B-Instruct-v0.3"],
    read,
};

const DEFAULTS: Defaults = Defaults { context: 131_072, key_heads: Some(8), ..Defaults::COMMON };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.windows = Windows::of_all(config, model.context);
    Box::new(model)
}
