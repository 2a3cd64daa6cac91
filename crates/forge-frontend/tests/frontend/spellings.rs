//! Config variants that give the same graph: both spellings, and absent keys at their defaults.

use crate::common::configured;
use serde_json::{Value, json};

pub(crate) fn without(config: &mut Value, keys: &[&str]) {
    keys.iter().for_each(|key| {
        config.as_object_mut().unwrap().remove(*key).unwrap();
    });
}

#[test]
fn alternative_and_absent_keys_are_equivalent() {
    let plain = |name: &str| configured(name, |_| {});
    let same = |name: &str, change: &dyn Fn(&mut Value)| {
        assert_eq!(configured(name, change), plain(name), "{name}");
    };
    same("llama", &|config| without(config, &["rope_theta", "tie_word_embeddings", "architectures"]));
    same("llama", &|config| without(config, &["model_type", "bos_token_id", "torch_dtype"]));
    same("llama", &|config| config["rope_scaling"] = json!(null));
    same("llama", &|config| config["rope_scaling"] = json!({"type": "default"}));
    same("llama", &|config| {
        without(config, &["rope_theta"]);
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 10000});
    });
    same("llama", &|config| {
        config["head_dim"] = json!(16);
        config["attention_bias"] = json!(false);
        config["hidden_act"] = json!("silu");
        config["num_key_value_heads"] = json!(2);
    });
    same("llama", &|config| config["head_dim"] = json!(null));
    same("llama", &|config| {
        config["sliding_window"] = json!(null);
        config["pretraining_tp"] = json!(1);
        config["id2label"] = json!({"0": "LABEL_0"});
        config["attention_dropout"] = json!(0.5);
    });
    same("llama3_rope", &|config| {
        let mut scaling = config["rope_scaling"].take();
        scaling["rope_theta"] = config["rope_theta"].take();
        config["rope_parameters"] = scaling;
    });
    same("llama3_rope", &|config| {
        without(config, &["head_dim"]);
        config["rope_scaling"]["type"] = json!("llama3");
    });
    same("llama_bias", &|config| {
        without(config, &["rope_parameters", "head_dim", "hidden_act", "dtype"]);
        config["rope_theta"] = json!(1e4);
    });
    same("qwen2", &|config| {
        without(config, &["rms_norm_eps", "use_sliding_window", "sliding_window", "max_window_layers"]);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    });
    same("qwen2", &|config| {
        // From the third layer on, in a model of two layers.
        config["use_sliding_window"] = json!(true);
    });
    same("qwen2", &|config| config["max_window_layers"] = json!(0));
    same("qwen3", &|config| without(config, &["rms_norm_eps", "attention_bias", "architectures"]));
    same("qwen3", &|config| {
        config["use_sliding_window"] = json!(false);
        config["sliding_window"] = json!(24);
        config["max_window_layers"] = json!(1);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    });
    same("mistral", &|config| {
        without(config, &["rope_theta", "tie_word_embeddings", "head_dim", "model_type"])
    });
    same("gemma2", &|config| {
        without(config, &["hidden_activation", "rms_norm_eps", "rope_theta", "model_type"]);
        config["hidden_act"] = json!("silu");
        config["sliding_window_size"] = json!(1);
        config["cache_implementation"] = json!("hybrid");
        config["tie_word_embeddings"] = json!(true);
        config["attention_bias"] = json!(false);
        config["use_bidirectional_attention"] = json!(null);
        config["layer_types"] = json!(["sliding_attention", "full_attention"]);
    });
    same("gemma2", &|config| config["hidden_activation"] = json!("gelu_new"));
    same("olmo2", &|config| {
        without(config, &["tie_word_embeddings", "model_type"]);
        config["attention_bias"] = json!(false);
        config["hidden_act"] = json!("silu");
        config["head_dim"] = json!(16);
    });
    same("smollm3", &|config| {
        without(config, &["rms_norm_eps", "tie_word_embeddings", "no_rope_layer_interval", "model_type"]);
        config["no_rope_layers"] = json!([1, 1, 0, 0]);
        config["attention_bias"] = json!(false);
        config["mlp_bias"] = json!(false);
        config["use_sliding_window"] = json!(false);
        config["sliding_window"] = json!(24);
        config["max_window_layers"] = json!(1);
        config["layer_types"] = json!(["full_attention", "full_attention", "full_attention"]);
    });
    same("granite", &|config| {
        without(config, &["rope_theta", "model_type"]);
        config["attention_bias"] = json!(false);
        config["mlp_bias"] = json!(false);
        config["head_dim"] = json!(16);
    });
    same("phi3", &|config| {
        without(
            config,
            &["rms_norm_eps", "rope_theta", "sliding_window", "tie_word_embeddings", "rope_scaling"],
        );
        config["original_max_position_embeddings"] = json!(64);
        config["partial_rotary_factor"] = json!(1.0);
        config["auto_map"] = json!({"AutoConfig": "configuration_phi3.Phi3Config"});
        config["attention_bias"] = json!(false);
        config["full_attn_mod"] = json!(1);
    });
    for other in ["su", "yarn"] {
        same("phi3_longrope", &|config| config["rope_scaling"]["type"] = json!(other));
    }
    same("phi3_longrope", &|config| {
        let mut scaling = config["rope_scaling"].take();
        scaling["rope_theta"] = config["rope_theta"].take();
        scaling["rope_type"] = json!("longrope");
        scaling["original_max_position_embeddings"] = json!(48);
        scaling["factor"] = json!(8.0);
        config["rope_parameters"] = scaling;
    });
    same("qwen3_5_text", &|config| {
        without(
            config,
            &["rms_norm_eps", "layer_types", "attention_bias", "hidden_act", "linear_conv_kernel_dim"],
        );
        config["full_attention_interval"] = json!(2);
        config["attn_output_gate"] = json!(true);
        config["mamba_ssm_dtype"] = json!("float32");
        config["rope_parameters"] =
            json!({"rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [1]});
    });
    same("gemma3_text", &|config| {
        without(config, &["rope_theta", "rope_local_base_freq", "hidden_activation", "rms_norm_eps"]);
        config["attn_logit_softcapping"] = json!(9.0);
        config["final_logit_softcapping"] = json!(null);
        config["tie_word_embeddings"] = json!(true);
        config["_sliding_window_pattern"] = json!(6);
        config["rope_parameters"] = json!({
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
        });
    });
    same("gemma3_text", &|config| {
        without(config, &["sliding_window_pattern"]);
        config["layer_types"] = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    });
    same("ernie4_5", &|config| {
        without(
            config,
            &["rms_norm_eps", "rope_theta", "use_bias", "tie_word_embeddings", "num_key_value_heads"],
        );
    });
    same("glm4", &|config| {
        without(config, &["rope_theta", "partial_rotary_factor", "attention_bias", "tie_word_embeddings"]);
        without(config, &["num_key_value_heads"]);
    });
    same("hunyuan_v1_dense", &|config| {
        without(config, &["rms_norm_eps", "rope_theta", "rope_scaling", "head_dim"]);
        config["use_qk_norm"] = json!(true);
        config["eod_token_id"] = json!(3);
        config["dense_list"] = json!([64, 0]);
    });
    same("cohere2", &|config| {
        without(config, &["tie_word_embeddings", "layer_norm_eps"]);
        config["head_dim"] = json!(16);
        config["attention_bias"] = json!(false);
        config["use_parallel_block"] = json!(true);
        config["layer_types"] = json!(["sliding_attention", "full_attention"]);
        config["_sliding_window_pattern"] = json!(4);
    });
    same("gpt2", &|config| {
        without(config, &["n_inner", "activation_function", "layer_norm_epsilon", "model_type"]);
        config["n_ctx"] = json!(128);
        config["tie_word_embeddings"] = json!(true);
        config["reorder_and_upcast_attn"] = json!(true);
        config["scale_attn_weights"] = json!(true);
        config["summary_type"] = json!("cls_index");
        config["task_specific_params"] = json!({"text-generation": {"do_sample": true}});
    });
    // For keys whose value in the models differs from the default.
    let assumes = |name: &str, assumed: Value| {
        let keys: Vec<&str> = assumed.as_object().unwrap().keys().map(String::as_str).collect();
        let absent = configured(name, |config| without(config, &keys));
        let given = configured(name, |config| {
            config.as_object_mut().unwrap().extend(assumed.as_object().unwrap().clone());
        });
        assert_eq!(absent, given, "{name}");
    };
    assumes(
        "gemma2",
        json!({
            "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50, "final_logit_softcapping": 30,
            "sliding_window": 4096, "max_position_embeddings": 8192
        }),
    );
    assumes("olmo2", json!({"rope_theta": 1e4, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}));
    assumes(
        "smollm3",
        json!({"rope_theta": 2e6, "max_position_embeddings": 32768, "no_rope_layer_interval": 4}),
    );
    assumes(
        "granite",
        json!({
            "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0, "logits_scaling": 1.0,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 2048
        }),
    );
    assumes(
        "phi3_longrope",
        json!({"original_max_position_embeddings": 4096, "max_position_embeddings": 4096}),
    );
    assumes(
        "gemma3_text",
        json!({
            "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
            "max_position_embeddings": 131_072
        }),
    );
    assumes("ernie4_5", json!({"max_position_embeddings": 131_072}));
    assumes("glm4", json!({"max_position_embeddings": 131_072, "rms_norm_eps": 1.5625e-7}));
    assumes("hunyuan_v1_dense", json!({"max_position_embeddings": 2048}));
    assumes(
        "cohere2",
        json!({
            "logit_scale": 0.0625, "sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 1e4,
            "max_position_embeddings": 8192
        }),
    );
    assumes("qwen2", json!({"rope_theta": 1e4, "max_position_embeddings": 32768}));
    assumes(
        "mistral",
        json!({"rms_norm_eps": 1e-6, "max_position_embeddings": 131_072, "sliding_window": 4096}),
    );
}
