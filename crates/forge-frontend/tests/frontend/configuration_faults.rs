//! Broken configuration files, one fault each.

use crate::common::edit;
use crate::fault_edits::{CONFIG, Change, set, text};
use serde_json::json;

pub(crate) const CONFIGURATIONS: &[(&str, Change)] = &[
    ("no config.json", |files| {
        files.0.remove(CONFIG);
    }),
    ("invalid JSON", |files| text(files, CONFIG, "{\n  \"hidden_size\": 64,\n  \"vocab_size\" 512\n}")),
    ("not an object", |files| text(files, CONFIG, "[1, 2]")),
    ("invalid UTF-8", |files| {
        files.0.insert(CONFIG.to_owned(), vec![b'{', 0xff]);
    }),
    ("duplicate key", |files| text(files, CONFIG, r#"{"hidden_size": 64, "hidden_size": 65}"#)),
    ("unknown architecture", set!("architectures": ["MysteryForCausalLM"], "model_type": "mystery")),
    (
        "misspelled architecture",
        set!(
            "architectures": ["Qwen3OmniForCausalLM"], "model_type": "qwen3_omni", "num_experts": 8,
            "num_experts_per_tok": 2, "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1,
            "hidden_act": "quick_gelu"
        ),
    ),
    ("unknown architecture without a similar name", |files| {
        text(files, CONFIG, r#"{"architectures": ["FogModel"], "a": 1, "b": 2, "c": {"d": 3}}"#)
    }),
    ("unknown model_type", set!("architectures": "REMOVE", "model_type": "mystery")),
    ("neither architecture nor model_type", set!("architectures": "REMOVE", "model_type": "REMOVE")),
    ("architecture of another model_type", set!("model_type": "mystery")),
    ("missing key", set!("hidden_size": "REMOVE")),
    ("misspelled key", set!("num_hidden_layers": "REMOVE", "num_hiden_layers": 2)),
    ("unread key that transformers reads", set!("attention_chunk_size": 128)),
    (
        "unread nested key that transformers reads",
        set!("rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}),
    ),
    (
        "wrong types",
        set!("hidden_size": "64", "rope_theta": [1], "attention_bias": 1, "num_attention_heads": 0),
    ),
    ("unknown activation", set!("hidden_act": "quick_gelu")),
    ("unsupported quantization", set!("quantization_config": {"quant_method": "hqq"})),
    ("unsupported scaling", set!("rope_scaling": {"rope_type": "fog", "factor": 4.0, "beta_fast": 32})),
    ("RoPE factor below 1", set!("rope_scaling": {"type": "dynamic", "factor": 0.5})),
    ("RoPE factor beyond the limit", set!("rope_scaling": {"type": "dynamic", "factor": 3e38})),
    ("RoPE factor beyond f32", set!("rope_scaling": {"type": "dynamic", "factor": 1e300})),
    (
        "dynamic RoPE with another original context",
        set!("rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}),
    ),
    (
        "proportional RoPE with too many pairs",
        set!("rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 1.5}),
    ),
    ("proportional RoPE with factor 0", set!("rope_scaling": {"rope_type": "proportional", "factor": 0})),
    ("RoPE scaling without factors", set!("rope_scaling": {"rope_type": "llama3", "factor": 8.0})),
    (
        "two different RoPE scalings",
        set!("rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1}),
    ),
    ("two RoPE bases", set!("rope_parameters": {"rope_theta": 500.0})),
    ("partial RoPE", set!("partial_rotary_factor": 0.5)),
    ("query heads not a multiple of key heads", set!("num_key_value_heads": 3)),
    ("hidden size not a multiple of heads", set!("num_attention_heads": 6)),
    ("odd head dimension", set!("head_dim": 15)),
    ("head dimension beyond the limit", set!("head_dim": 4_000_000_000_u32)),
    (
        "Mistral: sliding window of 0",
        set!("architectures": "REMOVE", "model_type": "mistral", "sliding_window": 0),
    ),
    (
        "Qwen2: sliding layers while windows are disabled",
        set!(
            "architectures": "REMOVE", "model_type": "qwen2", "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    (
        "Qwen3: sliding layers without a window",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3", "use_sliding_window": true, "sliding_window": null,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    (
        "Qwen3: layer_types too short",
        set!("architectures": "REMOVE", "model_type": "qwen3", "layer_types": ["full_attention"]),
    ),
    (
        "Qwen3: unsupported layer type",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3",
            "layer_types": ["full_attention", "linear_attention"]
        ),
    ),
    (
        "Qwen3: layer_types is not a list of strings",
        set!("architectures": "REMOVE", "model_type": "qwen3", "layer_types": [1, 0]),
    ),
    (
        "Qwen3.5: value heads not a multiple of key heads",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5_text", "linear_num_key_heads": 3,
            "linear_num_value_heads": 4
        ),
    ),
    (
        "Qwen3.5: unsupported activation and convolution width",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5_text", "linear_conv_kernel_dim": 1,
            "hidden_act": "gelu", "layer_types": ["sliding_attention", "full_attention"]
        ),
    ),
    (
        "Qwen3.5: layer_types too short",
        set!("architectures": "REMOVE", "model_type": "qwen3_5_text", "layer_types": ["full_attention"]),
    ),
    (
        "Qwen3.5: multimodal config without text_config",
        set!("architectures": "REMOVE", "model_type": "qwen3_5"),
    ),
    (
        "Qwen3.5: multimodal config with another text model",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5", "tie_word_embeddings": true,
            "text_config": {
                "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56,
                "num_attention_heads": 4, "vocab_size": 512
            }
        ),
    ),
    (
        "Qwen3.5: tie_word_embeddings differs from text_config",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5", "tie_word_embeddings": true,
            "text_config": {
                "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56,
                "num_attention_heads": 4, "vocab_size": 512
            }
        ),
    ),
    (
        "Gemma2: sliding layers without a window",
        set!("architectures": "REMOVE", "model_type": "gemma2", "sliding_window": null),
    ),
    (
        "Gemma2: softcaps of 0 or less",
        set!(
            "architectures": "REMOVE", "model_type": "gemma2",
            "attn_logit_softcapping": 0, "final_logit_softcapping": "30"
        ),
    ),
    (
        "Gemma2: bidirectional attention",
        set!("architectures": "REMOVE", "model_type": "gemma2", "use_bidirectional_attention": true),
    ),
    (
        "Gemma2: unsupported activation",
        set!("architectures": "REMOVE", "model_type": "gemma2", "hidden_activation": "tanh"),
    ),
    (
        "SmolLM3: sliding window",
        set!(
            "architectures": "REMOVE", "model_type": "smollm3", "use_sliding_window": true,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    (
        "SmolLM3: no_rope_layers too short",
        set!("architectures": "REMOVE", "model_type": "smollm3", "no_rope_layers": [1]),
    ),
    (
        "SmolLM3: no_rope_layers is not a list of numbers",
        set!("architectures": "REMOVE", "model_type": "smollm3", "no_rope_layers": [1, "no"]),
    ),
    (
        "longrope: too few factors",
        set!("rope_scaling": {
            "rope_type": "longrope", "short_factor": [1.0], "long_factor": "2", "original_max_position_embeddings": 64
        }),
    ),
    (
        "Phi3: unsupported RoPE scaling",
        set!(
            "architectures": "REMOVE", "model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}
        ),
    ),
    (
        "Phi3: conflicting original context",
        set!(
            "architectures": "REMOVE", "model_type": "phi3",
            "rope_scaling": {
                "type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 1, 1, 1, 1, 1, 1, 1],
                "original_max_position_embeddings": 64
            }
        ),
    ),
    (
        "Phi3: biases",
        set!("architectures": "REMOVE", "model_type": "phi3", "attention_bias": true, "lm_head_bias": true),
    ),
    (
        "Granite: residual multiplier of 0",
        set!("architectures": "REMOVE", "model_type": "granite", "residual_multiplier": 0),
    ),
    (
        "Gemma3: both spellings of a key",
        set!(
            "architectures": "REMOVE", "model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0},
            "rope_parameters": {"full_attention": {"rope_type": "default"}}
        ),
    ),
    (
        "Gemma4: experts and bidirectional attention",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "enable_moe_block": true,
            "use_bidirectional_attention": "all"
        ),
    ),
    (
        "Gemma4: shared KV without a source layer",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 1
        ),
    ),
    (
        "Gemma4: fractional layer count",
        set!("architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "num_kv_shared_layers": 0.5),
    ),
    (
        "Gemma4: two head shapes for one layer type",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE",
            "layer_types": ["full_attention", "full_attention"], "per_layer_config": {"0": {"head_dim": 8}}
        ),
    ),
    (
        "Gemma4: query heads not a multiple of key heads",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "attention_k_eq_v": true,
            "num_global_key_value_heads": 3
        ),
    ),
    (
        "Gemma4: per-layer vocabulary smaller than the vocabulary",
        set!("architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "vocab_size_per_layer_input": 8),
    ),
    (
        "Gemma4: layer type without RoPE, and RoPE without a base",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE",
            "rope_parameters": {"full_attention": {"rope_type": "proportional"}}
        ),
    ),
    (
        "Gemma4: RoPE scaling that depends on the context length",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                "sliding_attention": {"factor": 2.0, "rope_theta": 1e4, "rope_type": "dynamic"}
            }
        ),
    ),
    (
        "Gemma4: multimodal config without text_config",
        set!("architectures": "REMOVE", "model_type": "gemma4", "rope_theta": "REMOVE"),
    ),
    (
        "Gemma3: multimodal config without text_config",
        set!("architectures": "REMOVE", "model_type": "gemma3"),
    ),
    (
        "Gemma3: multimodal config with another text model",
        set!(
            "architectures": "REMOVE", "model_type": "gemma3", "tie_word_embeddings": false,
            "text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56}
        ),
    ),
    (
        "Gemma3: softcapped logits in a multimodal config",
        set!(
            "architectures": "REMOVE", "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56,
                "final_logit_softcapping": 30.0
            }
        ),
    ),
    (
        "Cohere2: head dimension differs from hidden size per head",
        set!("architectures": "REMOVE", "model_type": "cohere2", "head_dim": 32),
    ),
    (
        "Mixtral: more experts per token than experts",
        set!(
            "architectures": "REMOVE", "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5
        ),
    ),
    (
        "Mixtral: expert count beyond the limit",
        set!(
            "architectures": "REMOVE", "model_type": "mixtral", "num_local_experts": 5000, "num_experts_per_tok": 5
        ),
    ),
    (
        "Mixtral: two expert counts",
        set!(
            "architectures": "REMOVE", "model_type": "mixtral", "num_local_experts": 4, "num_experts": 6,
            "num_experts_per_tok": 2
        ),
    ),
    (
        "gpt-oss: unsupported quantization method",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "quantization_config": {"bits": 4, "quant_method": "gptq"}
        ),
    ),
    (
        "gpt-oss: unsupported MLX quantization mode",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "quantization": {"group_size": 16, "bits": 8, "mode": "nvfp8"}
        ),
    ),
    (
        "gpt-oss: MLX group size that the mode does not have",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "quantization": {"group_size": 64, "bits": 8, "mode": "mxfp4"}
        ),
    ),
    (
        "gpt-oss: gate limit of 0",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "swiglu_limit": 0.0
        ),
    ),
    (
        "GLM 4.5: experts not a multiple of groups",
        set!(
            "architectures": "REMOVE", "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "n_group": 3
        ),
    ),
    (
        "GLM 4.5: selected groups with too few experts",
        set!(
            "architectures": "REMOVE", "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "n_group": 4, "topk_group": 1
        ),
    ),
    (
        "Qwen2 MoE: sliding layers while windows are disabled",
        set!(
            "architectures": "REMOVE", "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    ("layer count beyond the limit", set!("num_hidden_layers": 1_000_000)),
    (
        "sizes beyond the limits",
        set!(
            "hidden_size": 9_223_372_036_854_775_808_u64, "max_position_embeddings": 1_099_511_627_776_u64,
            "intermediate_size": 1e30, "vocab_size": (-5), "num_hidden_layers": 2.5
        ),
    ),
    ("negative epsilon", set!("rms_norm_eps": (-1))),
    (
        "GPT-2: negative epsilon",
        set!(
            "architectures": "REMOVE", "model_type": "gpt2", "layer_norm_epsilon": (-1e-5), "n_embd": 64, "n_layer": 2,
            "n_head": 4, "hidden_size": "REMOVE", "intermediate_size": "REMOVE", "max_position_embeddings": "REMOVE",
            "num_attention_heads": "REMOVE", "num_hidden_layers": "REMOVE", "num_key_value_heads": "REMOVE",
            "rms_norm_eps": "REMOVE", "rope_theta": "REMOVE"
        ),
    ),
    ("GPT-2: sizes under alternative names", set!("architectures": "REMOVE", "model_type": "gpt2")),
    ("generation_config.json is a list", |files| {
        text(files, "generation_config.json", "[1]");
        text(files, "tokenizer_config.json", "\"<s>\"");
    }),
    ("invalid token ids", |files| {
        text(files, "generation_config.json", r#"{"bos_token_id": "<s>", "eos_token_id": [2, 2.5]}"#);
    }),
];
