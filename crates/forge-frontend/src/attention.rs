//! Attention of query heads over shared key and value heads, with rotated queries and keys.

use crate::builder::{Layer, Norm};
use crate::config::Section;
use crate::decoder::Defaults;
use crate::rope::Rope;
use forge_ir::{Pairing, Rotation, ValueId};

/// An attention block's description.
pub(crate) struct Attention {
    /// Width of what it reads and of what it gives.
    pub(crate) hidden: usize,
    /// Query heads.
    pub(crate) query_heads: usize,
    /// Key and value heads.
    pub(crate) key_heads: usize,
    /// Channels of a head.
    pub(crate) width: usize,
    /// Of every head of queries and of keys before it rotates; none where there is no such norm.
    pub(crate) head_norm: Option<Norm>,
    /// Whether that norm is of all heads at once.
    pub(crate) norms_all_heads: bool,
    /// Of queries and keys.
    pub(crate) rotation: Rotation,
    /// Multiplies queries with keys.
    pub(crate) scale: f32,
    /// What the scaled products are capped to.
    pub(crate) softcap: Option<f32>,
    /// Whether `q_proj`, `k_proj` and `v_proj` have a bias.
    pub(crate) input_bias: bool,
    /// Whether `o_proj` has a bias.
    pub(crate) output_bias: bool,
}

impl Attention {
    /// Reads the keys that most architectures spell alike; without biases, norms and
    /// caps.
    pub(crate) fn read(
        config: &Section<'_>,
        hidden: usize,
        context: usize,
        defaults: &Defaults,
        pairing: Pairing,
    ) -> Attention {
        let query_heads = config.count("num_attention_heads");
        // Null is what the other keys make it, absent what the architecture does.
        let default = |key: &str, absent: Option<usize>, other: usize| match absent {
            Some(absent) if !config.is_null(key) => absent,
            _ => other,
        };
        let key_heads = default("num_key_value_heads", defaults.key_heads, query_heads);
        let key_heads = config.count_or("num_key_value_heads", key_heads);
        let width = default("head_dim", defaults.width, (hidden / query_heads).max(1));
        let width = config.count_or("head_dim", width);
        if !query_heads.is_multiple_of(key_heads) {
            config.contradiction(
                "num_key_value_heads",
                format!("{query_heads} query heads do not share {key_heads} key heads evenly"),
            );
        }
        let is_share = config.is_null("head_dim") || defaults.width.is_none();
        if config.get("head_dim").is_none() && is_share && !hidden.is_multiple_of(query_heads) {
            let message = format!("a width of {hidden} does not divide into {query_heads} heads");
            config.contradiction("num_attention_heads", message);
        }
        let rope = Rope { width, context, theta: defaults.theta, partial: None, pairing };
        Attention {
            hidden,
            query_heads,
            key_heads,
            width,
            head_norm: None,
            norms_all_heads: false,
            rotation: rope.read(config),
            scale: (width as f64).sqrt().recip() as f32,
            softcap: None,
            input_bias: false,
            output_bias: false,
        }
    }

    /// From the normed stream to the branch's result, of a layer that sees a window or everything, and that rotates
    /// queries and keys or leaves them. `module` is the tensors' prefix.
    pub(crate) fn build(
        &self,
        layer: &mut Layer<'_, '_>,
        x: ValueId,
        module: &str,
        window: Option<usize>,
        rotates: bool,
    ) -> ValueId {
        let (queries, keys) = (self.query_heads * self.width, self.key_heads * self.width);
        let mut input = |role: &str, projection: &str, outputs: usize| {
            let module = format!("{module}.{projection}");
            layer.linear(role, x, &module, [outputs, self.hidden], self.input_bias)
        };
        let mut query = input("query", "q_proj", queries);
        let mut key = input("key", "k_proj", keys);
        let value = input("value", "v_proj", keys);
        if let Some(norm) = self.head_norm {
            let parts =
                |heads| if self.norms_all_heads { [1, heads * self.width] } else { [heads, self.width] };
            let gain = ("query_gain", &*format!("{module}.q_norm"));
            query = layer.rms_norm("normed_query", query, gain, parts(self.query_heads), norm);
            let gain = ("key_gain", &*format!("{module}.k_norm"));
            key = layer.rms_norm("normed_key", key, gain, parts(self.key_heads), norm);
        }
        if rotates {
            query = layer.rotate("rotated_query", query, self.query_heads, self.width, &self.rotation);
            key = layer.rotate("rotated_key", key, self.key_heads, self.width, &self.rotation);
        }
        let cache = layer.cache(self.key_heads, self.width);
        let (inputs, heads) = ([query, key, value], self.query_heads);
        let heads = layer.attention("heads", inputs, heads, self.scale, cache, window, self.softcap);
        layer.linear("output", heads, &format!("{module}.o_proj"), [self.hidden, queries], self.output_bias)
    }
}
