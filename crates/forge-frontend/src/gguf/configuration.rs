//! Translates metadata to config.json.
//!
//! Absent metadata gets llama.cpp's default, which is why its converter omits it. Keys without such a default
//! stay absent. `rope` translates RoPE.

use crate::gguf::family::Family;
use crate::gguf::metadata::Metadata;
use crate::gguf::reading::{Reading, Shape, Tensors};
use serde_json::{Map, Value, json};

/// Layer counts of models whose score scale is not derived from the head dimension.
const SCALED_BY_HIDDEN_SIZE: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];

/// config.json without special tokens, which are in generation_config.json.
pub(crate) fn configuration(metadata: &Metadata, family: &Family, tensors: &Tensors<'_>) -> Value {
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([family.class[0]]));
    config.insert("model_type".to_owned(), json!(family.class[1]));
    let mut read = Reading { metadata, tensors, config };
    read.reject_unsupported();
    if family.name == "gpt2" {
        read.gpt2();
        return read.config.into();
    }
    let shape = read.decoder();
    read.rope(family, &shape);
    read.biases(family);
    match family.name {
        "cohere2" => {
            read.copy("attention.layer_norm_epsilon", "layer_norm_eps");
            read.copy("logit_scale", "logit_scale");
            read.windows(&shape, 4);
        }
        "gemma2" | "gemma3" => read.gemma(family, &shape),
        "granite" => {
            read.copy("attention.scale", "attention_multiplier");
            read.copy("logit_scale", "logits_scaling");
            read.copy_or("embedding_scale", "embedding_multiplier", 1.0);
            read.copy_or("residual_scale", "residual_multiplier", 1.0);
        }
        "phi3" => {
            // 0 means no window.
            let window = metadata.count(&metadata.own("attention.sliding_window")).filter(|width| *width > 0);
            read.set("sliding_window", json!(window));
        }
        "smollm3" => read.set("no_rope_layer_interval", json!(4)),
        _ => {}
    }
    if family.name != "cohere2" {
        read.copy("attention.layer_norm_rms_epsilon", "rms_norm_eps");
    }
    read.config.into()
}

impl Reading<'_> {
    /// Rejects unsupported values of keys that do not depend on the architecture.
    fn reject_unsupported(&self) {
        let metadata = self.metadata;
        for (key, why) in [
            ("expert_count", "mixture-of-experts GGUF files are unsupported"),
            ("expert_used_count", "mixture-of-experts GGUF files are unsupported"),
            ("nextn_predict_layers", "multi-token prediction layers are unsupported"),
        ] {
            let key = metadata.own(key);
            if metadata.count(&key).is_some_and(|count| count > 0) {
                metadata.reject(&key, why);
            }
        }
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

    /// Translates the keys of all architectures but GPT-2.
    fn decoder(&mut self) -> Shape {
        let metadata = self.metadata;
        let (hidden, heads) = (self.count("embedding_length"), self.count("attention.head_count"));
        let key_heads = metadata.own("attention.head_count_kv");
        let key_heads = metadata.count_of_layers(&key_heads).unwrap_or(heads);
        let [width, values] = ["attention.key_length", "attention.value_length"]
            .map(|key| metadata.count(&metadata.own(key)).unwrap_or(hidden / heads));
        if width != values {
            metadata.reject(
                &metadata.own("attention.value_length"),
                "keys and values must have the same head dimension",
            );
        }
        let (layers, context) = (self.count("block_count"), self.count("context_length"));
        if layers > self.tensors.count as u64 {
            let why = format!("the file has {} tensors", self.tensors.count);
            metadata.reject(&metadata.own("block_count"), &why);
        }
        let layers = layers.min(self.tensors.count as u64);
        let inner = self.count("feed_forward_length");
        for (key, value) in [
            ("hidden_size", hidden),
            ("num_attention_heads", heads),
            ("num_key_value_heads", key_heads),
            ("head_dim", width),
            ("num_hidden_layers", layers),
            ("max_position_embeddings", context),
            ("intermediate_size", inner),
            ("vocab_size", self.tensors.vocabulary as u64),
        ] {
            self.set(key, json!(value));
        }
        self.set("tie_word_embeddings", json!(!(self.tensors.has)("output.weight")));
        Shape { layers, hidden, heads, width, context }
    }

    /// Sets bias options from the first layer's tensors. A differing layer then has a missing or unused
    /// tensor.
    fn biases(&mut self, family: &Family) {
        let has = |module: &str| (self.tensors.has)(&format!("blk.0.{module}.bias"));
        let (attention, mlp) = (has("attn_q") || has("attn_output"), has("ffn_up"));
        let mut set = |key: &str, value: bool| self.set(key, json!(value));
        match family.name {
            "ernie4_5" => set("use_bias", attention),
            // Always has biases.
            "qwen2" => {}
            // Never has biases.
            "phi3" => {}
            "llama" | "granite" | "smollm3" => {
                set("attention_bias", attention);
                set("mlp_bias", mlp);
            }
            _ => set("attention_bias", attention),
        }
    }

    /// Sliding-window layers: all but every nth, unless the file lists them.
    fn windows(&mut self, shape: &Shape, usual: u64) {
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

    fn gemma(&mut self, family: &Family, shape: &Shape) {
        let metadata = self.metadata;
        let by_hidden_size = SCALED_BY_HIDDEN_SIZE.contains(&(family.name, shape.layers));
        let scalar = if by_hidden_size { shape.hidden / shape.heads } else { shape.width };
        self.set("query_pre_attn_scalar", json!(scalar));
        if family.name == "gemma2" {
            self.copy_or("attn_logit_softcapping", "attn_logit_softcapping", 50.0);
            self.copy_or("final_logit_softcapping", "final_logit_softcapping", 30.0);
            self.windows(shape, 2);
        } else {
            let cap = metadata.number(&metadata.own("final_logit_softcapping")).filter(|cap| *cap != 0.0);
            self.set("final_logit_softcapping", json!(cap));
            self.copy_or("rope.freq_base_swa", "rope_local_base_freq", 1e4);
            self.windows(shape, 6);
        }
    }

    fn gpt2(&mut self) {
        for (key, as_key) in [
            ("embedding_length", "n_embd"),
            ("block_count", "n_layer"),
            ("attention.head_count", "n_head"),
            ("context_length", "n_positions"),
            ("feed_forward_length", "n_inner"),
        ] {
            let count = self.count(key);
            self.set(as_key, json!(count));
        }
        self.set("vocab_size", json!(self.tensors.vocabulary));
        self.copy("attention.layer_norm_epsilon", "layer_norm_epsilon");
        self.set("tie_word_embeddings", json!(!(self.tensors.has)("output.weight")));
    }
}
