//! Qwen3-Next and Qwen3.5: Gated DeltaNet in most layers.
//!
//! Gains include the 1 that Hugging Face's tensors omit, apart from those of DeltaNet's heads. Queries, keys and
//! values of DeltaNet are stacked, and gates are separate; old files have all of them by key head, as Hugging
//! Face has. Qwen3.5's value heads are ordered so that adjacent ones belong to different key heads.

use crate::config::conventions::Conventions;
use crate::gguf::experts::{EXPERTS, GATED_SHARED_EXPERT};
use crate::gguf::family::{AS_STORED, DENSE, Family};
use crate::gguf::reading::Reading;
use serde_json::json;

const GAINS_INCLUDE_ONE: Conventions = Conventions { gains_include_one: true, ..AS_STORED };

const TILED_VALUE_HEADS: Conventions = Conventions { tiled_value_heads: true, ..GAINS_INCLUDE_ONE };

const KEYS: &[&str] = &[
    "attention.recurrent_layers",
    "full_attention_interval",
    "rope.dimension_sections",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// Names of DeltaNet's tensors.
const DELTA_NET: [(&str, &str); 12] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    (DECAY, "linear_attn.A_log"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// The tensor of decays, which are minus the exponentials of Hugging Face's.
pub(crate) const DECAY: &str = "ssm_a";

const HYBRID: Family = Family { keys: KEYS, conventions: TILED_VALUE_HEADS, partial_rope: true, ..DENSE };

pub(crate) const QWEN3NEXT: Family = Family {
    name: "qwen3next",
    class: ["Qwen3NextForCausalLM", "qwen3_next"],
    tensors: &[&DELTA_NET, &EXPERTS, &GATED_SHARED_EXPERT],
    conventions: GAINS_INCLUDE_ONE,
    translate: |read| {
        read.hybrid();
        read.hybrid_experts();
        read.set("norm_topk_prob", json!(true));
    },
    ..HYBRID
};

pub(crate) const QWEN35: Family = Family {
    name: "qwen35",
    class: ["Qwen3_5ForCausalLM", "qwen3_5_text"],
    tensors: &[&DELTA_NET],
    image_positions: true,
    translate: |read| read.hybrid(),
    ..HYBRID
};

pub(crate) const QWEN35MOE: Family = Family {
    name: "qwen35moe",
    class: ["Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"],
    tensors: &[&DELTA_NET, &EXPERTS, &GATED_SHARED_EXPERT],
    image_positions: true,
    translate: |read| {
        read.hybrid();
        read.hybrid_experts();
        // All layers have experts.
        read.config.remove("intermediate_size");
    },
    ..HYBRID
};

impl Reading<'_> {
    /// What all of them share.
    fn hybrid(&mut self) {
        let shape = self.decoder();
        self.rope(&shape);
        self.rms_norm();
        let [heads, inner] = ["ssm.time_step_rank", "ssm.inner_size"].map(|key| self.count(key));
        if !inner.is_multiple_of(heads) {
            let message = format!("expected a multiple of {heads} value heads");
            self.metadata.reject(&self.metadata.own("ssm.inner_size"), &message);
        }
        for (key, as_key) in [
            ("ssm.conv_kernel", "linear_conv_kernel_dim"),
            ("ssm.group_count", "linear_num_key_heads"),
            ("ssm.state_size", "linear_key_head_dim"),
        ] {
            let count = self.count(key);
            self.set(as_key, json!(count));
        }
        let times = heads / self.count("ssm.group_count");
        if self.family.conventions.tiled_value_heads && times > 1 {
            self.metadata.note(format!(
                "value heads of Gated DeltaNet are in llama.cpp's order: rows of queries and keys are stored {times} times"
            ));
        }
        self.set("linear_num_value_heads", json!(heads));
        self.set("linear_value_head_dim", json!(inner / heads));
        let metadata = self.metadata;
        let interval = metadata.count(&metadata.own("full_attention_interval")).filter(|every| *every > 0);
        let recurrent = metadata.flags(&metadata.own("attention.recurrent_layers"));
        let of_layer = |layer: u64| match &recurrent {
            Some(listed) => listed.get(layer as usize).copied().unwrap_or(false),
            None => !(layer + 1).is_multiple_of(interval.unwrap_or(4)),
        };
        let kind = |layer| if of_layer(layer) { "linear_attention" } else { "full_attention" };
        self.set("layer_types", json!((0..shape.layers).map(kind).collect::<Vec<_>>()));
    }

    fn hybrid_experts(&mut self) {
        self.experts("num_experts");
        self.expert_size();
        self.shared_expert_size();
        self.only_softmax();
    }
}
