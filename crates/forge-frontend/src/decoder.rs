//! The standard decoder: an embedding, layers of attention and a gated feed-forward network, each behind a norm and
//! beside a residual stream, a final norm and a head.
//!
//! Most architectures are this with a detail or two changed. Their files read the details; what they share is here.

use crate::architectures::{Blueprint, Parts};
use crate::attention::{Attention, rope};
use crate::builder::{Builder, Layer, Norm, NormKind};
use crate::config::Section;
use crate::delta_net::DeltaNet;
use crate::experts::Experts;
use crate::mla::LatentAttention;
use crate::mlp::Mlp;
use crate::mlx_layout::Place;
use crate::rope_scaling::Kinds;
use crate::sliding_window::Windows;
use crate::tensors::Tensors;
use forge_ir::{Activation, Apply, LongContext, Pairing, Rotation, ValueId};

/// A standard decoder's description.
pub(crate) struct Decoder {
    /// Tokens.
    pub(crate) vocabulary: usize,
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    /// Positions the model was made for.
    pub(crate) context: usize,
    /// Layers.
    pub(crate) layers: usize,
    /// Rows of the tensors of the embeddings and of the head, where they have more than there are tokens.
    pub(crate) table_rows: usize,
    /// Where its tensors lie.
    pub(crate) place: Place,
    /// Where they lie if a converter for MLX moved them.
    pub(crate) converted: Option<Place>,
    /// Where they lie in a checkpoint of a multimodal model, where the class of the text model reads such checkpoints.
    pub(crate) nested: Option<Place>,
    /// Whether files may have layers past the last that the model does not use.
    pub(crate) ignores_further_layers: bool,
    /// What embeddings are multiplied by.
    pub(crate) embedding_scale: f32,
    /// What branches are multiplied by before they are added to the stream.
    pub(crate) branch_scale: f32,
    /// What logits are multiplied by.
    pub(crate) logit_scale: f32,
    /// Of the stream and of branches.
    pub(crate) norm: Norm,
    /// Which norms a layer has.
    pub(crate) norms: Norms,
    /// Whether both branches read the same normed stream: that of the norm before attention.
    pub(crate) parallel: bool,
    /// What logits are capped to.
    pub(crate) softcap: Option<f32>,
    /// Whether the head is the embedding's table.
    pub(crate) tied: bool,
    /// The first half of a layer.
    pub(crate) attention: Attention,
    /// What its layers see.
    pub(crate) windows: Windows,
    /// Whether a layer's attention leaves queries and keys as they are; layers that are not listed rotate them.
    pub(crate) unrotated: Vec<bool>,
    /// What stands in the place of attention in all layers, where something does.
    pub(crate) latent: Option<LatentAttention>,
    /// What stands where others have attention in the layers that are marked; those that are not listed have attention.
    pub(crate) linear: Option<(DeltaNet, Vec<bool>)>,
    /// The second half of a layer.
    pub(crate) mlp: Mlp,
    /// The same in layers that have experts.
    pub(crate) experts: Option<Experts>,
}

/// The modules of a layer's norms.
pub(crate) struct Norms {
    /// Before attention; none where it reads the stream as it is.
    pub(crate) attention: Option<&'static str>,
    /// Of what attention adds to the stream.
    pub(crate) output: Option<&'static str>,
    /// Before the feed-forward network; none where it reads the stream as it is.
    pub(crate) mlp: Option<&'static str>,
    /// Of what the feed-forward network adds to the stream.
    pub(crate) down: Option<&'static str>,
}

