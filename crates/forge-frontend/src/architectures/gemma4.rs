//! Gemma 4: Gemma 3 with another head dimension in full-attention layers, normed values, and a scale per
//! layer.
//!
//! - The last layers may read the KV cache of earlier layers.
//! - Per-layer inputs are computed by the prologue for all layers: a row of a second embedding table plus a
//!   projection.
//! - Experts are parallel to the MLP. Router, MLP and experts each norm the stream with their own gain; the
//!   two outputs are normed separately, added, and normed again.

use crate::architectures::gemma2;
use crate::blueprint::{Architecture, Blueprint, Parts};
use crate::checkpoint::tensors::Tensors;
use crate::config::section::Section;
use crate::decoder::{Decoder, TensorPrefixes};
use crate::defaults::Defaults;
use crate::graph::builder::{Builder, Layer};
use crate::layers::attention::{Attention, HeadNorm, rope_config};
use crate::layers::experts::Experts;
use crate::layers::mlp::Mlp;
use crate::layers::per_layer_inputs::{Inputs, whole_number};
use crate::layers::rope::RopeConfig;
use crate::layers::sliding_window::Windows;
use crate::multimodal;
use forge_ir::{Activation, Apply, RopeParameters, Scores, StateId, ValueId};

pub(crate) const ARCHITECTURE: Architecture =
    Architecture { class: "Gemma4ForCausalLM", family: "gemma4_text", hub: &[], read };

/// The text model of a multimodal checkpoint.
pub(crate) const WRAPPED: Architecture = Architecture {
    class: "Gemma4ForConditionalGeneration",
    family: "gemma4",
    hub: &["google/gemma-4-E2B-it", "google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it"],
    read: read_wrapped,
};

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    sizes: Some([262_144, 8]),
    tied: true,
    key_heads: Some(4),
    width: Some(256),
    activation: ("hidden_activation", Activation::GeluTanh),
    ..Defaults::COMMON
};

/// Modules of a layer's norms: before attention, of its output, before the MLP, of its output.
const NORMS: [(&str, &str); 4] = [
    ("attention", "input_layernorm"),
    ("output", "post_attention_layernorm"),
    ("mlp", "pre_feedforward_layernorm"),
    ("down", "post_feedforward_layernorm"),
];

/// Description of the model.
struct Gemma4 {
    /// The shared description; its attention is that of sliding-window layers.
    decoder: Decoder,
    /// Attention of full-attention layers.
    whole: Attention,
    /// First layer without its own KV cache.
    shared_from: usize,
    /// Whether the MLPs of those layers are twice as wide.
    double: bool,
    /// Per-layer inputs.
    inputs: Option<Inputs>,
    /// Experts parallel to the MLP.
    experts: Option<Experts>,
}

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    Box::new(Gemma4::read(config))
}

fn read_wrapped(config: &Section<'_>) -> Box<dyn Blueprint> {
    let families = [WRAPPED.family, ARCHITECTURE.family];
    Box::new(multimodal::read(config, families, Gemma4::read, |text, model| {
        model.decoder.place.scope = "model.language_model.";
        model.decoder.place.ignored =
            &["model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."];
        model.decoder.converted = Some(TensorPrefixes::CONVERTED);
        for config in [config, text] {
            config.allow_only("tie_word_embeddings", true, "gemma4 requires a tied head");
        }
    }))
}

impl Gemma4 {
    fn read(config: &Section<'_>) -> Gemma4 {
        let mut decoder = Decoder::read_without_rope(config, &DEFAULTS);
        let layers = decoder.layers;
        decoder.embedding_scale = (decoder.hidden as f64).sqrt() as f32;
        decoder.windows = Windows::of_all_but_the_last(config, layers, decoder.context);
        decoder.softcap = config
            .get("final_logit_softcapping")
            .and_then(|_| gemma2::cap(config, "final_logit_softcapping", 1.0));
        let why = "only causal attention is supported";
        // The value "vision" concerns image tokens only.
        config.allow_only("use_bidirectional_attention", "vision", why);
        let experts = read_experts(config, &decoder.mlp);
        let bias = config.flag_or("attention_bias", false);
        let attention = &mut decoder.attention;
        (attention.input_bias, attention.output_bias) = (bias, bias);
        attention.scale = 1.0;
        attention.head_norm = Some(HeadNorm::per_head(decoder.norm));
        attention.value_norm = Some(decoder.norm.epsilon);
        let whole = read_attention(config, &mut decoder);

        let shared = whole_number(config, "num_kv_shared_layers", 0);
        let shared_from = layers.saturating_sub(shared);
        let kept = |layer| (0..shared_from).any(|other| decoder.windows.include(other) == layer);
        if (shared_from..layers).any(|layer| !kept(decoder.windows.include(layer))) {
            let message = "layers share the KV cache of a layer type that no layer has";
            config.report_inconsistency("num_kv_shared_layers", message.to_owned());
        }
        if shared == 0 {
            config.mark_inert("use_double_wide_mlp");
        }
        let double = shared > 0 && config.flag_or("use_double_wide_mlp", false);
        let inputs = Inputs::read(config, decoder.vocabulary);
        Gemma4 { decoder, whole, shared_from, double, inputs, experts }
    }
}

