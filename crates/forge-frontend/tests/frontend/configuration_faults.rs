//! Broken configuration files, one fault each.

use crate::common::edit;
use crate::fault_edits::{CONFIG, Change, set, text};
use serde_json::json;

pub(crate) const CONFIGURATIONS: &[(&str, Change)] = &[
    ("no configuration", |files| {
        files.0.remove(CONFIG);
    }),
    ("bad JSON", |files| text(files, CONFIG, "{\n  \"hidden_size\": 64,\n  \"vocab_size\" 512\n}")),
    ("not an object", |files| text(files, CONFIG, "[1, 2]")),
    ("not text", |files| {
        files.0.insert(CONFIG.to_owned(), vec![b'{', 0xff]);
    }),
    ("a key given twice", |files| text(files, CONFIG, r#"{"hidden_size": 64, "hidden_size": 65}"#)),
    ("unknown architecture", set!("architectures": ["MysteryForCausalLM"], "model_type": "mystery")),
    (
        "unknown architecture that is nearly a known one",
        set!(
            "architectures": ["Qwen3OmniForCausalLM"], "model_type": "qwen3_omni", "num_experts": 8,
            "num_experts_per_tok": 2, "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1,
            "hidden_act": "quick_gelu"
        ),
    ),
    ("unknown architecture without a similar name", |files| {
        text(files, CONFIG, r#"{"architectures": ["FogModel"], "a": 1, "b": 2, "c": {"d": 3}}"#)
    }),
    ("unknown type", set!("architectures": "REMOVE", "model_type": "mystery")),
    ("neither architecture nor type", set!("architectures": "REMOVE", "model_type": "REMOVE")),
    ("architecture of another type", set!("model_type": "mystery")),
    ("missing key", set!("hidden_size": "REMOVE")),
    ("misspelt key", set!("num_hidden_layers": "REMOVE", "num_hiden_layers": 2)),
    ("a key that transformers reads", set!("attention_chunk_size": 128)),
    (
        "a key of a section that transformers reads",
        set!("rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}),
    ),
    (
        "wrong types",
        set!("hidden_size": "64", "rope_theta": [1], "attention_bias": 1, "num_attention_heads": 0),
    ),
    ("unknown activation", set!("hidden_act": "quick_gelu")),
    ("quantised", set!("quantization_config": {"quant_method": "gptq"})),
    ("unsupported scaling", set!("rope_scaling": {"rope_type": "fog", "factor": 4.0, "beta_fast": 32})),
    (
        "positions that a longer context presses together",
        set!("rope_scaling": {"type": "dynamic", "factor": 0.5}),
    ),
    ("positions beyond any context", set!("rope_scaling": {"type": "dynamic", "factor": 3e38})),
    ("positions beyond all numbers", set!("rope_scaling": {"type": "dynamic", "factor": 1e300})),
    (
        "dynamic positions of another original context",
        set!("rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}),
    ),
    (
        "proportional positions of more pairs than there are",
        set!("rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 1.5}),
    ),
    (
        "proportional positions stretched by nothing",
        set!("rope_scaling": {"rope_type": "proportional", "factor": 0}),
    ),
    ("scaling without its numbers", set!("rope_scaling": {"rope_type": "llama3", "factor": 8.0})),
    (
        "two scalings",
        set!("rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1}),
    ),
    ("two bases", set!("rope_parameters": {"rope_theta": 500.0})),
    ("partial rotation", set!("partial_rotary_factor": 0.5)),
    ("heads that do not share", set!("num_key_value_heads": 3)),
    ("heads that do not divide", set!("num_attention_heads": 6)),
    ("an odd head", set!("head_dim": 15)),
    ("a head beyond belief", set!("head_dim": 4_000_000_000_u32)),
    (
        "Mistral: a window of nothing",
        set!("architectures": "REMOVE", "model_type": "mistral", "sliding_window": 0),
    ),
    (
        "Qwen2: windows that are not used",
        set!(
            "architectures": "REMOVE", "model_type": "qwen2", "sliding_window": 16,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    (
        "Qwen3: windows without a width",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3", "use_sliding_window": true, "sliding_window": null,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    (
        "Qwen3: a layer too few",
        set!("architectures": "REMOVE", "model_type": "qwen3", "layer_types": ["full_attention"]),
    ),
    (
        "Qwen3: layers of another kind",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3",
            "layer_types": ["full_attention", "linear_attention"]
        ),
    ),
    (
        "Qwen3: layers that are not told",
        set!("architectures": "REMOVE", "model_type": "qwen3", "layer_types": [1, 0]),
    ),
    (
        "Qwen3.5: heads that do not share evenly",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5_text", "linear_num_key_heads": 3,
            "linear_num_value_heads": 4
        ),
    ),
    (
        "Qwen3.5: what it is not known with",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5_text", "linear_conv_kernel_dim": 1,
            "hidden_act": "gelu", "layer_types": ["sliding_attention", "full_attention"]
        ),
    ),
    (
        "Qwen3.5: a layer too few",
        set!("architectures": "REMOVE", "model_type": "qwen3_5_text", "layer_types": ["full_attention"]),
    ),
    ("Qwen3.5: a wrapper around nothing", set!("architectures": "REMOVE", "model_type": "qwen3_5")),
    (
        "Qwen3.5: a wrapper around another model",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5", "tie_word_embeddings": true,
            "text_config": {
                "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56,
                "num_attention_heads": 4, "vocab_size": 512
            }
        ),
    ),
    (
        "Qwen3.5: a wrapper that is tied around a model that is not",
        set!(
            "architectures": "REMOVE", "model_type": "qwen3_5", "tie_word_embeddings": true,
            "text_config": {
                "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56,
                "num_attention_heads": 4, "vocab_size": 512
            }
        ),
    ),
    (
        "Gemma2: windows without a width",
        set!("architectures": "REMOVE", "model_type": "gemma2", "sliding_window": null),
    ),
    (
        "Gemma2: caps that nothing is below",
        set!(
            "architectures": "REMOVE", "model_type": "gemma2",
            "attn_logit_softcapping": 0, "final_logit_softcapping": "30"
        ),
    ),
    (
        "Gemma2: attention to what comes after",
        set!("architectures": "REMOVE", "model_type": "gemma2", "use_bidirectional_attention": true),
    ),
    (
        "Gemma2: an activation under its own name",
        set!("architectures": "REMOVE", "model_type": "gemma2", "hidden_activation": "tanh"),
    ),
    (
        "SmolLM3: windows",
        set!(
            "architectures": "REMOVE", "model_type": "smollm3", "use_sliding_window": true,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    (
        "SmolLM3: a layer too few",
        set!("architectures": "REMOVE", "model_type": "smollm3", "no_rope_layers": [1]),
    ),
    (
        "SmolLM3: layers that are not told",
        set!("architectures": "REMOVE", "model_type": "smollm3", "no_rope_layers": [1, "no"]),
    ),
    (
        "longrope: factors that are too few",
        set!("rope_scaling": {
            "rope_type": "longrope", "short_factor": [1.0], "long_factor": "2", "original_max_position_embeddings": 64
        }),
    ),
    (
        "Phi3: positions scaled another way",
        set!(
            "architectures": "REMOVE", "model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}
        ),
    ),
    (
        "Phi3: an original context that does not count",
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
        "Granite: nothing left of branches",
        set!("architectures": "REMOVE", "model_type": "granite", "residual_multiplier": 0),
    ),
    (
        "Gemma3: both spellings",
        set!(
            "architectures": "REMOVE", "model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0},
            "rope_parameters": {"full_attention": {"rope_type": "default"}}
        ),
    ),
    (
        "Gemma4: experts, and attention both ways",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "enable_moe_block": true,
            "use_bidirectional_attention": "all"
        ),
    ),
    (
        "Gemma4: shared keys and values without a source layer",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 1
        ),
    ),
    (
        "Gemma4: a share of a layer",
        set!("architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "num_kv_shared_layers": 0.5),
    ),
    (
        "Gemma4: layers of one type with heads of two shapes",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE",
            "layer_types": ["full_attention", "full_attention"], "per_layer_config": {"0": {"head_dim": 8}}
        ),
    ),
    (
        "Gemma4: key heads that query heads do not share",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "attention_k_eq_v": true,
            "num_global_key_value_heads": 3
        ),
    ),
    (
        "Gemma4: inputs of its own for some tokens",
        set!("architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE", "vocab_size_per_layer_input": 8),
    ),
    (
        "Gemma4: a type of layers without positions, and a rotation without a base",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE",
            "rope_parameters": {"full_attention": {"rope_type": "proportional"}}
        ),
    ),
    (
        "Gemma4: positions that the context changes",
        set!(
            "architectures": "REMOVE", "model_type": "gemma4_text", "rope_theta": "REMOVE",
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                "sliding_attention": {"factor": 2.0, "rope_theta": 1e4, "rope_type": "dynamic"}
            }
        ),
    ),
    (
        "Gemma4: a wrapper around nothing",
        set!("architectures": "REMOVE", "model_type": "gemma4", "rope_theta": "REMOVE"),
    ),
    ("Gemma3: a wrapper around nothing", set!("architectures": "REMOVE", "model_type": "gemma3")),
    (
        "Gemma3: a wrapper around another model",
        set!(
            "architectures": "REMOVE", "model_type": "gemma3", "tie_word_embeddings": false,
            "text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56}
        ),
    ),
    (
        "Gemma3: capped logits in a wrapper",
        set!(
            "architectures": "REMOVE", "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 56,
                "final_logit_softcapping": 30.0
            }
        ),
    ),
    (
        "Cohere2: heads of a width of their own",
        set!("architectures": "REMOVE", "model_type": "cohere2", "head_dim": 32),
    ),
    (
        "Mixtral: more experts of a row than there are",
        set!(
            "architectures": "REMOVE", "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5
        ),
    ),
    (
        "Mixtral: more experts than any model has",
        set!(
            "architectures": "REMOVE", "model_type": "mixtral", "num_local_experts": 5000, "num_experts_per_tok": 5
        ),
    ),
    (
        "Mixtral: two numbers of experts",
        set!(
            "architectures": "REMOVE", "model_type": "mixtral", "num_local_experts": 4, "num_experts": 6,
            "num_experts_per_tok": 2
        ),
    ),
    (
        "gpt-oss: codes of another method",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "quantization_config": {"bits": 4, "quant_method": "gptq"}
        ),
    ),
    (
        "gpt-oss: codes as MLX has them in another mode",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "quantization": {"group_size": 16, "bits": 4, "mode": "nvfp4"}
        ),
    ),
    (
        "gpt-oss: codes as MLX has them in groups that their mode has not",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "quantization": {"group_size": 64, "bits": 8, "mode": "mxfp4"}
        ),
    ),
    (
        "gpt-oss: gates that are clamped to nothing",
        set!(
            "architectures": "REMOVE", "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
            "swiglu_limit": 0.0
        ),
    ),
    (
        "GLM 4.5: groups that experts do not divide into",
        set!(
            "architectures": "REMOVE", "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "n_group": 3
        ),
    ),
    (
        "GLM 4.5: fewer experts in groups than a row has",
        set!(
            "architectures": "REMOVE", "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "n_group": 4, "topk_group": 1
        ),
    ),
    (
        "Qwen2 with experts: layers with a window that no key has",
        set!(
            "architectures": "REMOVE", "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
            "layer_types": ["full_attention", "sliding_attention"]
        ),
    ),
    ("more layers than any model has", set!("num_hidden_layers": 1_000_000)),
    (
        "sizes beyond what forge takes",
        set!(
            "hidden_size": 9_223_372_036_854_775_808_u64, "max_position_embeddings": 1_099_511_627_776_u64,
            "intermediate_size": 1e30, "vocab_size": (-5), "num_hidden_layers": 2.5
        ),
    ),
    ("an epsilon below nothing", set!("rms_norm_eps": (-1))),
    (
        "GPT-2: an epsilon below nothing",
        set!(
            "architectures": "REMOVE", "model_type": "gpt2", "layer_norm_epsilon": (-1e-5), "n_embd": 64, "n_layer": 2,
            "n_head": 4, "hidden_size": "REMOVE", "intermediate_size": "REMOVE", "max_position_embeddings": "REMOVE",
            "num_attention_heads": "REMOVE", "num_hidden_layers": "REMOVE", "num_key_value_heads": "REMOVE",
            "rms_norm_eps": "REMOVE", "rope_theta": "REMOVE"
        ),
    ),
    ("GPT-2: sizes under other names", set!("architectures": "REMOVE", "model_type": "gpt2")),
    ("settings that are a list", |files| {
        text(files, "generation_config.json", "[1]");
        text(files, "tokenizer_config.json", "\"<s>\"");
    }),
    ("tokens that are none", |files| {
        text(files, "generation_config.json", r#"{"bos_token_id": "<s>", "eos_token_id": [2, 2.5]}"#);
    }),
];
