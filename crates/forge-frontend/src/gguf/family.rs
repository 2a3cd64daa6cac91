//! The supported GGUF architectures: Hugging Face class, tensor names and tensor layout. `configuration`
//! translates their keys.

use crate::config::conventions::Conventions;

/// An architecture.
pub(crate) struct Family {
    /// `general.architecture`.
    pub(crate) name: &'static str,
    /// `architectures` and `model_type` of config.json.
    pub(crate) class: [&'static str; 2],
    /// Tensor names that differ from the usual ones, GGUF's name first.
    pub(crate) tensors: &'static [(&'static str, &'static str)],
    pub(crate) conventions: Conventions,
}

const AS_STORED: Conventions =
    Conventions { interleaved_rope: false, gains_include_one: false, rows_are_outputs: true };

/// Query and key rows are ordered for interleaved RoPE.
const INTERLEAVED_ROPE: Conventions = Conventions { interleaved_rope: true, ..AS_STORED };

/// Gains include the 1 that Hugging Face's tensors omit.
const GAINS_INCLUDE_ONE: Conventions = Conventions { gains_include_one: true, ..AS_STORED };

const FOUR_NORMS: [(&str, &str); 3] = [
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// All architectures, in the order of messages.
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
        conventions: GAINS_INCLUDE_ONE,
    },
    Family {
        name: "gemma3",
        class: ["Gemma3ForCausalLM", "gemma3_text"],
        tensors: &FOUR_NORMS,
        conventions: GAINS_INCLUDE_ONE,
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
        conventions: INTERLEAVED_ROPE,
    },
    Family {
        name: "hunyuan-dense",
        class: ["HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"],
        tensors: &[("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")],
        conventions: AS_STORED,
    },
    // Also Mistral's models, which the file does not distinguish.
    Family {
        name: "llama",
        class: ["LlamaForCausalLM", "llama"],
        tensors: &[],
        conventions: INTERLEAVED_ROPE,
    },
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
        conventions: INTERLEAVED_ROPE,
    },
];

/// Usual names of a layer's modules.
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

/// GPT-2's names, none of which are the usual ones.
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
    /// The Hugging Face name of a tensor. An unknown name is returned unchanged and reported as unused later.
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