/// What an architecture takes a key to be that the configuration leaves out.
pub(crate) struct Defaults {
    /// `max_position_embeddings`
    pub(crate) context: usize,
    /// `vocab_size` and `num_attention_heads`; none where they have to be told.
    pub(crate) sizes: Option<[usize; 2]>,
    /// The key of the norms' epsilon, and what it is without.
    pub(crate) epsilon: (&'static str, f64),
    /// `rope_theta`
    pub(crate) theta: f64,
    /// `tie_word_embeddings`
    pub(crate) tied: bool,
    /// `num_key_value_heads`; none: as many as query heads.
    pub(crate) key_heads: Option<usize>,
    /// `head_dim`; none: a head's share of the hidden width.
    pub(crate) width: Option<usize>,
    /// The key of the feed-forward network's width; where all layers have experts, that of the shared ones.
    pub(crate) inner: &'static str,
    /// The key of the activation, and what it is without.
    pub(crate) activation: (&'static str, Activation),
    /// `partial_rotary_factor`; none: heads rotate as a whole, and no other value of the key is right.
    pub(crate) partial: Option<f64>,
    /// Which channels of a head turn together.
    pub(crate) pairing: Pairing,
    /// What kinds of scaled positions there are.
    pub(crate) scaling: Kinds,
}

impl Defaults {
    /// What most architectures assume.
    pub(crate) const USUAL: Defaults = Defaults {
        context: 2048,
        sizes: None,
        epsilon: ("rms_norm_eps", 1e-6),
        theta: 1e4,
        tied: false,
        key_heads: None,
        width: None,
        inner: "intermediate_size",
        activation: ("hidden_act", Activation::Silu),
        partial: None,
        pairing: Pairing::Half,
        scaling: Kinds::Usual,
    };
}

impl Decoder {
    /// Reads the keys that all such architectures spell alike. Biases, norms of heads and of branches, windows,
    /// scales and caps are off; the architecture switches them on.
    pub(crate) fn read(config: &Section<'_>, defaults: &Defaults) -> Decoder {
        let mut model = Decoder::read_unrotated(config, defaults);
        model.turn(rope(model.attention.width, model.context, defaults).read(config));
        model
    }

    /// Turns queries and keys, and sees as far as that lets it: where a longer context stretches the rotation, what the
    /// configuration counts are the positions before that.
    pub(crate) fn turn(&mut self, rotation: Rotation) {
        if let Some(LongContext::Stretched { beyond, factor }) = rotation.long {
            self.context = (beyond as f64 * f64::from(factor)) as usize;
        }
        self.attention.rotation = rotation;
    }

    /// The same for an architecture that says by itself how queries and keys rotate; until then they do not.
    pub(crate) fn read_unrotated(config: &Section<'_>, defaults: &Defaults) -> Decoder {
        let hidden = config.count("hidden_size");
        let context = config.count_or("max_position_embeddings", defaults.context);
        Decoder {
            vocabulary: count(config, "vocab_size", defaults.sizes.map(|[vocabulary, _]| vocabulary)),
            hidden,
            context,
            layers: config.layers("num_hidden_layers"),
            table_rows: 0,
            place: Place::ALONE,
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
            unrotated: Vec::new(),
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

    /// The stream before the first layer.
    pub(crate) fn embedding(&self, embed: &mut Layer<'_, '_>) -> ValueId {
        let shape = [self.vocabulary, self.hidden];
        let table = embed.first_rows("table", &self.table(), shape, self.table_rows);
        embed.embed("stream", table, self.embedding_scale)
    }

    fn layer(&self, builder: &mut Builder<'_>, index: usize) -> Apply {
        let at = self.module(&format!("layers.{index}"));
        let window = self.windows.of(index);
        let rotation = match self.unrotated.get(index) {
            Some(true) => None,
            _ if self.windows.include(index) => Some(self.attention.window_rotation()),
            _ => Some(&self.attention.rotation),
        };
        let is_marked = |marked: &Vec<bool>| marked.get(index) == Some(&true);
        let linear = self.linear.as_ref().filter(|(_, marked)| is_marked(marked)).map(|(block, _)| block);
        let name = match (linear, window, rotation) {
            (Some(_), ..) => "linear_layer",
            (None, Some(_), _) => "window_layer",
            (None, None, Some(_)) => "layer",
            (None, None, None) => "unrotated_layer",
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
            (None, None) => self.attention.build(&mut layer, x, &format!("{at}.self_attn"), window, rotation),
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
            // Some files carry the table a second time; that the two are equal is checked where bytes can be read.
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

    /// Whether a tensor is of a layer past the last.
    fn is_past_the_last(&self, tensor: &str) -> bool {
        let layers = format!("{}layers.", self.place.scope);
        let number = tensor.strip_prefix(&layers).and_then(|rest| rest.split('.').next());
        number.and_then(|number| number.parse::<usize>().ok()).is_some_and(|layer| layer >= self.layers)
    }

    /// A module of the model by its name there.
    pub(crate) fn module(&self, name: &str) -> String {
        format!("{}{name}", self.place.scope)
    }

    /// The tensor of the embeddings.
    pub(crate) fn table(&self) -> String {
        self.module("embed_tokens.weight")
    }

    /// The tensor of a head that is not the embeddings'.
    pub(crate) fn head(&self) -> String {
        format!("{}.weight", self.place.head)
    }
}

/// Whether a tensor has a scale of cached keys or values, which checkpoints carry for runtimes with an 8-bit KV cache. forge's
/// cache has a format of its own, and needs no scale that was measured before.
fn is_cache_scale(tensor: &str) -> bool {
    const ENDS: [&str; 6] =
        [".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".k_proj.output_scale", ".v_proj.output_scale"];
    tensor.contains("attn.") && ENDS.iter().any(|end| tensor.ends_with(end))
}

/// A positive whole number that has to be there unless there is a default.
pub(crate) fn count(config: &Section<'_>, key: &str, default: Option<usize>) -> usize {
    default.map_or_else(|| config.count(key), |default| config.count_or(key, default))
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
    /// The whole: what comes before the layers, every layer, and the epilogue of all such architectures.
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
                || self.ignores_further_layers && self.is_past_the_last(name)
        });
        let mut layers = Vec::new();
        for index in 0..self.layers {
            if builder.bindings.is_hopeless() {
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
