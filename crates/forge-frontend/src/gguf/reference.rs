//! The metadata keys that llama.cpp's loader reads.
//!
//! A key that neither forge nor the loader reads is accepted. A key that only the loader reads is an error
//! unless its value is the default.

use crate::gguf::families;
use crate::gguf::format::value::Value;

/// Architecture-specific keys that the loader reads for every architecture. A trailing `.` matches all keys
/// with that prefix.
const COMMON_KEYS: &[&str] = &[
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length",
    "attention.value_length_swa",
    "block_count",
    "context_length",
    "embedding_length",
    "embedding_length_out",
    "embedding_scale",
    "expert_count",
    "expert_group_count",
    "expert_group_used_count",
    "expert_used_count",
    "feed_forward_length",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "residual_scale",
    "rope.",
    "tensor_data_layout",
    "use_parallel_residual",
    "vocab_size",
];

/// Tokenizer keys that the loader reads.
const TOKENIZER_KEYS: &[&str] = &[
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "bos_token_id",
    "eom_token_id",
    "eos_token_id",
    "eot_token_id",
    "merges",
    "model",
    "normalizer.lowercase",
    "normalizer.strip_accents",
    "pre",
    "precompiled_charsmap",
    "remove_extra_whitespaces",
    "scores",
    "suppress_tokens",
    "token_type",
    "tokens",
    "unknown_token_id",
];

/// Keys with the loader's default values.
const DEFAULTS: &[(&str, f64)] =
    &[("rope.scaling.attn_factor", 1.0), ("attention.scale", 0.0), ("embedding_length_out", 0.0)];

/// Whether a key has an effect in llama.cpp, compared with leaving it out.
pub(crate) fn has_effect(architecture: &str, key: &str, value: &Value) -> bool {
    let family = families::from_name(architecture);
    if let Some(key) = key.strip_prefix(crate::gguf::tokenizer::vocabulary::KEYS) {
        return TOKENIZER_KEYS.contains(&key);
    }
    let Some(key) = key.strip_prefix(architecture).and_then(|key| key.strip_prefix('.')) else {
        return false;
    };
    let matches = |known: &&str| match known.ends_with('.') {
        true => key.starts_with(*known),
        false => key == *known,
    };
    let of_some = family.map_or(&[][..], |family| family.keys);
    let is_default = |(of, default): &(&str, f64)| {
        *of == key
            && match value {
                Value::Float(number) => number == default,
                Value::Unsigned(number) => *number as f64 == *default,
                _ => false,
            }
    };
    COMMON_KEYS.iter().chain(of_some).any(matches) && !DEFAULTS.iter().any(is_default)
}
