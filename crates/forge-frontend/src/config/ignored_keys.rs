//! Keys that the reference implementation reads although they have no effect: what `reference` cannot decide.
//!
//! Some have no effect at any value, others only at a value that disables them. Keys that have no effect in
//! combination with other keys are ignored where those are read.

use crate::config::section::Section;
use crate::quantization::scheme;
use serde_json::Value;

/// Keys without effect at any value, and why.
const ANY: &[(&str, &str)] = &[
    ("_attn_implementation", "selects an attention implementation of the reference"),
    ("original_max_position_embeddings", "read with RoPE scaling; no effect without it"),
    ("pad_token_id", "embedding row without gradient"),
];

/// Keys of a single model type without effect at any value, and why.
const OF: &[(&str, &str, &[&str])] = &[
    ("gemma3_text", "layer_types was derived from it", &["_sliding_window_pattern"]),
    (
        "gemma3",
        "image inputs",
        &["image_token_id", "image_token_index", "mm_tokens_per_image", "vision_config"],
    ),
    (
        "gemma4",
        "image and audio inputs",
        &["audio_config", "audio_token_id", "image_token_id", "video_token_id", "vision_config"],
    ),
    ("gpt2", "no effect without mixed precision", &["reorder_and_upcast_attn"]),
    ("qwen3_5", QWEN_IMAGES.0, QWEN_IMAGES.1),
    ("qwen3_5_moe", QWEN_IMAGES.0, QWEN_IMAGES.1),
];

const QWEN_IMAGES: (&str, &[&str]) = ("image inputs", &["image_token_id", "video_token_id", "vision_config"]);

/// Keys with the value at which they have no effect, and the message for any other value.
const ONLY: &[(&str, &str, &str)] = &[
    ("layer_types", r#""full_attention""#, "other layer types are unsupported for this architecture"),
    ("quantization", "null", "mxfp4 is supported for gpt-oss only"),
    ("quantization_config", "null", "mxfp4 is supported for gpt-oss only"),
];

/// Ignores keys without effect and rejects other values of unread keys that have an effect.
pub(crate) fn check(root: &Section<'_>, family: &str) {
    let own = OF.iter().filter(|(of, _, _)| *of == family).flat_map(|(_, _, keys)| *keys);
    for key in ANY.iter().map(|(key, _)| key).chain(own) {
        root.mark_inert(key);
    }
    for (key, inert, why) in ONLY {
        let is_scheme = *key == scheme::KEY && scheme::names_a_method(root);
        if !root.is_known(key) && !is_scheme {
            let inert: Value = serde_json::from_str(inert).unwrap_or_default();
            root.allow_only(key, inert, why);
        }
    }
}
