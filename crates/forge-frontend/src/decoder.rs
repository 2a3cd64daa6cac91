//! The standard decoder: an embedding, layers of attention and a gated MLP with pre-norms and a residual
//! stream, a final norm and an output head.
//!
//! Most architectures are this with a few differences, which their files read. The shared part is here.

use crate::blueprint::{Blueprint, Parts};
use crate::checkpoint::tensors::Tensors;
use crate::config::section::Section;
use crate::defaults::{Defaults, count};
use crate::graph::builder::{Builder, Layer};
use crate::graph::operations::{Norm, NormKind};
use crate::layers::attention::{Attention, rope_config};
use crate::layers::delta_net::DeltaNet;
use crate::layers::experts::Experts;
use crate::layers::mla::LatentAttention;
use crate::layers::mlp::Mlp;
use crate::layers::sliding_window::Windows;
use forge_ir::{Apply, LongContext, RopeParameters, ValueId};

/// Description of a standard decoder.
pub(crate) struct Decoder {
    /// Vocabulary size.
    pub(crate) vocabulary: usize,
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Maximum context length of the model.
    pub(crate) context: usize,
    /// Number of layers.
    pub(crate) layers: usize,
    /// Rows of the embedding and head tensors, if larger than the vocabulary.
    pub(crate) table_rows: usize,
    /// Prefixes of tensor names.
    pub(crate) place: TensorPrefixes,
    /// Prefixes of tensor names in a checkpoint written by an MLX converter.
    pub(crate) converted: Option<TensorPrefixes>,
    /// Prefixes of tensor names in a multimodal checkpoint, if the text model's class reads such checkpoints.
    pub(crate) nested: Option<TensorPrefixes>,
    /// Whether the checkpoint may contain layers beyond the last that the model does not use.
    pub(crate) ignores_further_layers: bool,
    /// Multiplies embeddings.
    pub(crate) embedding_scale: f32,
    /// Multiplies each branch before it is added to the residual stream.
    pub(crate) branch_scale: f32,
    /// Multiplies logits.
    pub(crate) logit_scale: f32,
    /// Norm of the stream and of branches.
    pub(crate) norm: Norm,
    /// Which norms a layer has.
    pub(crate) norms: Norms,
    /// Whether attention and MLP read the same normed input (parallel blocks).
    pub(crate) parallel: bool,
    /// Final logit softcap.
    pub(crate) softcap: Option<f32>,
    /// Whether the head shares the embedding table.
    pub(crate) tied: bool,
    /// Attention.
    pub(crate) attention: Attention,
    /// Sliding windows.
    pub(crate) windows: Windows,
    /// Layers without RoPE; layers beyond the list have RoPE.
    pub(crate) no_rope: Vec<bool>,
    /// MLA, if it replaces attention in all layers.
    pub(crate) latent: Option<LatentAttention>,
    /// Gated DeltaNet and the layers where it replaces attention; layers beyond the list have attention.
    pub(crate) linear: Option<(DeltaNet, Vec<bool>)>,
    /// MLP.
    pub(crate) mlp: Mlp,
    /// Mixture of experts, in the layers that have it.
    pub(crate) experts: Option<Experts>,
}

/// Module names of a layer's norms.
pub(crate) struct Norms {
    /// Before attention, if any.
    pub(crate) attention: Option<&'static str>,
    /// Of the attention output, if any.
    pub(crate) output: Option<&'static str>,
    /// Before the MLP, if any.
    pub(crate) mlp: Option<&'static str>,
    /// Of the MLP output, if any.
    pub(crate) down: Option<&'static str>,
}

/// Prefixes of a text model's tensor names.
#[derive(Clone, Copy)]
pub(crate) struct TensorPrefixes {
    /// Prefix of all tensors but the head.
    pub(crate) scope: &'static str,
    /// Module of the head, if not tied.
    pub(crate) head: &'static str,
    /// Prefixes of tensors that the model does not use.
    pub(crate) ignored: &'static [&'static str],
}

impl TensorPrefixes {
    /// A text model, not part of a multimodal checkpoint.
    pub(crate) const STANDARD: TensorPrefixes =
        TensorPrefixes { scope: "model.", head: "lm_head", ignored: &[] };

    /// A text model saved without its head, by the class of the inner model: names lack the prefix `model.`.
    pub(crate) const BASE: TensorPrefixes = TensorPrefixes { scope: "", ..TensorPrefixes::STANDARD };

    /// The text model in a multimodal checkpoint written by an MLX converter.
    pub(crate) const CONVERTED: TensorPrefixes = TensorPrefixes {
        scope: "language_model.model.",
        head: "language_model.lm_head",
        ignored: &[
            "vision_tower.",
            "vision_embedder.",
            "multi_modal_projector.",
            "audio_tower.",
            "embed_vision.",
            "embed_audio.",
            "language_model.mtp.",
            "mtp.",
        ],
    };
}

