//! Dense decoders that need few keys of their own.

use crate::config::conventions::Conventions;
use crate::gguf::family::{AS_STORED, DENSE, Family, WINDOW_KEYS};
use crate::gguf::reading::Reading;
use serde_json::json;

pub(crate) const COHERE2: Family = Family {
    name: "cohere2",
    class: ["Cohere2ForCausalLM", "cohere2"],
    keys: WINDOW_KEYS,
    translate: |read| {
        let shape = read.dense_decoder();
        read.attention_bias();
        read.copy("attention.layer_norm_epsilon", "layer_norm_eps");
        read.copy("logit_scale", "logit_scale");
        read.windows(&shape, 4);
    },
    ..DENSE
};

pub(crate) const ERNIE4_5: Family = Family {
    name: "ernie4_5",
    class: ["Ernie4_5ForCausalLM", "ernie4_5"],
    keys: &[
        "expert_feed_forward_length",
        "expert_shared_count",
        "expert_shared_feed_forward_length",
        "interleave_moe_layer_step",
    ],
    translate: |read| {
        read.dense_decoder();
        let has_bias = read.has_attention_bias();
        read.set("use_bias", json!(has_bias));
        read.rms_norm();
    },
    ..DENSE
};

pub(crate) const GLM4: Family = Family {
    name: "glm4",
    class: ["Glm4ForCausalLM", "glm4"],
    tensors: &[&[
        ("ffn_up", "mlp.gate_up_proj"),
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
    ]],
    partial_rope: true,
    ..DENSE
};

/// Query and key rows are ordered for interleaved RoPE.
const INTERLEAVED_ROPE: Conventions = Conventions { interleaved_rope: true, ..AS_STORED };

pub(crate) const GRANITE: Family = Family {
    name: "granite",
    class: ["GraniteForCausalLM", "granite"],
    keys: &["deepstack_mapping", "expert_shared_feed_forward_length"],
    conventions: INTERLEAVED_ROPE,
    translate: |read| {
        let metadata = read.metadata;
        let trained = metadata.own("rope.scaling.finetuned");
        metadata.allow_only(&trained, true, "Granite without RoPE is unsupported");
        read.dense_decoder();
        read.all_biases();
        read.copy("attention.scale", "attention_multiplier");
        read.copy("logit_scale", "logits_scaling");
        read.copy_or("embedding_scale", "embedding_multiplier", 1.0);
        read.copy_or("residual_scale", "residual_multiplier", 1.0);
        read.rms_norm();
    },
    ..DENSE
};

pub(crate) const HUNYUAN_DENSE: Family = Family {
    name: "hunyuan-dense",
    class: ["HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"],
    tensors: &[&[("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")]],
    ..DENSE
};

pub(crate) const OLMO2: Family = Family {
    name: "olmo2",
    class: ["Olmo2ForCausalLM", "olmo2"],
    tensors: &[&[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ]],
    keys: WINDOW_KEYS,
    ..DENSE
};

pub(crate) const PHI3: Family = Family {
    name: "phi3",
    class: ["Phi3ForCausalLM", "phi3"],
    tensors: &[&[("ffn_up", "mlp.gate_up_proj")]],
    keys: WINDOW_KEYS,
    partial_rope: true,
    translate: |read| {
        // Never has biases.
        read.dense_decoder();
        let metadata = read.metadata;
        // 0 means no window.
        let window = metadata.count(&metadata.own("attention.sliding_window")).filter(|width| *width > 0);
        read.set("sliding_window", json!(window));
        read.rms_norm();
    },
    ..DENSE
};

pub(crate) const QWEN2: Family = Family {
    name: "qwen2",
    class: ["Qwen2ForCausalLM", "qwen2"],
    translate: |read| {
        // Always has biases.
        read.dense_decoder();
        read.rms_norm();
    },
    ..DENSE
};

pub(crate) const QWEN3: Family = Family { name: "qwen3", class: ["Qwen3ForCausalLM", "qwen3"], ..DENSE };

pub(crate) const SMOLLM3: Family = Family {
    name: "smollm3",
    class: ["SmolLM3ForCausalLM", "smollm3"],
    conventions: INTERLEAVED_ROPE,
    translate: |read| {
        read.dense_decoder();
        read.all_biases();
        read.set("no_rope_layer_interval", json!(4));
        read.rms_norm();
    },
    ..DENSE
};

impl Reading<'_> {
    /// A dense decoder without keys of its own.
    pub(crate) fn dense(&mut self) {
        self.dense_decoder();
        self.attention_bias();
        self.rms_norm();
    }
}
