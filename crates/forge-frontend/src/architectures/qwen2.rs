//! Qwen2: the standard decoder; queries, keys and values always have biases, and nothing else has.

use super::{Architecture, Blueprint};
use crate::config::Section;
use crate::decoder::{Decoder, Defaults};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { class: "Qwen2ForCausalLM", family: "qwen2", read };

const DEFAULTS: Defaults = Defaults { context: 32_768, epsilon: 1e-6, theta: 1e4, tied: false };

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let mut model = Decoder::read(config, &DEFAULTS);
    model.attention.input_bias = true;
    refuse_windows(config, model.layers);
    Box::new(model)
}

/// Layers from `max_window_layers` on see the last `sliding_window` tokens only, where `use_sliding_window` is true.
fn refuse_windows(config: &Section<'_>, layers: usize) {
    const WHY: &str = "forge cannot compute attention to a window";
    // Not a count: 0 is a value of it, every layer having a window.
    let first = config.number_or("max_window_layers", 28.0);
    if config.flag_or("use_sliding_window", false) && first < layers as f64 {
        config.refuse("use_sliding_window", WHY, &[format!("layers from {first} of {layers} on have one")]);
    }
    // What the two keys come to, layer by layer; newer files have both.
    config.only("layer_types", "full_attention", WHY);
    // No layer has a window by now, so its width means nothing.
    config.get("sliding_window");
}
