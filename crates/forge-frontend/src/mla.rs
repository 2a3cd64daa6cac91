//! Multi-head latent attention, which stands where others have attention: of every position one latent, of which each head
//! makes its own key and value, and one short key that tells where it is.
//!
//! ```text
//! q, r     = each head's query, and the part of it that turns with the position
//! c, k     = norm(latent of x), turned key of x
//! heads    = values of softmax(q · keys of c + r · k) c
//! ```
//!
//! Keys and values of heads are never made: queries are multiplied by the matrices of keys, and what comes of the latents by
//! those of values.

use crate::attention::Attention;
use crate::builder::{Layer, Norm};
use crate::config::Section;
use crate::rope;
use crate::rope::Rope;
use crate::rope_scaling;
use forge_ir::{LatentCache, Rotation, ValueId, WeightSlice};

/// A block's description.
pub(crate) struct LatentAttention {
    /// Width of what it reads and of what it gives.
    pub(crate) hidden: usize,
    /// Heads.
    pub(crate) heads: usize,
    /// Width of what queries are made of, where it is not what the block reads.
    pub(crate) query_rank: Option<usize>,
    /// Channels of a latent.
    pub(crate) rank: usize,
    /// Channels of a head's query that do not turn.
    pub(crate) plain: usize,
    /// Channels of a head's query that turn.
    pub(crate) turned: usize,
    /// Channels of a head's value.
    pub(crate) values: usize,
    /// Of turned queries and keys.
    pub(crate) rotation: Rotation,
    /// Multiplies scores.
    pub(crate) scale: f32,
    /// Of what queries are made of, and of latents.
    pub(crate) norm: Norm,
    /// Whether the projections of what it reads and of what it gives have a bias.
    pub(crate) bias: bool,
}

/// Added to the mean square of what queries are made of and of latents, whatever the configuration says.
const EPSILON: f32 = 1e-6;

