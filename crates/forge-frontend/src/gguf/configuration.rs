//! Translates metadata to config.json: the keys that architectures share. `families` has the others and `rope`
//! translates RoPE.
//!
//! Absent metadata gets llama.cpp's default, which is why its converter omits it. Keys without such a default
//! stay absent.

use crate::gguf::family::Family;
use crate::gguf::metadata::Metadata;
use crate::gguf::reading::{Reading, Shape, Tensors};
use serde_json::{Map, Value, json};

/// config.json without special tokens, which are in generation_config.json.
pub(crate) fn configuration(metadata: &Metadata, family: &'static Family, tensors: &Tensors<'_>) -> Value {
    let mut read = Reading { metadata, family, tensors, config: Map::new() };
    read.set_class(family.class);
    read.reject_unsupported();
    (family.translate)(&mut read);
    read.config.into()
}

impl Reading<'_> {
    /// Sets the Hugging Face class and its `model_type`.
    pub(crate) fn set_class(&mut self, [class, family]: [&str; 2]) {
        self.set("architectures", json!([class]));
        self.set("model_type", json!(family));
    }

    /// Rejects unsupported values of keys that do not depend on the architecture.
    fn reject_unsupported(&self) {
        let metadata = self.metadata;
        // Pooling for embedding models; it does not change logits.
        metadata.mark_inert(&metadata.own("pooling_type"));
        metadata.allow_only(&metadata.own("attention.causal"), true, "only causal attention is supported");
        let layout = metadata.own("tensor_data_layout");
        if metadata.word(&layout).is_some_and(|layout| layout != "Meta AI original pth") {
            metadata.reject(&layout, "expected the layout of llama.cpp's converter");
        }
        let rows = metadata.own("vocab_size");
        if metadata.count(&rows).is_some_and(|count| count != self.tensors.vocabulary as u64) {
            metadata.reject(&rows, &format!("the embedding table has {} rows", self.tensors.vocabulary));
        }
    }

    /// Rejects experts and multi-token prediction, for architectures without them.
    pub(crate) fn reject_experts(&self) {
        let metadata = self.metadata;
        for (key, why) in [
            ("expert_count", "mixture-of-experts files of this architecture are unsupported"),
            ("expert_used_count", "mixture-of-experts files of this architecture are unsupported"),
            ("nextn_predict_layers", "multi-token prediction layers are unsupported"),
        ] {
            let key = metadata.own(key);
            if metadata.count(&key).is_some_and(|count| count > 0) {
                metadata.reject(&key, why);
            }
        }
    }

    /// A dense decoder: sizes and RoPE.
    pub(crate) fn dense_decoder(&mut self) -> Shape {
        self.reject_experts();
        let shape = self.decoder();
        self.rope(&shape);
        shape
    }

    /// Sizes of a decoder with heads of one shape.
    pub(crate) fn decoder(&mut self) -> Shape {
        let metadata = self.metadata;
        let shape = self.sizes();
        let key_heads = metadata.own("attention.head_count_kv");
        let key_heads = metadata.count_of_layers(&key_heads).unwrap_or(shape.heads);
        let [width, values] = ["attention.key_length", "attention.value_length"]
            .map(|key| metadata.count(&metadata.own(key)).unwrap_or(shape.width));
        if width != values {
            metadata.reject(
                &metadata.own("attention.value_length"),
                "keys and values must have the same head dimension",
            );
        }
        self.set("num_key_value_heads", json!(key_heads));
        self.set("head_dim", json!(width));
        Shape { width, ..shape }
    }

    /// Sizes of a decoder apart from those of heads; their width is the usual one.
    pub(crate) fn sizes(&mut self) -> Shape {
        let inner = self.count("feed_forward_length");
        self.set("intermediate_size", json!(inner));
        self.sizes_but_inner()
    }

    /// The same without the size of the MLP.
    pub(crate) fn sizes_but_inner(&mut self) -> Shape {
        let (hidden, heads) = (self.count("embedding_length"), self.count("attention.head_count"));
        let (layers, context) = (self.layers(), self.count("context_length"));
        for (key, value) in [
            ("hidden_size", hidden),
            ("num_attention_heads", heads),
            ("num_hidden_layers", layers),
            ("max_position_embeddings", context),
        ] {
            self.set(key, json!(value));
        }
        self.vocabulary();
        Shape { layers, hidden, heads, width: hidden / heads, context }
    }

    /// Number of layers, without those of multi-token prediction, which are the last.
    pub(crate) fn layers(&self) -> u64 {
        let (metadata, most) = (self.metadata, self.tensors.count as u64);
        let all = self.count("block_count");
        if all > most {
            metadata.reject(&metadata.own("block_count"), &format!("the file has {most} tensors"));
        }
        let key = metadata.own("nextn_predict_layers");
        let predicting = metadata.count(&key).unwrap_or(0);
        if predicting >= all {
            metadata.reject(&key, &format!("the file has {all} layers"));
        }
        all.min(most).saturating_sub(predicting).max(1)
    }

    /// Size of the vocabulary, and whether the embedding table is the head too.
    pub(crate) fn vocabulary(&mut self) {
        self.set("vocab_size", json!(self.tensors.vocabulary));
        self.set("tie_word_embeddings", json!(!(self.tensors.has)("output.weight")));
    }

    /// Epsilon of RMSNorm.
    pub(crate) fn rms_norm(&mut self) {
        self.copy("attention.layer_norm_rms_epsilon", "rms_norm_eps");
    }

    /// Whether the first layer has a tensor.
    pub(crate) fn first_layer_has(&self, tensor: &str) -> bool {
        (self.tensors.has)(&format!("blk.0.{tensor}"))
    }

    /// Whether attention has biases. The first layer decides: a differing layer then has a missing or unused
    /// tensor.
    pub(crate) fn has_attention_bias(&self) -> bool {
        ["attn_q.bias", "attn_qkv.bias", "attn_output.bias"].iter().any(|tensor| self.first_layer_has(tensor))
    }

    /// Sets whether attention has biases.
    pub(crate) fn attention_bias(&mut self) {
        self.set("attention_bias", json!(self.has_attention_bias()));
    }

    /// Sets whether attention and MLP have biases.
    pub(crate) fn all_biases(&mut self) {
        self.attention_bias();
        self.set("mlp_bias", json!(self.first_layer_has("ffn_up.bias")));
    }

    /// Sliding-window layers: all but every nth, unless the file lists them.
    pub(crate) fn windows(&mut self, shape: &Shape, usual: u64) {
        let metadata = self.metadata;
        let key = metadata.own("attention.sliding_window_pattern");
        let width = metadata.count(&metadata.own("attention.sliding_window")).filter(|width| *width > 0);
        let has = metadata.flags(&key).unwrap_or_else(|| {
            let pattern = metadata.count(&key).unwrap_or(usual);
            // Every layer has one if the pattern is 0.
            (1..=shape.layers).map(|layer| pattern == 0 || !layer.is_multiple_of(pattern)).collect()
        });
        let kinds: Vec<&str> = has
            .iter()
            .map(|has| if *has && width.is_some() { "sliding_attention" } else { "full_attention" })
            .collect();
        self.set("layer_types", json!(kinds));
        self.set("sliding_window", json!(width));
    }
}
