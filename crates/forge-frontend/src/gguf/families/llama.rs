//! Llama and Mistral, which a file does not distinguish. Query and key rows are ordered for interleaved RoPE.

use crate::config::conventions::Conventions;
use crate::gguf::family::{AS_STORED, DENSE, Family};

pub(crate) const LLAMA: Family = Family {
    name: "llama",
    class: ["LlamaForCausalLM", "llama"],
    conventions: Conventions { interleaved_rope: true, ..AS_STORED },
    translate: |read| {
        read.dense_decoder();
        read.all_biases();
        read.rms_norm();
    },
    ..DENSE
};
