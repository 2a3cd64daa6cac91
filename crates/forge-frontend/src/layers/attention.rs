//! Grouped-query attention with RoPE.

use crate::config::section::Section;
use crate::defaults::{Defaults, count};
use crate::graph::builder::Layer;
use crate::graph::operations::Norm;
use crate::layers::rope::RopeConfig;
use forge_ir::{Activation, RopeParameters, StateId, ValueId, WeightSlice};

/// Description of an attention block.
#[derive(Clone)]
pub(crate) struct Attention {
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Query heads.
    pub(crate) query_heads: usize,
    /// Key and value heads.
    pub(crate) key_heads: usize,
    /// Channels of a head.
    pub(crate) width: usize,
    /// Norm of queries and keys, if any.
    pub(crate) head_norm: Option<HeadNorm>,
    /// Whether values use the key projection instead of their own.
    pub(crate) values_are_keys: bool,
    /// Epsilon of the norm of each value head, which has no gain, if any.
    pub(crate) value_norm: Option<f32>,
    /// RoPE parameters of queries and keys.
    pub(crate) rope: RopeParameters,
    /// RoPE parameters in sliding-window layers, if different.
    pub(crate) window_rope: Option<RopeParameters>,
    /// Module of the fused query, key and value projection, if any.
    pub(crate) joined: Option<&'static str>,
    /// Multiplies scores.
    pub(crate) scale: f32,
    /// Softcap of scores.
    pub(crate) softcap: Option<f32>,
    /// Whether heads have attention sinks: one more score per head, in the tensor `sinks`.
    pub(crate) sinks: bool,
    /// Whether `q_proj` also produces an output gate, whose rows follow the query's in each head.
    pub(crate) gated: bool,
    /// Whether `q_proj`, `k_proj` and `v_proj` have a bias.
    pub(crate) input_bias: bool,
    /// Whether `o_proj` has a bias.
    pub(crate) output_bias: bool,
}

/// Norm of queries and keys.
#[derive(Clone, Copy)]
pub(crate) struct HeadNorm {
    /// Same kind and epsilon as the model's other norms.
    pub(crate) norm: Norm,
    /// Modules of the query and key gains.
    pub(crate) modules: [&'static str; 2],
    /// Whether it applies to all heads at once.
    pub(crate) of_all: bool,
    /// Whether it follows RoPE.
    pub(crate) after_rope: bool,
}

impl HeadNorm {
    /// A norm of each head, before RoPE.
    pub(crate) fn per_head(norm: Norm) -> HeadNorm {
        HeadNorm { norm, modules: ["q_norm", "k_norm"], of_all: false, after_rope: false }
    }
}

/// Usual name of the module that holds queries, keys and values as one matrix.
pub(crate) const JOINED: &str = "qkv_proj";

impl Attention {
    /// Reads the keys that most architectures share. Biases, norms, caps and RoPE are off.
    pub(crate) fn read(config: &Section<'_>, hidden: usize, defaults: &Defaults) -> Attention {
        let query_heads = count(config, "num_attention_heads", defaults.sizes.map(|[_, heads]| heads));
        // A null value is derived from other keys; an absent key has the architecture's default.
        let default = |key: &str, absent: Option<usize>, other: usize| match absent {
            Some(absent) if !config.is_null(key) => absent,
            _ => other,
        };
        let key_heads = default("num_key_value_heads", defaults.key_heads, query_heads);
        let key_heads = config.count_or("num_key_value_heads", key_heads);
        let width = default("head_dim", defaults.width, (hidden / query_heads).max(1));
        let width = config.count_or("head_dim", width);
        if !query_heads.is_multiple_of(key_heads) {
            config.report_inconsistency(
                "num_key_value_heads",
                format!("{query_heads} query heads are not a multiple of {key_heads} key heads"),
            );
        }
        let is_derived = config.is_null("head_dim") || defaults.width.is_none();
        if config.get("head_dim").is_none() && is_derived && !hidden.is_multiple_of(query_heads) {
            let message = format!("hidden size {hidden} is not a multiple of {query_heads} heads");
            config.report_inconsistency("num_attention_heads", message);
        }
        let pairing = defaults.pairing;
        Attention {
            hidden,
            query_heads,
            key_heads,
            width,
            head_norm: None,
            values_are_keys: false,
            value_norm: None,
            rope: RopeParameters { frequencies: Vec::new().into(), pairing, magnitude: 1.0, long: None },
            window_rope: None,
            joined: None,
            scale: (width as f64).sqrt().recip() as f32,
            softcap: None,
            sinks: false,
            gated: false,
            input_bias: false,
            output_bias: false,
        }
    }

    /// RoPE in sliding-window layers.
    pub(crate) fn window_rope(&self) -> &RopeParameters {
        self.window_rope.as_ref().unwrap_or(&self.rope)
    }

