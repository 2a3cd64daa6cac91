//! The architectures of GGUF files that forge knows: what Hugging Face calls each, its own tensors, and how its tensors are
//! stored. What its keys mean is in `configuration`.

use crate::config::Conventions;

/// An architecture.
pub(crate) struct Family {
    /// What `general.architecture` says.
    pub(crate) name: &'static str,
    /// What config.json says under `architectures` and `model_type`.
    pub(crate) class: [&'static str; 2],
    /// Tensors that it has other names for than most; the first name is the file's.
    pub(crate) tensors: &'static [(&'static str, &'static str)],
    pub(crate) conventions: Conventions,
}

const AS_STORED: Conventions =
    Conventions { neighbours_turn: false, whole_gains: false, rows_are_outputs: true };

/// The rows of queries and keys lie so that neighbouring channels turn together.
const NEIGHBOURS: Conventions = Conventions { neighbours_turn: true, ..AS_STORED };

/// Gains have the 1 in them that the models' authors leave out.
const WHOLE_GAINS: Conventions = Conventions { whole_gains: true, ..AS_STORED };

const FOUR_NORMS: [(&str, &str); 3] = [
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Every architecture; the order is that of messages.
pub(crate) const ALL: &[Family] = &[
    Family {
        name: "cohere2",
        class: ["Cohere2ForCausalLM", "cohere2"],
        tensors: &[],
        conventions: AS_STORED,
    },
    Family {
        name: "ernie4_5",
        class: ["Ernie4_5ForCausalLM", "ernie4_5"],
        tensors: &[],
        conventions: AS_STORED,
    },
    Family {
        name: "gemma2",
        class: ["Gemma2ForCausalLM", "gemma2"],
        tensors: &FOUR_NORMS,
        conventions: WHOLE_GAINS,
    },
    Family {
        name: "gemma3",
        class: ["Gemma3ForCausalLM", "gemma3_text"],
        tensors: &FOUR_NORMS,
        conventions: WHOLE_GAINS,
    },
    Family {
        name: "glm4",
        class: ["Glm4ForCausalLM", "glm4"],
        tensors: &[
            ("ffn_up", "mlp.gate_up_proj"),
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
        ],
        conventions: AS_STORED,
    },
    Family { name: "gpt2", class: ["GPT2LMHeadModel", "gpt2"], tensors: &[], conventions: AS_STORED },
    Family {
        name: "granite",
        class: ["GraniteForCausalLM", "granite"],
        tensors: &[],
        conventions: NEIGHBOURS,
    },
    Family {
        name: "hunyuan-dense",
        class: ["HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"],
        tensors: &[("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")],
        conventions: AS_STORED,
    },
    // Mistral's models too: the file does not tell them apart.
    Family { name: "llama", class: ["LlamaForCausalLM", "llama"], tensors: &[], conventions: NEIGHBOURS },
    Family {
        name: "olmo2",
        class: ["Olmo2ForCausalLM", "olmo2"],
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        conventions: AS_STORED,
    },
    Family {
        name: "phi3",
        class: ["Phi3ForCausalLM", "phi3"],
        tensors: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        conventions: AS_STORED,
    },
    Family { name: "qwen2", class: ["Qwen2ForCausalLM", "qwen2"], tensors: &[], conventions: AS_STORED },
    Family { name: "qwen3", class: ["Qwen3ForCausalLM", "qwen3"], tensors: &[], conventions: AS_STORED },
    Family {
        name: "smollm3",
        class: ["SmolLM3ForCausalLM", "smollm3"],
        tensors: &[],
        conventions: NEIGHBOURS,
    },
];

/// What most call the modules of a layer.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const OUTSIDE: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The same for GPT-2, which shares no name with the others.
const GPT2_LAYER: [(&str, &str); 6] = [
    ("attn_norm", "ln_1"),
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_norm", "ln_2"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
];

const GPT2_OUTSIDE: [(&str, &str); 4] =
    [("token_embd", "wte"), ("position_embd", "wpe"), ("output_norm", "ln_f"), ("output", "lm_head")];

impl Family {
    /// What Hugging Face calls a tensor; a name that the family does not have stays as it is, and nothing uses it.
    pub(crate) fn tensor(&self, name: &str) -> String {
        self.translated(name).unwrap_or_else(|| name.to_owned())
    }

    fn translated(&self, name: &str) -> Option<String> {
        let (outside, layers, usual): (&[_], _, &[_]) = match self.name {
            "gpt2" => (&GPT2_OUTSIDE, "h", &GPT2_LAYER),
            _ => (&OUTSIDE, "model.layers", &LAYER),
        };
        let find = |table: &[(&str, &'static str)], module: &str| {
            table.iter().find(|(ours, _)| *ours == module).map(|(_, theirs)| *theirs)
        };
        let (rest, kind) = name.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
        match rest.strip_prefix("blk.") {
            None => Some(format!("{}.{kind}", find(outside, rest)?)),
            Some(rest) => {
                let (layer, module) = rest.split_once('.')?;
                let module = find(self.tensors, module).or_else(|| find(usual, module))?;
                Some(format!("{layers}.{layer}.{module}.{kind}"))
            }
        }
    }
}