impl LatentAttention {
    /// Reads the keys of such architectures, beside those that are read of any attention. Of `rope` the width is not known yet.
    pub(crate) fn read(
        config: &Section<'_>,
        attention: &Attention,
        norm: Norm,
        rope: Rope,
    ) -> LatentAttention {
        let Attention { hidden, query_heads: heads, key_heads, width, .. } = *attention;
        if key_heads != heads {
            let message = format!(
                "{heads} heads of queries and {key_heads} of keys, where all make their keys of one latent"
            );
            config.contradiction("num_key_value_heads", message);
        }
        let [plain, turned, values, rank] =
            [("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64), ("v_head_dim", 128), ("kv_lora_rank", 512)]
                .map(|(key, usual)| config.count_or(key, usual));
        if config.get("head_dim").is_some() && width != turned {
            let message = format!("head_dim is {width}, and stands for the {turned} channels that turn");
            config.contradiction("head_dim", message);
        }
        let query_rank = (!config.is_null("q_lora_rank")).then(|| config.count_or("q_lora_rank", 1536));
        let scale = ((plain + turned) as f64).sqrt().recip() * spread(config);
        LatentAttention {
            hidden,
            heads,
            query_rank,
            rank,
            plain,
            turned,
            values,
            rotation: Rope { width: turned, ..rope }.read(config),
            scale: scale as f32,
            norm: Norm { epsilon: EPSILON, ..norm },
            bias: config.flag_or("attention_bias", false),
        }
    }

    /// From the normed stream to the branch's result. `module` is the tensors' prefix.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let LatentAttention { hidden, heads, rank, plain, turned, values, .. } = *self;
        let at = |projection: &str| format!("{module}.{projection}");

        let (projection, source, width) = match self.query_rank {
            Some(width) => {
                let low = layer.linear("query_latent", x, &at("q_a_proj"), [width, hidden], self.bias);
                let gain = ("query_latent_gain", &*at("q_a_layernorm"));
                (at("q_b_proj"), layer.norm("normed_query_latent", low, gain, [1, width], self.norm), width)
            }
            None => (at("q_proj"), x, hidden),
        };
        let mut query = |role: &str, first: usize, rows: usize| {
            let cut = Some(WeightSlice::Groups { first, rows, of: plain + turned });
            layer.cut_linear(role, source, (&projection, cut), [heads * rows, width], false)
        };
        let (query, turned_query) = (query("query", 0, plain), query("turned_query", plain, turned));
        let turned_query = layer.rotate("rotated_query", turned_query, heads, turned, &self.rotation);

        let mut shared = |role: &str, first: usize, rows: usize| {
            let cut = Some(WeightSlice::Rows { first, of: rank + turned });
            layer.cut_linear(role, x, (&at("kv_a_proj_with_mqa"), cut), [rows, hidden], self.bias)
        };
        let (latent, key) = (shared("latent", 0, rank), shared("turned_key", rank, turned));
        let gain = ("latent_gain", &*at("kv_a_layernorm"));
        let latent = layer.norm("normed_latent", latent, gain, [1, rank], self.norm);
        let key = layer.rotate("rotated_key", key, 1, turned, &self.rotation);

        let matrices = self.matrices(layer, module);
        let (keys, turned_keys) = &matrices.keys;
        let query = layer.each_head(("latent_key", "latent_query"), query, keys, (heads, *turned_keys));
        let cache = layer.latents(LatentCache { width: rank, turned });
        let inputs = [query, turned_query, latent, key];
        let heads_latents = layer.latent_attention("latent_heads", inputs, heads, self.scale, cache);
        let of_values = &matrices.values;
        let made = layer.each_head(("latent_value", "heads"), heads_latents, of_values, (heads, false));
        layer.linear("output", made, &at("o_proj"), [hidden, heads * values], self.bias)
    }
}

/// A matrix for each head, one below the other: a tensor or a part of one.
pub(crate) struct OfHeads {
    /// The tensor.
    pub(crate) tensor: String,
    /// Of all heads.
    pub(crate) shape: [usize; 2],
    /// Which part of the tensor they are.
    pub(crate) cut: Option<WeightSlice>,
    /// The tensor's dimensions after the first, where it has one for heads.
    pub(crate) lies: Vec<usize>,
}

/// The matrices that make queries what latents are multiplied with, and values of latents.
struct Matrices {
    /// Those of keys, and whether they are multiplied turned: they are stored as keys are made of latents.
    keys: (OfHeads, bool),
    values: OfHeads,
}

impl LatentAttention {
    /// The matrices of a module: one tensor for each head's key and value, or, as converters for MLX have it, one for all heads'
    /// keys, turned, and one for their values.
    fn matrices(&self, layer: &Layer<'_, '_>, module: &str) -> Matrices {
        let LatentAttention { heads, rank, plain, values, .. } = *self;
        let whole = |projection: &str, rows: usize, columns: usize| OfHeads {
            tensor: format!("{module}.{projection}.weight"),
            shape: [heads * rows, columns],
            cut: None,
            lies: vec![rows, columns],
        };
        let keys = whole("embed_q", rank, plain);
        if layer.has(&keys.tensor) {
            return Matrices { keys: (keys, false), values: whole("unembed_out", values, rank) };
        }
        let part = |first: usize, rows: usize| OfHeads {
            tensor: format!("{module}.kv_b_proj.weight"),
            shape: [heads * rows, rank],
            cut: Some(WeightSlice::Groups { first, rows, of: plain + values }),
            lies: Vec::new(),
        };
        Matrices { keys: (part(0, plain), true), values: part(plain, values) }
    }
}

/// What scores are multiplied by where positions are stretched, so that they spread as they did before.
fn spread(config: &Section<'_>) -> f64 {
    let Some(scaling) = rope::object(config).filter(|scaling| rope_scaling::kind(scaling) == "yarn") else {
        return 1.0;
    };
    let all = scaling.number_or("mscale_all_dim", 0.0);
    if all == 0.0 { 1.0 } else { rope_scaling::spread(scaling.number("factor"), all).powi(2) }
}
