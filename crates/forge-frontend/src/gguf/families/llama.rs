//! Llama and Mistral, which a file does not distinguish, and Mixtral, which has experts. Query and key rows are
//! ordered for interleaved RoPE.

use crate::config::conventions::Conventions;
use crate::gguf::family::{AS_STORED, DENSE, Family};
use crate::gguf::reading::Reading;

pub(crate) const LLAMA: Family = Family {
    name: "llama",
    class: ["LlamaForCausalLM", "llama"],
    other_classes: &[MISTRAL, MIXTRAL],
    tensors: &[&[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("ffn_gate_exps", "block_sparse_moe.experts.gate_proj"),
        ("ffn_up_exps", "block_sparse_moe.experts.up_proj"),
        ("ffn_down_exps", "block_sparse_moe.experts.down_proj"),
        // Files of 2023 have a tensor per expert.
        ("ffn_gate.*", "block_sparse_moe.experts.*.w1"),
        ("ffn_up.*", "block_sparse_moe.experts.*.w3"),
        ("ffn_down.*", "block_sparse_moe.experts.*.w2"),
    ]],
    conventions: Conventions { interleaved_rope: true, ..AS_STORED },
    translate: |read| {
        let metadata = read.metadata;
        if metadata.count(&metadata.own("expert_count")).is_some_and(|count| count > 0) {
            return read.mixtral();
        }
        read.dense_decoder();
        read.all_biases();
        read.rms_norm();
    },
    ..DENSE
};

/// Its files are read as Llama's.
const MISTRAL: [&str; 2] = ["MistralForCausalLM", "mistral"];

/// The class of files with experts.
const MIXTRAL: [&str; 2] = ["MixtralForCausalLM", "mixtral"];

impl Reading<'_> {
    fn mixtral(&mut self) {
        self.set_class(MIXTRAL);
        let shape = self.decoder();
        self.rope(&shape);
        self.rms_norm();
        self.experts("num_local_experts");
        self.only_softmax();
    }
}
