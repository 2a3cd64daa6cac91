//! Qwen2 MoE and Qwen3 MoE.

use crate::gguf::experts::{EXPERTS, GATED_SHARED_EXPERT};
use crate::gguf::family::{DENSE, Family};
use crate::gguf::reading::Reading;
use serde_json::json;

pub(crate) const QWEN2MOE: Family = Family {
    name: "qwen2moe",
    class: ["Qwen2MoeForCausalLM", "qwen2_moe"],
    tensors: &[&EXPERTS, &GATED_SHARED_EXPERT],
    translate: |read| {
        read.qwen_moe();
        read.shared_expert_size();
        let has_bias = read.has_attention_bias();
        read.set("qkv_bias", json!(has_bias));
        read.set("norm_topk_prob", json!(false));
    },
    ..DENSE
};

pub(crate) const QWEN3MOE: Family = Family {
    name: "qwen3moe",
    class: ["Qwen3MoeForCausalLM", "qwen3_moe"],
    tensors: &[&EXPERTS],
    translate: |read| {
        read.qwen_moe();
        read.attention_bias();
        read.set("norm_topk_prob", json!(true));
    },
    ..DENSE
};

impl Reading<'_> {
    /// What both share.
    fn qwen_moe(&mut self) {
        let shape = self.decoder();
        self.rope(&shape);
        self.rms_norm();
        self.experts("num_experts");
        self.expert_size();
        self.only_softmax();
    }
}
