//! Keys without effect that the reference implementation reads all the same: what [`crate::reference`] cannot decide.
//!
//! Some have no effect at any value, others only at the value that switches them off: any other value is a fault. Keys that have no
//! effect beside what other keys say are passed over where those are read.

use crate::config::Section;
use serde_json::Value;

/// Keys without effect at any value, and why.
const ANY: &[(&str, &str)] = &[
    ("_attn_implementation", "which of the reference's kernels computes attention"),
    ("original_max_position_embeddings", "read with scaled positions, and without effect beside others"),
    ("pad_token_id", "the row of the embedding table that gets no gradient"),
];

/// Keys that only one family has, and why they have no effect there at any value.
const OF: &[(&str, &str, &[&str])] = &[
    ("gemma3_text", "what the layers' types were made of, beside them", &["_sliding_window_pattern"]),
    (
        "gemma3",
        "of images, and where they stand in a text",
        &["image_token_id", "image_token_index", "mm_tokens_per_image", "vision_config"],
    ),
    (
        "gemma4",
        "of images and sounds, and where they stand in a text",
        &["audio_config", "audio_token_id", "image_token_id", "video_token_id", "vision_config"],
    ),
    ("gpt2", "one number format has nothing to reorder", &["reorder_and_upcast_attn"]),
    ("qwen3_5", QWEN_IMAGES.0, QWEN_IMAGES.1),
    ("qwen3_5_moe", QWEN_IMAGES.0, QWEN_IMAGES.1),
];

const QWEN_IMAGES: (&str, &[&str]) =
    ("of images, and where they stand in a text", &["image_token_id", "video_token_id", "vision_config"]);

/// Keys with the value at which they have no effect, and what any other value would mean.
const ONLY: &[(&str, &str, &str)] = &[
    ("layer_types", r#""full_attention""#, "has layers that see a part of the positions, or none"),
    ("quantization", "null", "is quantised: its tensors are codes, not numbers"),
    ("quantization_config", "null", "is quantised: its tensors are codes, not numbers"),
];

/// Passes over every key of a family without effect, and refuses values that have one of keys that it has not asked for.
pub(crate) fn check(root: &Section<'_>, family: &str) {
    let own = OF.iter().filter(|(of, _, _)| *of == family).flat_map(|(_, _, keys)| *keys);
    for key in ANY.iter().map(|(key, _)| key).chain(own) {
        root.pass_over(key);
    }
    for (key, inert, why) in ONLY {
        if !root.was_known(key) {
            let inert: Value = serde_json::from_str(inert).unwrap_or_default();
            root.only(key, inert, &format!("a model with this {why}"));
        }
    }
}
