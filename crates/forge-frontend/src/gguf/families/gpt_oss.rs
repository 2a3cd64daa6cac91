//! gpt-oss.

use crate::gguf::experts::EXPERTS;
use crate::gguf::family::{DENSE, Family, WINDOW_KEYS};
use serde_json::json;

pub(crate) const GPT_OSS: Family = Family {
    name: "gpt-oss",
    class: ["GptOssForCausalLM", "gpt_oss"],
    tensors: &[
        &[
            ("attn_sinks.weight", "self_attn.sinks"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
        ],
        &EXPERTS,
    ],
    keys: WINDOW_KEYS,
    translate: |read| {
        let shape = read.decoder();
        read.rope(&shape);
        read.attention_bias();
        read.rms_norm();
        read.experts("num_local_experts");
        read.only_softmax();
        read.windows(&shape, 2);
        let metadata = read.metadata;
        let inner = metadata.own("expert_feed_forward_length");
        let inner = metadata.count_of_layers(&inner).or_else(|| metadata.missing(&inner));
        read.set("intermediate_size", json!(inner));
        let base = metadata.own("rope.freq_base_swa");
        if metadata.number(&base).is_some_and(|base| read.config.get("rope_theta") != Some(&json!(base))) {
            metadata.reject(&base, "expected rope.freq_base");
        }
        // All published models have fractional correction ranges, which the file cannot say.
        if let Some(scaling) = read.config.get_mut("rope_scaling").filter(|it| it["rope_type"] == "yarn") {
            scaling["truncate"] = json!(false);
        }
    },
    ..DENSE
};
