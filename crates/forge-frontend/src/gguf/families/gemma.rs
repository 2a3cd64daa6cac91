//! Gemma 2 and 3. Gains include the 1 that Hugging Face's tensors omit.

use crate::config::conventions::Conventions;
use crate::gguf::family::{AS_STORED, DENSE, Family};
use crate::gguf::reading::{Reading, Shape};
use serde_json::json;

const GAINS_INCLUDE_ONE: Conventions = Conventions { gains_include_one: true, ..AS_STORED };

const FOUR_NORMS: [(&str, &str); 3] = [
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const KEYS: &[&str] = &[
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attn_logit_softcapping",
    "final_logit_softcapping",
];

pub(crate) const GEMMA2: Family = Family {
    name: "gemma2",
    class: ["Gemma2ForCausalLM", "gemma2"],
    tensors: &[&FOUR_NORMS],
    conventions: GAINS_INCLUDE_ONE,
    keys: KEYS,
    translate: |read| {
        // 46 layers: the 27B model.
        let shape = read.gemma(46);
        read.copy_or("attn_logit_softcapping", "attn_logit_softcapping", 50.0);
        read.copy_or("final_logit_softcapping", "final_logit_softcapping", 30.0);
        read.windows(&shape, 2);
    },
    ..DENSE
};

pub(crate) const GEMMA3: Family = Family {
    name: "gemma3",
    class: ["Gemma3ForCausalLM", "gemma3_text"],
    tensors: &[&FOUR_NORMS],
    conventions: GAINS_INCLUDE_ONE,
    keys: KEYS,
    translate: |read| {
        // 62 layers: the 27B model.
        let shape = read.gemma(62);
        read.final_softcap();
        read.copy_or("rope.freq_base_swa", "rope_local_base_freq", 1e4);
        read.windows(&shape, 6);
    },
    ..DENSE
};

impl Reading<'_> {
    /// What both share. The score scale of the model with this many layers is not derived from the head
    /// dimension.
    fn gemma(&mut self, scaled_by_hidden_size: u64) -> Shape {
        let shape = self.dense_decoder();
        self.attention_bias();
        let by_hidden_size = shape.layers == scaled_by_hidden_size;
        let scalar = if by_hidden_size { shape.hidden / shape.heads } else { shape.width };
        self.set("query_pre_attn_scalar", json!(scalar));
        self.rms_norm();
        shape
    }

    /// The cap of the logits, if any.
    pub(crate) fn final_softcap(&mut self) {
        let metadata = self.metadata;
        let cap = metadata.number(&metadata.own("final_logit_softcapping")).filter(|cap| *cap != 0.0);
        self.set("final_logit_softcapping", json!(cap));
    }
}
