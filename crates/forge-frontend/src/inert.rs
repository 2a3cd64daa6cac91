//! Keys that do not change what a model computes, whatever the architecture.
//!
//! Some are inert at any value, others only at the value that switches them off: any other value is a fault.

use crate::config::Section;
use serde_json::Value;

/// Training, bookkeeping and defaults of text generation: without effect on the logits at any value.
const ANY: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "neftune_noise_alpha",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Keys with the value at which they are inert, and what any other value would mean.
const ONLY: &[(&str, &str, &str)] = &[
    ("add_cross_attention", "false", "asks for an encoder's output"),
    ("chunk_size_feed_forward", "0", "computes the feed-forward network in pieces"),
    ("cross_attention_hidden_size", "null", "asks for an encoder's output"),
    ("is_decoder", "false", "is a part of an encoder and a decoder"),
    ("is_encoder_decoder", "false", "is an encoder and a decoder"),
    ("pretraining_tp", "1", "splits matrices, which sums in another order"),
    ("pruned_heads", "{}", "lacks some of its heads"),
    ("quantization", "null", "is quantised: its tensors are codes, not numbers"),
    ("quantization_config", "null", "is quantised: its tensors are codes, not numbers"),
    ("sliding_window", "null", "attends to a window only"),
    ("tie_encoder_decoder", "false", "is an encoder and a decoder"),
];

/// Asks for every inert key that the architecture has not asked for, and refuses values that are not inert.
pub(crate) fn check(root: &Section<'_>) {
    for key in ANY {
        root.get(key);
    }
    for (key, inert, why) in ONLY {
        if !root.was_asked(key) {
            let inert: Value = serde_json::from_str(inert).unwrap_or_default();
            root.only(key, inert, &format!("a model with this {why}"));
        }
    }
}
