//! GLM 4.5 MoE.

use crate::gguf::experts::{EXPERTS, SHARED_EXPERTS, SIGMOID};
use crate::gguf::family::{DENSE, Family};
use serde_json::json;

pub(crate) const GLM4MOE: Family = Family {
    name: "glm4moe",
    class: ["Glm4MoeForCausalLM", "glm4_moe"],
    tensors: &[&[("post_attention_norm", "post_attention_layernorm")], &EXPERTS, &SHARED_EXPERTS],
    keys: &["rope.dimension_sections"],
    partial_rope: true,
    translate: |read| {
        let shape = read.decoder();
        read.rope(&shape);
        read.attention_bias();
        read.rms_norm();
        let has_norm = read.first_layer_has("attn_q_norm.weight");
        read.set("use_qk_norm", json!(has_norm));
        read.deepseek_experts();
        let metadata = read.metadata;
        let gating = metadata.own("expert_gating_func");
        // 0 means the architecture's own.
        if metadata.count(&gating).is_some_and(|function| ![0, SIGMOID].contains(&function)) {
            metadata.reject(&gating, "expected 2, sigmoid");
        }
    },
    ..DENSE
};
