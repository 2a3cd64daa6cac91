//! Multi-head latent attention (MLA): one cached latent per position, from which each head derives its key
//! and value, and one rope key shared by all heads.
//!
//! ```text
//! q, r     = each head's query, and the part of it that has RoPE
//! c, k     = norm(latent of x), rope key of x
//! heads    = values of softmax(q · keys of c + r · k) c
//! ```
//!
//! The graph uses the absorbed form: queries are multiplied by the key matrices, and the attention output
//! over latents by the value matrices, so keys and values of heads are never materialized.

use crate::config::section::Section;
use crate::graph::builder::Layer;
use crate::graph::operations::{Norm, PerHeadWeight};
use crate::layers::attention::Attention;
use crate::layers::rope::RopeConfig;
use crate::layers::rope_keys;
use crate::layers::rope_scaling;
use forge_ir::{LatentCache, RopeParameters, ValueId, WeightSlice};

/// Description of an MLA block.
pub(crate) struct LatentAttention {
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Number of heads.
    pub(crate) heads: usize,
    /// `q_lora_rank`, if queries are low-rank.
    pub(crate) query_rank: Option<usize>,
    /// `kv_lora_rank`: channels of a latent.
    pub(crate) rank: usize,
    /// `qk_nope_head_dim`: channels of a head's query without RoPE.
    pub(crate) plain: usize,
    /// `qk_rope_head_dim`: channels of a head's query with RoPE.
    pub(crate) rope_width: usize,
    /// `v_head_dim`: channels of a head's value.
    pub(crate) values: usize,
    /// RoPE parameters of the RoPE part of queries and keys.
    pub(crate) rope: RopeParameters,
    /// Multiplies scores.
    pub(crate) scale: f32,
    /// Norm of low-rank queries and of latents.
    pub(crate) norm: Norm,
    /// Whether the input and output projections have a bias.
    pub(crate) bias: bool,
}

/// Epsilon of these norms, fixed in the reference implementation.
const EPSILON: f32 = 1e-6;

impl LatentAttention {
    /// Reads the MLA keys of a configuration. The width of `rope` is set here.
    pub(crate) fn read(
        config: &Section<'_>,
        attention: &Attention,
        norm: Norm,
        rope: RopeConfig,
    ) -> LatentAttention {
        let Attention { hidden, query_heads: heads, key_heads, width, .. } = *attention;
        if key_heads != heads {
            let message =
                format!("{heads} query heads and {key_heads} key heads; MLA requires equal numbers");
            config.report_inconsistency("num_key_value_heads", message);
        }
        let [plain, rope_width, values, rank] =
            [("qk_nope_head_dim", 128), ("qk_rope_head_dim", 64), ("v_head_dim", 128), ("kv_lora_rank", 512)]
                .map(|(key, usual)| config.count_or(key, usual));
        if config.get("head_dim").is_some() && width != rope_width {
            let message = format!("head_dim is {width}, expected qk_rope_head_dim, {rope_width}");
            config.report_inconsistency("head_dim", message);
        }
        let query_rank = (!config.is_null("q_lora_rank")).then(|| config.count_or("q_lora_rank", 1536));
        let scale = ((plain + rope_width) as f64).sqrt().recip() * yarn_mscale(config);
        LatentAttention {
            hidden,
            heads,
            query_rank,
            rank,
            plain,
            rope_width,
            values,
            rope: RopeConfig { width: rope_width, ..rope }.read(config),
            scale: scale as f32,
            norm: Norm { epsilon: EPSILON, ..norm },
            bias: config.flag_or("attention_bias", false),
        }
    }

    /// Builds the block: from the normed stream to the branch output. `module` is the prefix of tensor names.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let LatentAttention { hidden, heads, rank, plain, rope_width, values, .. } = *self;
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
            let cut = Some(WeightSlice::Groups { first, rows, of: plain + rope_width });
            layer.cut_linear(role, source, (&projection, cut), [heads * rows, width], false)
        };
        let (query, rope_query) = (query("query", 0, plain), query("rope_query", plain, rope_width));
        let rope_query = layer.rope("rotated_query", rope_query, heads, rope_width, &self.rope);

        let mut shared = |role: &str, first: usize, rows: usize| {
            let cut = Some(WeightSlice::Rows { first, of: rank + rope_width });
            layer.cut_linear(role, x, (&at("kv_a_proj_with_mqa"), cut), [rows, hidden], self.bias)
        };
        let (latent, key) = (shared("latent", 0, rank), shared("rope_key", rank, rope_width));
        let gain = ("latent_gain", &*at("kv_a_layernorm"));
        let latent = layer.norm("normed_latent", latent, gain, [1, rank], self.norm);
        let key = layer.rope("rotated_key", key, 1, rope_width, &self.rope);

        let matrices = self.matrices(layer, module);
        let (keys, turned_keys) = &matrices.keys;
        let query = layer.per_head_linear(("latent_key", "latent_query"), query, keys, (heads, *turned_keys));
        let cache = layer.latents(LatentCache { width: rank, rope_width });
        let inputs = [query, rope_query, latent, key];
        let heads_latents = layer.latent_attention("latent_heads", inputs, heads, self.scale, cache);
        let of_values = &matrices.values;
        let made = layer.per_head_linear(("latent_value", "heads"), heads_latents, of_values, (heads, false));
        layer.linear("output", made, &at("o_proj"), [hidden, heads * values], self.bias)
    }
}

/// The matrices absorbed into queries and outputs.
struct Matrices {
    /// Key matrices, and whether they are multiplied transposed: they are stored as projections from latents
    /// to keys.
    keys: (PerHeadWeight, bool),
    values: PerHeadWeight,
}

impl LatentAttention {
    /// The matrices of a module: one tensor for keys and values of all heads or, from MLX converters, one for
    /// keys (transposed) and one for values.
    fn matrices(&self, layer: &Layer<'_, '_>, module: &str) -> Matrices {
        let LatentAttention { heads, rank, plain, values, .. } = *self;
        let whole = |projection: &str, rows: usize, columns: usize| PerHeadWeight {
            tensor: format!("{module}.{projection}.weight"),
            shape: [heads * rows, columns],
            cut: None,
            lies: vec![rows, columns],
        };
        let keys = whole("embed_q", rank, plain);
        if layer.has(&keys.tensor) {
            return Matrices { keys: (keys, false), values: whole("unembed_out", values, rank) };
        }
        let part = |first: usize, rows: usize| PerHeadWeight {
            tensor: format!("{module}.kv_b_proj.weight"),
            shape: [heads * rows, rank],
            cut: Some(WeightSlice::Groups { first, rows, of: plain + values }),
            lies: Vec::new(),
        };
        Matrices { keys: (part(0, plain), true), values: part(plain, values) }
    }
}

/// YaRN's correction of the score scale (`mscale_all_dim`).
fn yarn_mscale(config: &Section<'_>) -> f64 {
    let Some(scaling) = rope_keys::object(config).filter(|scaling| rope_scaling::kind(scaling) == "yarn")
    else {
        return 1.0;
    };
    let all = scaling.number_or("mscale_all_dim", 0.0);
    if all == 0.0 { 1.0 } else { rope_scaling::yarn_mscale(scaling.number("factor"), all).powi(2) }
}
