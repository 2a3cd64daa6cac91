//! GPT-2, whose tensor names are its own.

use crate::gguf::family::{DENSE, Family, Names};
use serde_json::json;

pub(crate) const GPT2: Family = Family {
    name: "gpt2",
    class: ["GPT2LMHeadModel", "gpt2"],
    names: Names {
        outside: &[
            ("token_embd", "wte"),
            ("position_embd", "wpe"),
            ("output_norm", "ln_f"),
            ("output", "lm_head"),
        ],
        layers: "h",
        usual: &[
            ("attn_norm", "ln_1"),
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_norm", "ln_2"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ],
    },
    translate: |read| {
        read.reject_experts();
        for (key, as_key) in [
            ("embedding_length", "n_embd"),
            ("block_count", "n_layer"),
            ("attention.head_count", "n_head"),
            ("context_length", "n_positions"),
            ("feed_forward_length", "n_inner"),
        ] {
            let count = read.count(key);
            read.set(as_key, json!(count));
        }
        read.copy("attention.layer_norm_epsilon", "layer_norm_epsilon");
        read.vocabulary();
    },
    ..DENSE
};
