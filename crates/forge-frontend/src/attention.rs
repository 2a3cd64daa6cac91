//! Attention of query heads over shared key and value heads, with rotated queries and keys.

use crate::builder::Layer;
use crate::config::Section;
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
    /// Of queries and keys.
    pub(crate) rotation: Rotation,
    /// Multiplies queries with keys.
    pub(crate) scale: f32,
    /// Whether `q_proj`, `k_proj` and `v_proj` have a bias.
    pub(crate) input_bias: bool,
    /// Whether `o_proj` has a bias.
    pub(crate) output_bias: bool,
}

impl Attention {
    /// Reads the keys that most architectures spell alike; without biases.
    pub(crate) fn read(
        config: &Section<'_>,
        hidden: usize,
        context: usize,
        theta: f64,
        pairing: Pairing,
    ) -> Attention {
        let query_heads = config.count("num_attention_heads");
        let key_heads = config.count_or("num_key_value_heads", query_heads);
        let width = config.count_or("head_dim", (hidden / query_heads).max(1));
        if !query_heads.is_multiple_of(key_heads) {
            config.contradiction(
                "num_key_value_heads",
                format!("{query_heads} query heads do not share {key_heads} key heads evenly"),
            );
        }
        if config.get("head_dim").is_none() && !hidden.is_multiple_of(query_heads) {
            let message = format!("a width of {hidden} does not divide into {query_heads} heads");
            config.contradiction("num_attention_heads", message);
        }
        let rope = Rope { width, context, theta, partial: None, pairing };
        Attention {
            hidden,
            query_heads,
            key_heads,
            width,
            rotation: rope.read(config),
            scale: (width as f64).sqrt().recip() as f32,
            input_bias: false,
            output_bias: false,
        }
    }

    /// From the normed stream to the branch's result. `module` is the tensors' prefix.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let (queries, keys) = (self.query_heads * self.width, self.key_heads * self.width);
        let mut input = |role: &str, projection: &str, outputs: usize| {
            let module = format!("{module}.{projection}");
            layer.linear(role, x, &module, [outputs, self.hidden], self.input_bias)
        };
        let query = input("query", "q_proj", queries);
        let key = input("key", "k_proj", keys);
        let value = input("value", "v_proj", keys);
        let query = layer.rotate("rotated_query", query, self.query_heads, self.width, &self.rotation);
        let key = layer.rotate("rotated_key", key, self.key_heads, self.width, &self.rotation);
        let cache = layer.cache(self.key_heads, self.width);
        let heads = layer.attention("heads", [query, key, value], self.query_heads, self.scale, cache);
        layer.linear("output", heads, &format!("{module}.o_proj"), [self.hidden, queries], self.output_bias)
    }
}
