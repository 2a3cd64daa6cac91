//! Gemma 4. Experts, if any, have gate and up in one tensor.

use crate::gguf::family::{DENSE, Family, NAMES, Names};
use crate::gguf::format::value::Value;
use crate::gguf::metadata::Metadata;
use crate::gguf::reading::Reading;
use serde_json::json;

pub(crate) const GEMMA4: Family = Family {
    name: "gemma4",
    class: ["Gemma4ForCausalLM", "gemma4_text"],
    names: Names {
        outside: &[
            ("token_embd", "model.embed_tokens"),
            ("output_norm", "model.norm"),
            ("output", "lm_head"),
            ("per_layer_token_embd", "model.embed_tokens_per_layer"),
            ("per_layer_model_proj", "model.per_layer_model_projection"),
            ("per_layer_proj_norm", "model.per_layer_projection_norm"),
        ],
        ..NAMES
    },
    tensors: &[&[
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("ffn_gate_inp", "router.proj"),
        ("ffn_gate_inp.scale", "router.scale"),
        ("ffn_down_exps.scale", "router.per_expert_scale"),
        ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
        ("ffn_gate_exps", "experts.gate_proj"),
        ("ffn_up_exps", "experts.up_proj"),
        ("ffn_down_exps", "experts.down_proj"),
        ("layer_output_scale.weight", "layer_scalar"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
    ]],
    keys: &[
        "attention.shared_kv_layers",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
    ],
    translate: |read| {
        let shape = read.sizes_but_inner();
        let is_windowed = read.gemma4_windows(shape.layers);
        read.gemma4_heads(&is_windowed);
        read.gemma4_rope();
        read.gemma4_mlp(shape.layers);
        read.rms_norm();
        read.final_softcap();
        read.set("attention_bias", json!(false));
        read.gemma4_experts();
    },
    ..DENSE
};

/// The values of a key for all layers, of which the file has one or a list.
fn of_layers(metadata: &Metadata, key: &str, layers: u64) -> Option<Vec<u64>> {
    match metadata.value(key) {
        Some(Value::List(_)) => {
            let counts: Vec<u64> = metadata.numbers(key)?.into_iter().map(|number| number as u64).collect();
            if counts.len() as u64 != layers {
                metadata.reject(key, &format!("expected {layers} layers"));
            }
            Some(counts)
        }
        _ => metadata.count(key).map(|count| vec![count; layers as usize]),
    }
}

impl Reading<'_> {
    /// Which layers have a sliding window.
    fn gemma4_windows(&mut self, layers: u64) -> Vec<bool> {
        let metadata = self.metadata;
        let key = metadata.own("attention.sliding_window_pattern");
        let is_windowed = metadata.flags(&key).or_else(|| metadata.missing(&key)).unwrap_or_default();
        if is_windowed.len() as u64 != layers {
            metadata.reject(&key, &format!("expected a list of {layers} layers"));
        }
        let kind = |has: &bool| if *has { "sliding_attention" } else { "full_attention" };
        self.set("layer_types", json!(is_windowed.iter().map(kind).collect::<Vec<_>>()));
        let window = self.count("attention.sliding_window");
        self.set("sliding_window", json!(window));
        let shared = metadata.count(&metadata.own("attention.shared_kv_layers")).unwrap_or(0);
        self.set("num_kv_shared_layers", json!(shared));
        is_windowed
    }

    /// Heads of both kinds of layers.
    fn gemma4_heads(&mut self, is_windowed: &[bool]) {
        let metadata = self.metadata;
        for (keys, values, as_key) in [
            ("attention.key_length", "attention.value_length", "global_head_dim"),
            ("attention.key_length_swa", "attention.value_length_swa", "head_dim"),
        ] {
            let (keys, width) = (self.count(keys), self.count(values));
            if keys != width {
                metadata.reject(&metadata.own(values), "keys and values must have the same head dimension");
            }
            self.set(as_key, json!(keys));
        }
        let key = metadata.own("attention.head_count_kv");
        let counts = of_layers(metadata, &key, is_windowed.len() as u64)
            .or_else(|| metadata.missing(&key))
            .unwrap_or_default();
        let of_kind = |windowed: bool| {
            let mut found: Vec<u64> =
                is_windowed.iter().zip(&counts).filter(|it| *it.0 == windowed).map(|it| *it.1).collect();
            found.dedup();
            found
        };
        let (of_windows, of_whole) = (of_kind(true), of_kind(false));
        // A layer whose values are its keys has no projection of values.
        let whole = is_windowed.iter().position(|windowed| !windowed);
        let lacks_values =
            whole.is_some_and(|layer| !(self.tensors.has)(&format!("blk.{layer}.attn_v.weight")));
        self.set("attention_k_eq_v", json!(lacks_values));
        match (&of_windows[..], &of_whole[..]) {
            ([count], []) | ([], [count]) => self.set("num_key_value_heads", json!(count)),
            ([windows], [whole]) if windows == whole || lacks_values => {
                self.set("num_key_value_heads", json!(windows));
                if lacks_values {
                    self.set("num_global_key_value_heads", json!(whole));
                }
            }
            _ => metadata.reject(&key, "expected one number per layer type"),
        }
    }

    /// RoPE of both kinds of layers: whole heads in layers with a window, the first pairs in others.
    fn gemma4_rope(&mut self) {
        let metadata = self.metadata;
        for (rotated, width) in [
            ("rope.dimension_count", "attention.key_length"),
            ("rope.dimension_count_swa", "attention.key_length_swa"),
        ] {
            let (key, width) = (metadata.own(rotated), self.count(width));
            if metadata.count(&key).is_some_and(|count| count != width) {
                metadata.reject(&key, &format!("expected {width}"));
            }
        }
        let scaling = metadata.own("rope.scaling.type");
        if metadata.word(&scaling).is_some_and(|kind| kind != "none") {
            metadata.reject(&scaling, "expected none");
        }
        metadata.mark_inert(&metadata.own("rope.scaling.finetuned"));
        let base = |key: &str, usual: f64| metadata.number(&metadata.own(key)).unwrap_or(usual);
        // The frequencies of other pairs are divided by a number that makes them 0.
        let fraction = match &self.tensors.factors.all {
            None => 1.0,
            Some(factors) => {
                let rotated = factors.iter().take_while(|factor| **factor == 1.0).count();
                let pairs = self.count("attention.key_length") / 2;
                if factors.len() as u64 != pairs {
                    let message =
                        format!("rope_freqs.weight has {} factors; expected {pairs}", factors.len());
                    metadata.fault(message, &[]);
                }
                if factors[rotated..].iter().any(|factor| *factor < 1e29) {
                    metadata.fault("rope_freqs.weight: expected factors of 1, then 1e30".to_owned(), &[]);
                }
                rotated as f64 / factors.len().max(1) as f64
            }
        };
        let rope = json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": base("rope.freq_base_swa", 1e4)},
            "full_attention": {
                "rope_type": "proportional", "rope_theta": base("rope.freq_base", 1e4),
                "partial_rotary_factor": fraction,
            },
        });
        self.set("rope_parameters", rope);
    }

    /// Sizes of the MLP, which may be twice as wide in layers without a KV cache of their own, and of per-layer
    /// inputs.
    fn gemma4_mlp(&mut self, layers: u64) {
        let metadata = self.metadata;
        let key = metadata.own("feed_forward_length");
        let sizes = of_layers(metadata, &key, layers).or_else(|| metadata.missing(&key)).unwrap_or_default();
        let first = sizes.first().copied().unwrap_or(1);
        let twice = first.saturating_mul(2);
        let shared = metadata.count(&metadata.own("attention.shared_kv_layers")).unwrap_or(0);
        let own = layers.saturating_sub(shared) as usize;
        let is_double = sizes.get(own).is_some_and(|size| *size == twice);
        let expected = |layer: usize| if is_double && layer >= own { twice } else { first };
        if sizes.iter().enumerate().any(|(layer, size)| *size != expected(layer)) {
            metadata.reject(&key, "expected one size, or twice as much in all layers with a shared KV cache");
        }
        self.set("intermediate_size", json!(first));
        self.set("use_double_wide_mlp", json!(is_double));
        let width = metadata.own("embedding_length_per_layer_input");
        let width = metadata.count(&width).or_else(|| metadata.missing(&width)).unwrap_or(0);
        self.set("hidden_size_per_layer_input", json!(width));
        if width > 0 {
            self.set("vocab_size_per_layer_input", json!(self.tensors.vocabulary));
        }
    }

    fn gemma4_experts(&mut self) {
        let metadata = self.metadata;
        let has_experts = metadata.count(&metadata.own("expert_count")).is_some_and(|count| count > 0);
        self.set("enable_moe_block", json!(has_experts));
        if has_experts {
            let (count, chosen) = (self.count("expert_count"), self.count("expert_used_count"));
            self.set("num_experts", json!(count));
            self.set("top_k_experts", json!(chosen));
            let key = metadata.own("expert_feed_forward_length");
            let inner = metadata.count_of_layers(&key).or_else(|| metadata.missing(&key));
            self.set("moe_intermediate_size", json!(inner));
            self.only_softmax();
        }
    }
}
