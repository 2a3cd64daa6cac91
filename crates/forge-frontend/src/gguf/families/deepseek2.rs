//! DeepSeek V2 and V3, which the score function of the router distinguishes.
//!
//! Key and value matrices of all heads are separate, keys transposed; old files have them in one tensor, as
//! Hugging Face has.

use crate::gguf::experts::{EXPERTS, SHARED_EXPERTS, SIGMOID, SOFTMAX};
use crate::gguf::family::{DENSE, Family};
use crate::gguf::reading::{Reading, Shape};
use serde_json::json;

pub(crate) const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    class: ["DeepseekV2ForCausalLM", "deepseek_v2"],
    other_classes: &[V3],
    tensors: &[
        &[
            ("attn_q_a", "self_attn.q_a_proj"),
            ("attn_q_a_norm", "self_attn.q_a_layernorm"),
            ("attn_q_b", "self_attn.q_b_proj"),
            ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
            ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
            ("attn_kv_b", "self_attn.kv_b_proj"),
            ("attn_k_b", "self_attn.embed_q"),
            ("attn_v_b", "self_attn.unembed_out"),
        ],
        &EXPERTS,
        &SHARED_EXPERTS,
    ],
    keys: &[
        "attention.key_length_mla",
        "attention.kv_lora_rank",
        "attention.q_lora_rank",
        "attention.value_length_mla",
    ],
    translate: |read| {
        let shape = read.sizes();
        read.latent_attention(&shape);
        read.rms_norm();
        read.deepseek_experts();
        read.deepseek_router(&shape);
    },
    ..DENSE
};

/// The class of files with sigmoid scores.
const V3: [&str; 2] = ["DeepseekV3ForCausalLM", "deepseek_v3"];

impl Reading<'_> {
    /// Sizes of MLA, and RoPE.
    fn latent_attention(&mut self, shape: &Shape) {
        let metadata = self.metadata;
        let count = |key: &str| metadata.count(&metadata.own(key));
        let (rank, rope_width) = (self.count("attention.kv_lora_rank"), self.count("rope.dimension_count"));
        let [keys, values] = ["attention.key_length", "attention.value_length"].map(|key| self.count(key));
        let split = count("attention.key_length_mla").zip(count("attention.value_length_mla"));
        let (keys, values) = match split {
            // The others are those of a latent then.
            Some(of_heads) => {
                for (key, found, expected) in [
                    ("attention.key_length", keys, rank.saturating_add(rope_width)),
                    ("attention.value_length", values, rank),
                    ("attention.head_count_kv", self.count("attention.head_count_kv"), 1),
                ] {
                    if found != expected {
                        metadata.reject(&metadata.own(key), &format!("expected {expected}"));
                    }
                }
                of_heads
            }
            None => {
                let key_heads = self.count("attention.head_count_kv");
                if key_heads != shape.heads {
                    let why = format!("expected {}, the number of query heads", shape.heads);
                    metadata.reject(&metadata.own("attention.head_count_kv"), &why);
                }
                (keys, values)
            }
        };
        if keys <= rope_width {
            metadata.reject(&metadata.own("rope.dimension_count"), "expected less than the width of a key");
        }
        for (key, value) in [
            ("num_key_value_heads", shape.heads),
            ("kv_lora_rank", rank),
            ("qk_rope_head_dim", rope_width),
            ("qk_nope_head_dim", keys.saturating_sub(rope_width)),
            ("v_head_dim", values),
        ] {
            self.set(key, json!(value));
        }
        self.set("q_lora_rank", json!(count("attention.q_lora_rank").filter(|rank| *rank > 0)));
        metadata.mark_inert(&metadata.own("rope.scaling.finetuned"));
        self.copy_or("rope.freq_base", "rope_theta", 1e4);
        let Some(mut scaling) = self.scaling(shape) else { return };
        if scaling["rope_type"] == "yarn" {
            let key = metadata.own("rope.scaling.yarn_log_multiplier");
            // The file has a tenth of it, in single precision.
            let all = metadata.number(&key).or_else(|| metadata.missing(&key)).unwrap_or(0.1);
            let all = (all * 1e7).round() / 1e6;
            (scaling["mscale"], scaling["mscale_all_dim"]) = (json!(all), json!(all));
        }
        self.set("rope_scaling", scaling);
    }

    /// The router's score function, and with it the class.
    fn deepseek_router(&mut self, shape: &Shape) {
        /// Layers and vocabulary of GLM 4.7 Flash, whose first files do not name the function.
        const SIGMOID_BY_DEFAULT: ([u64; 2], usize) = ([47, 48], 154_880);
        let metadata = self.metadata;
        let gating = metadata.own("expert_gating_func");
        let (layers, vocabulary) = SIGMOID_BY_DEFAULT;
        let is_glm = layers.contains(&shape.layers) && vocabulary == self.tensors.vocabulary;
        let usual = if is_glm { SIGMOID } else { SOFTMAX };
        let function = metadata.count(&gating).filter(|function| *function > 0).unwrap_or(usual);
        let is_normalized = self.config.get("norm_topk_prob") == Some(&json!(true));
        match function {
            SIGMOID => {
                self.set_class(V3);
                if metadata.count(&metadata.own("expert_group_count")).is_none() {
                    metadata.note(
                        "the file names no expert groups: routing without groups, as llama.cpp".to_owned(),
                    );
                }
            }
            SOFTMAX if is_normalized => {
                metadata.reject(&metadata.own("expert_weights_norm"), "expected sigmoid scores");
            }
            SOFTMAX => {
                let has_groups = self.config.get("n_group") != Some(&json!(1));
                let method = if has_groups { "group_limited_greedy" } else { "greedy" };
                self.set("topk_method", json!(method));
                self.config.remove("norm_topk_prob");
            }
            _ => metadata.reject(&gating, "expected 1, softmax, or 2, sigmoid"),
        }
    }
}
