//! A GGUF architecture: its Hugging Face class, tensor names and layout, and how its metadata is translated.
//! `families` declares all of them.

use crate::config::conventions::Conventions;
use crate::gguf::reading::Reading;

/// An architecture.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    /// `general.architecture`.
    pub(crate) name: &'static str,
    /// `architectures` and `model_type` of config.json.
    pub(crate) class: [&'static str; 2],
    /// The same of other classes that some files are, or are read as.
    pub(crate) other_classes: &'static [[&'static str; 2]],
    /// Tensor names.
    pub(crate) names: Names,
    /// Layer tensors whose names differ from those in `names`, GGUF's name first. A name with `weight` or
    /// `bias` at its end stands for one tensor, others for a module; `*` stands for an expert's number. The first
    /// entry counts.
    pub(crate) tensors: &'static [&'static [(&'static str, &'static str)]],
    /// How tensor data differs from Hugging Face's.
    pub(crate) conventions: Conventions,
    /// Keys that llama.cpp's loader reads for this architecture and not for every other.
    pub(crate) keys: &'static [&'static str],
    /// Whether part of a head may rotate.
    pub(crate) partial_rope: bool,
    /// Whether RoPE may have sections for image positions, which text does not have.
    pub(crate) image_positions: bool,
    /// Translates the metadata.
    pub(crate) translate: fn(&mut Reading<'_>),
}

/// Tensor names that architectures share, GGUF's first.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    /// Tensors outside of layers.
    pub(crate) outside: &'static [(&'static str, &'static str)],
    /// Prefix of a layer, before its number.
    pub(crate) layers: &'static str,
    /// Modules of a layer.
    pub(crate) usual: &'static [(&'static str, &'static str)],
}

/// The names of most architectures.
pub(crate) const NAMES: Names = Names {
    outside: &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")],
    layers: "model.layers",
    usual: &[
        ("attn_norm", "input_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_qkv", "self_attn.qkv_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ],
};

/// Data as Hugging Face stores it.
pub(crate) const AS_STORED: Conventions = Conventions {
    interleaved_rope: false,
    gains_include_one: false,
    rows_are_outputs: true,
    tiled_value_heads: false,
};

/// A dense decoder with the usual names.
pub(crate) const DENSE: Family = Family {
    name: "",
    class: ["", ""],
    other_classes: &[],
    names: NAMES,
    tensors: &[],
    conventions: AS_STORED,
    keys: &[],
    partial_rope: false,
    image_positions: false,
    translate: |read| read.dense(),
};

/// Keys of sliding windows.
pub(crate) const WINDOW_KEYS: &[&str] = &["attention.sliding_window", "attention.sliding_window_pattern"];

impl Family {
    /// The Hugging Face name of a tensor. An unknown name is returned unchanged and reported as unused later.
    pub(crate) fn tensor(&self, name: &str) -> String {
        self.translated(name).unwrap_or_else(|| name.to_owned())
    }

    fn translated(&self, name: &str) -> Option<String> {
        let Names { outside, layers, usual } = self.names;
        let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return module(&[outside], name);
        };
        let part = module(self.tensors, part).or_else(|| module(&[usual], part))?;
        Some(format!("{layers}.{layer}.{part}"))
    }
}

/// The name of a tensor in the first table that has it or its module.
fn module(tables: &[&[(&str, &str)]], name: &str) -> Option<String> {
    let find = |name: &str| tables.iter().copied().flatten().find(|(ours, _)| *ours == name);
    if let Some((_, theirs)) = find(name) {
        return Some((*theirs).to_owned());
    }
    let (rest, kind) = name.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
    if let Some((_, theirs)) = find(rest) {
        return Some(format!("{theirs}.{kind}"));
    }
    let (rest, expert) = rest.rsplit_once('.')?;
    let expert: u32 = expert.parse().ok()?;
    let (_, theirs) = find(&format!("{rest}.*"))?;
    Some(format!("{}.{kind}", theirs.replace('*', &expert.to_string())))
}