/// Experts parallel to the MLP, if any.
fn read_experts(config: &Section<'_>, mlp: &Mlp) -> Option<Experts> {
    if !config.flag_or("enable_moe_block", false) {
        for key in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
            config.mark_inert(key);
        }
        return None;
    }
    let inner = config.count("moe_intermediate_size");
    let mut experts =
        Experts::read_with_top_k(config, mlp, (&["num_experts"], inner), Scores::Softmax, "top_k_experts");
    experts.choice.renormalize = true;
    experts.joined = true;
    Some(experts)
}

/// The attention of full-attention layers. Completes that of the other layers in `decoder`.
fn read_attention(config: &Section<'_>, decoder: &mut Decoder) -> Attention {
    let mut whole = decoder.attention.clone();
    whole.values_are_keys = config.flag_or("attention_k_eq_v", false);
    let sees_window = |layer: &usize| decoder.windows.include(*layer);
    let own = config.section("per_layer_config");
    if own.is_some() || !whole.values_are_keys {
        config.mark_inert("num_global_key_value_heads");
    }
    if let Some(own) = own {
        config.mark_inert("global_head_dim");
        let usual = (whole.width, whole.key_heads);
        // transformers pads the layer indices with zeros to equal length.
        let digits = decoder.layers.saturating_sub(1).to_string().len();
        let shape = |layer: usize| {
            let section = (1..=digits).find_map(|width| own.section(&format!("{layer:0width$}")));
            section.map_or(usual, |own| {
                (own.count_or("head_dim", usual.0), own.count_or("num_key_value_heads", usual.1))
            })
        };
        let (mut of_windows, mut of_whole) = (Vec::new(), Vec::new());
        for layer in 0..decoder.layers {
            if sees_window(&layer) { &mut of_windows } else { &mut of_whole }.push(shape(layer));
        }
        for (attention, mut shapes) in [(&mut decoder.attention, of_windows), (&mut whole, of_whole)] {
            shapes.dedup();
            match shapes[..] {
                [] => {}
                [(width, key_heads)] => (attention.width, attention.key_heads) = (width, key_heads),
                _ => config.report_inconsistency(
                    "per_layer_config",
                    "heads must have the same shape in all layers of one type".to_owned(),
                ),
            }
        }
    } else {
        whole.width = config.count_or("global_head_dim", 512);
        if whole.values_are_keys {
            whole.key_heads = config.count_or("num_global_key_value_heads", whole.key_heads);
        }
    }
    for attention in [&decoder.attention, &whole] {
        if !attention.query_heads.is_multiple_of(attention.key_heads) {
            let (query_heads, key_heads) = (attention.query_heads, attention.key_heads);
            let message = format!("{query_heads} query heads are not a multiple of {key_heads} key heads");
            config.report_inconsistency("num_attention_heads", message);
        }
    }
    let nested = config.section("rope_parameters");
    let rope = |kind: &str, attention: &Attention, usual: &dyn Fn(RopeConfig) -> RopeParameters| {
        let rope = rope_config(attention.width, decoder.context, &DEFAULTS);
        let Some(nested) = &nested else { return usual(rope) };
        let Some(own) = nested.section(kind) else {
            nested.count(kind);
            return usual(rope);
        };
        let rope = rope.parameters(&own, Some(&own), own.number("rope_theta"));
        if rope.long.is_some() {
            nested.reject(kind, "scaling that depends on the context length is unsupported for gemma4", &[]);
        }
        rope
    };
    if (0..decoder.layers).any(|layer| sees_window(&layer)) {
        let usual = |rope: RopeConfig| rope.proportional(config, 1.0, 1e4);
        decoder.attention.rope = rope("sliding_attention", &decoder.attention, &usual);
    }
    whole.rope = rope("full_attention", &whole, &|rope| rope.proportional(config, 0.25, 1e6));
    whole
}

