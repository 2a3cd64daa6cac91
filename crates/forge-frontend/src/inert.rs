//! Keys that do not change what a model computes: whatever the architecture, or to one of them.
//!
//! Some are inert at any value, others only at the value that switches them off: any other value is a fault. Keys that are
//! inert beside what other keys say are passed over where those are read.

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
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
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

/// Keys that only one family has, and why they are inert there at any value.
const OF: &[(&str, &str, &[&str])] = &[
    ("cohere2", "what the layers' types were made of, beside them", &["_sliding_window_pattern"]),
    ("gemma3_text", "what the layers' types were made of, beside them", &["_sliding_window_pattern"]),
    ("cohere2", "of what other keys tell once more", &["layer_switch", "use_parallel_embedding"]),
    (
        "deepseek_v2",
        "of training, and of where experts are computed",
        &["aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux"],
    ),
    ("deepseek_v2", "weights of experts are no shares, whatever it says", &["norm_topk_prob"]),
    ("deepseek_v2", "what two other keys are together", &["qk_head_dim"]),
    (
        "deepseek_v3",
        "of training, and of where experts are computed",
        &["aux_loss_alpha", "ep_size", "pretraining_tp", "seq_aux"],
    ),
    (
        "deepseek_v3",
        "layers that guess further tokens, which are left out",
        &["num_mtp_layers", "num_nextn_predict_layers"],
    ),
    ("deepseek_v3", "what two other keys are together", &["qk_head_dim"]),
    (
        "gemma2",
        "of before hidden_activation and sliding_window, beside them",
        &["hidden_act", "sliding_window_size"],
    ),
    (
        "gemma3_text",
        "of before hidden_activation and sliding_window, beside them",
        &["hidden_act", "sliding_window_size"],
    ),
    ("gemma3_text", "a leftover that transformers does not compute", &["attn_logit_softcapping"]),
    (
        "gemma3",
        "of pictures, and where they stand in a text",
        &["boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image", "vision_config"],
    ),
    (
        "gemma4",
        "of pictures and sounds, and where they stand in a text",
        &[
            "audio_config",
            "audio_token_id",
            "boa_token_id",
            "boi_token_id",
            "eoa_token_id",
            "eoa_token_index",
            "eoi_token_id",
            "image_token_id",
            "video_token_id",
            "vision_config",
            "vision_soft_tokens_per_image",
        ],
    ),
    ("gpt2", "there is nothing to reorder in one number format", &["reorder_and_upcast_attn"]),
    ("gpt2", "the older name of the context, beside the newer", &["n_ctx"]),
    ("gpt2", "of training", &["attn_pdrop"]),
    (
        "gpt2",
        "of a head that sums texts up",
        &[
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        ],
    ),
    (
        "hunyuan_v1_dense",
        "of training, of pictures, and of what other keys switch off",
        &[
            "attention_head_dim",
            "cla_share_factor",
            "class_num",
            "dense_list",
            "enable_lm_head_fp32",
            "eod_token_id",
            "im_end_id",
            "im_newline_id",
            "im_start_id",
            "mask_init_id",
            "org_vocab_size",
            "pad_id",
            "pool_type",
            "text_end_id",
            "text_start_id",
        ],
    ),
    ("glm4_moe", "of layers that guess further tokens", &["num_mtp_layers", "num_nextn_predict_layers"]),
    ("qwen3_moe", "of windows, which all layers have or none", &["max_window_layers"]),
    ("qwen3_5", QWEN_PICTURES.0, QWEN_PICTURES.1),
    ("qwen3_5_moe", QWEN_PICTURES.0, QWEN_PICTURES.1),
    ("qwen3_5_text", QWEN_GUESSES.0, QWEN_GUESSES.1),
    ("qwen3_5_moe_text", QWEN_GUESSES.0, QWEN_GUESSES.1),
    ("qwen3_5_moe_text", "of layers without experts, of which there are none", &["intermediate_size"]),
    (
        "smollm3",
        "of windows, which layers have by their types alone",
        &["max_window_layers", "sliding_window"],
    ),
];

const QWEN_PICTURES: (&str, &[&str]) = (
    "of pictures, and where they stand in a text",
    &["image_token_id", "video_token_id", "vision_config", "vision_end_token_id", "vision_start_token_id"],
);

const QWEN_GUESSES: (&str, &[&str]) = (
    "of tokens guessed ahead, and of the format that others compute memories in",
    &["mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"],
);

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
    ("use_sliding_window", "false", "attends to a window only"),
];

/// Passes over every inert key of a family, and refuses values that are not inert of keys that it has not asked for.
pub(crate) fn check(root: &Section<'_>, family: &str) {
    let own = OF.iter().filter(|(of, _, _)| *of == family).flat_map(|(_, _, keys)| *keys);
    for key in ANY.iter().chain(own) {
        root.pass_over(key);
    }
    for (key, inert, why) in ONLY {
        if !root.was_known(key) {
            let inert: Value = serde_json::from_str(inert).unwrap_or_default();
            root.only(key, inert, &format!("a model with this {why}"));
        }
    }
}
