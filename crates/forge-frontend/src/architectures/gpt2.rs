//! GPT-2: learned position embeddings, LayerNorm, biases on all projections, and an MLP without a gate.
//! Matrices are stored transposed; query, key and value are one projection.

use crate::blueprint::{Architecture, Blueprint, Parts};
use crate::checkpoint::tensors::Tensors;
use crate::config::section::Section;
use crate::graph::builder::{Builder, Layer};
use crate::graph::operations::{Norm, NormKind};
use crate::layers::mlp::activation;
use forge_ir::{Activation, Apply, ValueId, WeightSlice};

pub(crate) const ARCHITECTURE: Architecture =
    Architecture { class: "GPT2LMHeadModel", family: "gpt2", hub: &["openai-community/gpt2"], read };

/// Description of the model.
struct Gpt2 {
    vocabulary: usize,
    hidden: usize,
    context: usize,
    layers: usize,
    heads: usize,
    /// Intermediate size of the MLP.
    inner: usize,
    activation: Activation,
    /// Score scale of the first layer.
    scale: f64,
    /// Whether the score scale is divided by the layer's number, counted from 1.
    scale_by_layer: bool,
    norm: Norm,
    tied: bool,
    /// Whether matrices have one row per output, as in other architectures.
    rows_are_outputs: bool,
}

fn read(config: &Section<'_>) -> Box<dyn Blueprint> {
    let (hidden, heads) = (config.count("n_embd"), config.count("n_head"));
    if !hidden.is_multiple_of(heads) {
        let message = format!("n_embd {hidden} is not a multiple of {heads} heads");
        config.report_inconsistency("n_head", message);
    }
    let width = (hidden / heads).max(1) as f64;
    Box::new(Gpt2 {
        vocabulary: config.count("vocab_size"),
        hidden,
        context: config.count_or("n_positions", 1024),
        layers: config.layers("n_layer"),
        heads,
        inner: config.count_or("n_inner", 4 * hidden),
        activation: activation(config, "activation_function", Activation::GeluTanh),
        scale: if config.flag_or("scale_attn_weights", true) { width.sqrt().recip() } else { 1.0 },
        scale_by_layer: config.flag_or("scale_attn_by_inverse_layer_idx", false),
        norm: Norm {
            epsilon: config.at_least_0_or("layer_norm_epsilon", 1e-5) as f32,
            plus_one: false,
            kind: NormKind::Layer { bias: true },
        },
        tied: config.flag_or("tie_word_embeddings", true),
        rows_are_outputs: config.conventions().rows_are_outputs,
    })
}

impl Gpt2 {
    fn layer(&self, builder: &mut Builder<'_>, scope: &str, index: usize) -> Apply {
        let at = format!("{scope}h.{index}");
        let (hidden, heads) = (self.hidden, self.heads);
        let mut layer = builder.layer("layer", hidden);
        let stream = Layer::INPUT;

        let gain = ("attention_gain", &*format!("{at}.ln_1"));
        let x = layer.norm("attention_norm", stream, gain, [1, hidden], self.norm);
        let joined = format!("{at}.attn.c_attn");
        let [query, key, value] = ["query", "key", "value"].map(|role| {
            let first = ["query", "key", "value"].iter().position(|other| *other == role).unwrap_or(0);
            let (first, of) = (first * hidden, 3 * hidden);
            let cut = if self.rows_are_outputs {
                WeightSlice::Rows { first, of }
            } else {
                WeightSlice::Columns { first, of }
            };
            layer.cut_linear(role, x, (&joined, Some(cut)), [hidden, hidden], true)
        });
        let cache = layer.cache(heads, hidden / heads);
        let scale = if self.scale_by_layer { self.scale / (index + 1) as f64 } else { self.scale };
        let x =
            layer.attention("heads", &[query, key, value], heads, scale as f32, cache, (None, None, None));
        let branch = self.linear(&mut layer, "output", x, &format!("{at}.attn.c_proj"), [hidden, hidden]);
        let stream = layer.add("stream", stream, branch);

        let gain = ("mlp_gain", &*format!("{at}.ln_2"));
        let x = layer.norm("mlp_norm", stream, gain, [1, hidden], self.norm);
        let x = self.linear(&mut layer, "up", x, &format!("{at}.mlp.c_fc"), [self.inner, hidden]);
        let x = layer.activate("inner", x, self.activation);
        let branch = self.linear(&mut layer, "down", x, &format!("{at}.mlp.c_proj"), [hidden, self.inner]);
        layer.add("stream", stream, branch);
        layer.finish()
    }

    /// A linear layer whose matrix may be stored transposed.
    fn linear(
        &self,
        layer: &mut Layer<'_, '_>,
        role: &str,
        x: ValueId,
        module: &str,
        [outputs, inputs]: [usize; 2],
    ) -> ValueId {
        let cut = (!self.rows_are_outputs).then_some(WeightSlice::Columns { first: 0, of: outputs });
        layer.cut_linear(role, x, (module, cut), [outputs, inputs], true)
    }
}

/// Prefix of tensor names written by MLX converters, which transpose matrices.
const CONVERTED: &str = "model.";

impl Blueprint for Gpt2 {
    fn find(&mut self, tensors: &Tensors) -> Vec<String> {
        self.rows_are_outputs |= tensors.get(&format!("{CONVERTED}wte.weight")).is_some();
        Vec::new()
    }

    fn build(&self, builder: &mut Builder<'_>) -> Parts {
        // The oldest checkpoints lack the prefix: they contain the model without its head.
        let mut scopes = ["", CONVERTED].into_iter();
        let scope = scopes.find(|scope| builder.bindings.has(&format!("{scope}wte.weight")));
        let scope = scope.unwrap_or("transformer.");
        let table = format!("{scope}wte.weight");
        let head_tensor = "lm_head.weight".to_owned();
        // Stored causal masks are redundant.
        let is_mask = |name: &str| name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
        builder.bindings.ignore(|name| is_mask(name) || self.tied && name == head_tensor);

        let mut embed = builder.layer("embed", 0);
        let tokens = embed.weight("table", &table, &[self.vocabulary, self.hidden]);
        let stream = embed.embed("tokens", tokens, 1.0);
        let places = embed.weight("places", &format!("{scope}wpe.weight"), &[self.context, self.hidden]);
        embed.place("stream", stream, places);
        let prologue = embed.finish();

        let mut layers = Vec::new();
        for index in 0..self.layers {
            if builder.bindings.has_too_many_faults() {
                break;
            }
            layers.push(self.layer(builder, scope, index));
        }

        let mut head = builder.layer("head", self.hidden);
        let gain = ("gain", &*format!("{scope}ln_f"));
        let x = head.norm("norm", Layer::INPUT, gain, [1, self.hidden], self.norm);
        let weight = if self.tied { &table } else { &head_tensor };
        let weight = head.weight("head", weight, &[self.vocabulary, self.hidden]);
        head.product("logits", x, weight);
        Parts {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            context: self.context,
            copies: if self.tied { vec![(head_tensor, table)] } else { Vec::new() },
            prologue,
            layers,
            epilogue: head.finish(),
        }
    }
}