impl Gemma4 {
    fn layer(&self, builder: &mut Builder<'_>, index: usize, kept: Option<StateId>) -> Apply {
        let decoder = &self.decoder;
        let at = decoder.module(&format!("layers.{index}"));
        let sees_window = decoder.windows.include(index);
        let attention = if sees_window { &decoder.attention } else { &self.whole };
        let name = match (sees_window, kept) {
            (true, None) => "window_layer",
            (false, None) => "layer",
            (true, Some(_)) => "shared_window_layer",
            (false, Some(_)) => "shared_layer",
        };
        let mut layer = builder.layer(name, decoder.hidden);
        let normed = |layer: &mut Layer<'_, '_>, which: usize, x: ValueId| {
            let (what, module) = NORMS[which];
            decoder.normed(layer, what, x, &format!("{at}.{module}"))
        };

        let x = normed(&mut layer, 0, Layer::INPUT);
        let sees = (decoder.windows.of(index), Some(&attention.rope));
        let branch = attention.build_over(&mut layer, x, &format!("{at}.self_attn"), sees, kept);
        let branch = normed(&mut layer, 1, branch);
        let stream = layer.add("stream", Layer::INPUT, branch);

        let x = normed(&mut layer, 2, stream);
        let times = if self.double && kept.is_some() { 2 } else { 1 };
        let mlp = Mlp { inner: times * decoder.mlp.inner, ..decoder.mlp };
        let mut branch = mlp.build(&mut layer, x, &format!("{at}.mlp"));
        if let Some(experts) = &self.experts {
            branch = self.add_experts(&mut layer, experts, [stream, branch], &at);
        }
        let branch = normed(&mut layer, 3, branch);
        let mut stream = layer.add("stream", stream, branch);

        if let Some(inputs) = &self.inputs {
            stream = inputs.build(&mut layer, stream, &at, decoder, index);
        }
        layer.scale_by("stream", stream, ("layer_factor", &format!("{at}.layer_scalar")));
        layer.finish()
    }
}

impl Gemma4 {
    /// The normed outputs of the MLP and of the parallel experts, added.
    fn add_experts(
        &self,
        layer: &mut Layer<'_, '_>,
        experts: &Experts,
        [stream, branch]: [ValueId; 2],
        at: &str,
    ) -> ValueId {
        let decoder = &self.decoder;
        let normed = |layer: &mut Layer<'_, '_>, what: &str, x: ValueId, module: &str| {
            decoder.normed(layer, what, x, &format!("{at}.{module}"))
        };
        let branch = normed(layer, "network", branch, "post_feedforward_layernorm_1");
        let gain = ("router_gain", &*format!("{at}.router.scale"));
        let x = layer.norm_by("router_norm", stream, gain, decoder.hidden, decoder.norm.epsilon);
        let shape = [experts.count, decoder.hidden];
        let logits = layer.linear("router", x, &format!("{at}.router.proj"), shape, false);
        let logits = layer.scale("scaled_router", logits, (decoder.hidden as f64).powf(-0.5) as f32);
        let scale = layer.weight("expert_scale", &format!("{at}.router.per_expert_scale"), &[experts.count]);
        let x = normed(layer, "routed", stream, "pre_feedforward_layernorm_2");
        let routed = experts.routed(layer, [x, logits], at, [None, Some(scale)]);
        let routed = normed(layer, "experts", routed, "post_feedforward_layernorm_2");
        layer.add("both", branch, routed)
    }
}

impl Blueprint for Gemma4 {
    fn find(&mut self, tensors: &Tensors) -> Vec<String> {
        self.decoder.find(tensors)
    }

    fn build(&self, builder: &mut Builder<'_>) -> Parts {
        let decoder = &self.decoder;
        let mut embed = builder.layer("embed", 0);
        let stream = decoder.embedding(&mut embed);
        if let Some(inputs) = &self.inputs {
            let per_layer_inputs = inputs.of_all(&mut embed, stream, decoder);
            embed.store_per_layer_inputs("stream", stream, per_layer_inputs);
        }
        let prologue = embed.finish();
        // Layers that read another layer's cache may still have unused key and value projections in the
        // checkpoint.
        let shared: Vec<String> = (self.shared_from..decoder.layers)
            .flat_map(|layer| {
                ["k_proj", "v_proj", "k_norm", "v_norm"]
                    .map(|module| decoder.module(&format!("layers.{layer}.self_attn.{module}.")))
            })
            .collect();
        builder.bindings.ignore(|name| shared.iter().any(|module| name.starts_with(module)));
        // The last cache of each layer type.
        let mut last = [None; 2];
        decoder.parts(builder, prologue, |builder, index| {
            let last = &mut last[usize::from(decoder.windows.include(index))];
            let kept = last.filter(|_| index >= self.shared_from);
            let layer = self.layer(builder, index, kept);
            *last = layer.states.first().copied();
            layer
        })
    }
}
