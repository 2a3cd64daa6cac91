//! Translates the metadata of mixtures of experts.

use crate::gguf::reading::Reading;
use serde_json::json;

/// Names of the experts' tensors in the module `mlp`, without those of the shared expert.
pub(crate) const EXPERTS: [(&str, &str); 6] = [
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
];

/// Names of a gated shared expert's tensors.
pub(crate) const GATED_SHARED_EXPERT: [(&str, &str); 4] = [
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Names of shared experts' tensors.
pub(crate) const SHARED_EXPERTS: [(&str, &str); 3] = [
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// `expert_gating_func`: softmax.
pub(crate) const SOFTMAX: u64 = 1;

/// `expert_gating_func`: sigmoid.
pub(crate) const SIGMOID: u64 = 2;

impl Reading<'_> {
    /// Number of experts, of which `key` is the name, and top-k.
    pub(crate) fn experts(&mut self, key: &str) {
        let (count, chosen) = (self.count("expert_count"), self.count("expert_used_count"));
        self.set(key, json!(count));
        self.set("num_experts_per_tok", json!(chosen));
    }

    /// Intermediate size of an expert: the file's, or the MLP's divided by top-k.
    pub(crate) fn expert_size(&mut self) {
        let metadata = self.metadata;
        let size =
            metadata.count_of_layers(&metadata.own("expert_feed_forward_length")).filter(|size| *size > 0);
        let size = size
            .unwrap_or_else(|| self.count("feed_forward_length") / self.count("expert_used_count").max(1));
        self.set("moe_intermediate_size", json!(size));
    }

    /// Intermediate size of the shared expert: the file's, or the MLP's.
    pub(crate) fn shared_expert_size(&mut self) {
        let metadata = self.metadata;
        let size =
            metadata.count(&metadata.own("expert_shared_feed_forward_length")).filter(|size| *size > 0);
        let size = size.unwrap_or_else(|| self.count("feed_forward_length"));
        self.set("shared_expert_intermediate_size", json!(size));
    }

    /// Rejects routing that differs from softmax scores without groups.
    pub(crate) fn only_softmax(&self) {
        let metadata = self.metadata;
        let gating = metadata.own("expert_gating_func");
        if metadata.count(&gating).is_some_and(|function| function != SOFTMAX) {
            metadata.reject(&gating, "expected 1, softmax");
        }
        let groups = metadata.own("expert_group_count");
        if metadata.count(&groups).is_some_and(|groups| groups > 1) {
            metadata.reject(&groups, "expert groups are unsupported for this architecture");
        }
        metadata.mark_inert(&metadata.own("expert_group_used_count"));
    }

    /// Expert groups, dense layers, shared experts and scale of the weights, as DeepSeek names them.
    pub(crate) fn deepseek_experts(&mut self) {
        self.experts("n_routed_experts");
        self.expert_size();
        let metadata = self.metadata;
        for (key, as_key) in [("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")] {
            let count = metadata.count(&metadata.own(key)).filter(|count| *count > 0).unwrap_or(1);
            self.set(as_key, json!(count));
        }
        let dense = metadata.count(&metadata.own("leading_dense_block_count")).unwrap_or(0);
        self.set("first_k_dense_replace", json!(dense));
        let shared = self.count("expert_shared_count");
        self.set("n_shared_experts", json!(shared));
        let normalized = metadata.flag(&metadata.own("expert_weights_norm")).unwrap_or(false);
        self.set("norm_topk_prob", json!(normalized));
        // 0 means no scale.
        let scale = metadata.number(&metadata.own("expert_weights_scale")).filter(|scale| *scale != 0.0);
        self.set("routed_scaling_factor", json!(scale.unwrap_or(1.0)));
    }
}