impl Decoder {
    /// Reads the keys that standard decoders share. Biases, head norms, output norms, windows, scales and
    /// caps are off; the architecture enables them.
    pub(crate) fn read(config: &Section<'_>, defaults: &Defaults) -> Decoder {
        let mut model = Decoder::read_without_rope(config, defaults);
        model.set_rope(rope_config(model.attention.width, model.context, defaults).read(config));
        model
    }

    /// Sets RoPE and raises the context length to what its scaling allows: the configuration counts
    /// positions before scaling.
    pub(crate) fn set_rope(&mut self, rope: RopeParameters) {
        if let Some(LongContext::DynamicNtk { original_context, factor }) = rope.long {
            self.context = (original_context as f64 * f64::from(factor)) as usize;
        }
        self.attention.rope = rope;
    }

    /// Like [`Decoder::read`], without RoPE: the architecture sets it.
    pub(crate) fn read_without_rope(config: &Section<'_>, defaults: &Defaults) -> Decoder {
        let hidden = config.count("hidden_size");
        let context = config.count_or("max_position_embeddings", defaults.context);
        Decoder {
            vocabulary: count(config, "vocab_size", defaults.sizes.map(|[vocabulary, _]| vocabulary)),
            hidden,
            context,
            layers: config.layers("num_hidden_layers"),
            table_rows: 0,
            place: TensorPrefixes::STANDARD,
            converted: None,
            nested: None,
            ignores_further_layers: false,
            embedding_scale: 1.0,
            branch_scale: 1.0,
            logit_scale: 1.0,
            norm: Norm {
                epsilon: config.at_least_0_or(defaults.epsilon.0, defaults.epsilon.1) as f32,
                plus_one: false,
                kind: NormKind::Rms,
            },
            norms: Norms {
                attention: Some("input_layernorm"),
                output: None,
                mlp: Some("post_attention_layernorm"),
                down: None,
            },
            parallel: false,
            softcap: None,
            tied: config.flag_or("tie_word_embeddings", defaults.tied),
            attention: Attention::read(config, hidden, defaults),
            windows: Windows::none(),
            no_rope: Vec::new(),
            latent: None,
            linear: None,
            mlp: Mlp::read(config, hidden, defaults.inner, defaults.activation),
            experts: None,
        }
    }

    fn prologue(&self, builder: &mut Builder<'_>) -> Apply {
        let mut embed = builder.layer("embed", 0);
        self.embedding(&mut embed);
        embed.finish()
    }

    /// The input of the first layer.
    pub(crate) fn embedding(&self, embed: &mut Layer<'_, '_>) -> ValueId {
        let shape = [self.vocabulary, self.hidden];
        let table = embed.first_rows("table", &self.table(), shape, self.table_rows);
        embed.embed("stream", table, self.embedding_scale)
    }

    fn layer(&self, builder: &mut Builder<'_>, index: usize) -> Apply {
        let at = self.module(&format!("layers.{index}"));
        let window = self.windows.of(index);
        let rope = match self.no_rope.get(index) {
            Some(true) => None,
            _ if self.windows.include(index) => Some(self.attention.window_rope()),
            _ => Some(&self.attention.rope),
        };
        let is_marked = |marked: &Vec<bool>| marked.get(index) == Some(&true);
        let linear = self.linear.as_ref().filter(|(_, marked)| is_marked(marked)).map(|(block, _)| block);
        let name = match (linear, window, rope) {
            (Some(_), ..) => "linear_layer",
            (None, Some(_), _) => "window_layer",
            (None, None, Some(_)) => "layer",
            (None, None, None) => "no_rope_layer",
        };
        let experts = self.experts.as_ref();
        let dense = experts.is_some_and(|experts| experts.dense.get(index).copied().unwrap_or(false));
        let experts = experts.filter(|_| !dense);
        let name = if dense { format!("dense_{name}") } else { name.to_owned() };
        let mut layer = builder.layer(&name, self.hidden);
        let stream = Layer::INPUT;

        let norm = |layer: &mut Layer<'_, '_>, what: &str, x: ValueId, module: Option<&str>| {
            module.map_or(x, |module| self.normed(layer, what, x, &format!("{at}.{module}")))
        };

        let x = norm(&mut layer, "attention", stream, self.norms.attention);
        let scaled = |layer: &mut Layer<'_, '_>, name: &str, x: ValueId| match self.branch_scale {
            1.0 => x,
            factor => layer.scale(name, x, factor),
        };

        let branch = match (linear, &self.latent) {
            (Some(linear), _) => linear.build(&mut layer, x, &format!("{at}.linear_attn")),
            (None, Some(latent)) => latent.build(&mut layer, x, &format!("{at}.self_attn")),
            (None, None) => self.attention.build(&mut layer, x, &format!("{at}.self_attn"), window, rope),
        };
        let branch = norm(&mut layer, "output", branch, self.norms.output);
        let branch = scaled(&mut layer, "scaled_output", branch);
        let stream = layer.add("stream", stream, branch);

        let x = if self.parallel { x } else { norm(&mut layer, "mlp", stream, self.norms.mlp) };
        let branch = match experts {
            Some(experts) => experts.build(&mut layer, x, &format!("{at}.{}", experts.module)),
            None => self.mlp.build(&mut layer, x, &format!("{at}.mlp")),
        };
        let branch = norm(&mut layer, "down", branch, self.norms.down);
        let branch = scaled(&mut layer, "scaled_down", branch);
        layer.add("stream", stream, branch);
        layer.finish()
    }