    /// Builds the block with its own cache, a window if any, and with or without RoPE: from the normed stream
    /// to the branch output. `module` is the prefix of tensor names.
    pub(crate) fn build(
        &self,
        layer: &mut Layer<'_, '_>,
        x: ValueId,
        module: &str,
        window: Option<usize>,
        rope: Option<&RopeParameters>,
    ) -> ValueId {
        self.build_over(layer, x, module, (window, rope), None)
    }

    /// Like [`Attention::build`], for a layer that has its own cache or reads that of an earlier layer.
    pub(crate) fn build_over(
        &self,
        layer: &mut Layer<'_, '_>,
        x: ValueId,
        module: &str,
        (window, rope): (Option<usize>, Option<&RopeParameters>),
        kept: Option<StateId>,
    ) -> ValueId {
        let (queries, keys) = (self.query_heads * self.width, self.key_heads * self.width);
        let of = queries + 2 * keys;
        // GGUF files of any architecture may have them in one tensor.
        let is_joined = !self.gated && layer.has(&format!("{module}.{JOINED}.weight"));
        let joined = self.joined.or(is_joined.then_some(JOINED));
        let mut input = |role: &str, projection: &str, cut: Option<WeightSlice>, outputs: usize| {
            let module = format!("{module}.{}", joined.unwrap_or(projection));
            layer.cut_linear(role, x, (&module, cut), [outputs, self.hidden], self.input_bias)
        };
        let part = |first| joined.map(|_| WeightSlice::Rows { first, of });
        let of_head = |first| WeightSlice::Groups { first, rows: self.width, of: 2 * self.width };
        let query = input("query", "q_proj", if self.gated { Some(of_head(0)) } else { part(0) }, queries);
        let gate = self.gated.then(|| input("output_gate", "q_proj", Some(of_head(self.width)), queries));
        let own = kept.is_none().then(|| input("key", "k_proj", part(queries), keys));
        let value = own.map(|key| match self.values_are_keys {
            true => key,
            false => input("value", "v_proj", part(queries + keys), keys),
        });
        let query = Heads { role: "query", x: query, count: self.query_heads };
        let key = own.map(|x| Heads { role: "key", x, count: self.key_heads });
        let mut query_key: Vec<Heads> = [Some(query), key].into_iter().flatten().collect();
        self.normed(layer, &mut query_key, module, false);
        if let Some(rope) = rope {
            for heads in &mut query_key {
                let name = format!("rotated_{}", heads.role);
                heads.x = layer.rope(&name, heads.x, heads.count, self.width, rope);
            }
        }
        self.normed(layer, &mut query_key, module, true);
        let value = value.map(|value| match self.value_norm {
            Some(epsilon) => layer.norm_without_gain("normed_value", value, self.key_heads, epsilon),
            None => value,
        });
        let cache = match kept {
            Some(state) => layer.kept(state),
            None => layer.cache(self.key_heads, self.width),
        };
        let inputs: Vec<ValueId> = query_key.iter().map(|heads| heads.x).chain(value).collect();
        let count = self.query_heads;
        let sinks = self.sinks.then(|| layer.weight("sinks", &format!("{module}.sinks"), &[count]));
        let seen = (window, self.softcap, sinks);
        let mut heads = layer.attention("heads", &inputs, count, self.scale, cache, seen);
        if let Some(gate) = gate {
            let open = layer.activate("open_output", gate, Activation::Sigmoid);
            heads = layer.multiply("gated_heads", heads, open);
        }
        layer.linear("output", heads, &format!("{module}.o_proj"), [self.hidden, queries], self.output_bias)
    }

    /// Applies the norm of queries and keys if it belongs at this point, before or after RoPE.
    fn normed(&self, layer: &mut Layer<'_, '_>, query_key: &mut [Heads], module: &str, after_rope: bool) {
        let Some(norm) = self.head_norm.filter(|norm| norm.after_rope == after_rope) else { return };
        for Heads { role, x, count } in query_key {
            let own = norm.modules[usize::from(*role == "key")];
            let gain = (&*format!("{role}_gain"), &*format!("{module}.{own}"));
            let parts = if norm.of_all { [1, *count * self.width] } else { [*count, self.width] };
            *x = layer.norm(&format!("normed_{role}"), *x, gain, parts, norm.norm);
        }
    }
}

/// Queries or keys before attention.
struct Heads {
    role: &'static str,
    x: ValueId,
    count: usize,
}

/// The RoPE parameters that an architecture determines.
pub(crate) fn rope_config(width: usize, context: usize, defaults: &Defaults) -> RopeConfig {
    let Defaults { theta, partial, pairing, scaling, .. } = *defaults;
    RopeConfig { width, context, theta, partial, pairing, scaling }
}