    /// A norm of the stream or of a branch.
    pub(crate) fn normed(&self, layer: &mut Layer<'_, '_>, what: &str, x: ValueId, module: &str) -> ValueId {
        let gain = (&*format!("{what}_gain"), module);
        layer.norm(&format!("{what}_norm"), x, gain, [1, self.hidden], self.norm)
    }

    fn epilogue(&self, builder: &mut Builder<'_>) -> Apply {
        if self.tied {
            // Some checkpoints store the tied table twice. Equality is checked later, where bytes can be
            // read.
            builder.bindings.ignore(|name| name == self.head());
        }
        let mut head = builder.layer("head", self.hidden);
        let gain = ("gain", &*self.module("norm"));
        let x = head.norm("norm", Layer::INPUT, gain, [1, self.hidden], self.norm);
        let tensor = if self.tied { self.table() } else { self.head() };
        let weight = head.first_rows("head", &tensor, [self.vocabulary, self.hidden], self.table_rows);
        let (is_scaled, is_capped) = (self.logit_scale != 1.0, self.softcap.is_some());
        let scaled = if is_capped { "uncapped" } else { "logits" };
        let mut logits = head.product(if is_scaled { "unscaled" } else { scaled }, x, weight);
        if is_scaled {
            logits = head.scale(scaled, logits, self.logit_scale);
        }
        if let Some(cap) = self.softcap {
            head.softcap("logits", logits, cap);
        }
        head.finish()
    }

    /// Whether a tensor belongs to a layer beyond the last.
    fn is_beyond_last_layer(&self, tensor: &str) -> bool {
        let layers = format!("{}layers.", self.place.scope);
        let number = tensor.strip_prefix(&layers).and_then(|rest| rest.split('.').next());
        number.and_then(|number| number.parse::<usize>().ok()).is_some_and(|layer| layer >= self.layers)
    }

    /// Full name of a module.
    pub(crate) fn module(&self, name: &str) -> String {
        format!("{}{name}", self.place.scope)
    }

    /// Name of the embedding tensor.
    pub(crate) fn table(&self) -> String {
        self.module("embed_tokens.weight")
    }

    /// Name of the head tensor, if not tied.
    pub(crate) fn head(&self) -> String {
        format!("{}.weight", self.place.head)
    }
}

/// Whether a tensor is a KV cache scale, which some checkpoints contain for 8-bit caches. forge's cache does
/// not need it.
fn is_cache_scale(tensor: &str) -> bool {
    const ENDS: [&str; 6] =
        [".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".k_proj.output_scale", ".v_proj.output_scale"];
    tensor.contains("attn.") && ENDS.iter().any(|end| tensor.ends_with(end))
}

impl Blueprint for Decoder {
    fn find(&mut self, tensors: &Tensors) -> Vec<String> {
        Decoder::find(self, tensors)
    }

    fn build(&self, builder: &mut Builder<'_>) -> Parts {
        let prologue = self.prologue(builder);
        self.parts(builder, prologue, |builder, index| self.layer(builder, index))
    }
}

impl Decoder {
    /// Builds prologue, layers and epilogue.
    pub(crate) fn parts<'a>(
        &self,
        builder: &mut Builder<'a>,
        prologue: Apply,
        mut layer: impl FnMut(&mut Builder<'a>, usize) -> Apply,
    ) -> Parts {
        builder.bindings.ignore(|name| {
            name.ends_with(".rotary_emb.inv_freq")
                || is_cache_scale(name)
                || self.place.ignored.iter().any(|part| name.starts_with(part))
                || self.ignores_further_layers && self.is_beyond_last_layer(name)
        });
        let mut layers = Vec::new();
        for index in 0..self.layers {
            if builder.bindings.has_too_many_faults() {
                break;
            }
            layers.push(layer(builder, index));
        }
        Parts {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            context: self.context,
            copies: if self.tied { vec![(self.head(), self.table())] } else { Vec::new() },
            prologue,
            layers,
            epilogue: self.epilogue(builder),
        }
    }
}
