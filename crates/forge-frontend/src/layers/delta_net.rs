//! Gated DeltaNet, a replacement for attention with a recurrent state per head instead of a KV cache.
//!
//! ```text
//! q, k, v   = silu(convolution of projections of x)
//! heads     = recurrent state: decay, delta update with k, v and beta, read with q
//! out       = projection of norm(heads) * silu(z)
//! ```

use crate::config::section::Section;
use crate::graph::builder::Layer;
use crate::graph::operations::{Norm, NormKind};
use forge_ir::{Activation, RecurrentState, ValueId, WeightSlice};

/// Description of a Gated DeltaNet block.
pub(crate) struct DeltaNet {
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Query heads and key heads.
    pub(crate) key_heads: usize,
    /// Value heads; each has a recurrent state.
    pub(crate) value_heads: usize,
    /// Channels of a query and of a key.
    pub(crate) key_width: usize,
    /// Channels of a value.
    pub(crate) value_width: usize,
    /// Kernel size of the convolution.
    pub(crate) taps: usize,
    /// How the projections are stored, unless tensor names say otherwise.
    pub(crate) stored: Stored,
    /// Whether value head h belongs to key head h modulo their number. Key heads are then repeated, so that each
    /// value head has one of its own.
    pub(crate) tiled: bool,
    /// Whether the taps lie along the second to last axis of their tensor instead of the last.
    pub(crate) transposed: bool,
    /// Epsilon of the head norm.
    pub(crate) epsilon: f32,
}

/// How the input projections are stored.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Stored {
    /// Query, key and value stacked; gate, beta and decay separate.
    Apart,
    /// Interleaved by key head: its query, its key, and the values and gates of the heads that share it,
    /// stacked; in a second tensor beta and decay in the same order.
    ByHead,
}

/// Epsilon of the L2 norm of queries and keys, fixed in the reference implementation.
const EPSILON: f32 = 1e-6;

impl DeltaNet {
    /// Reads the configuration keys that such architectures share.
    pub(crate) fn read(config: &Section<'_>, hidden: usize, epsilon: f32, stored: Stored) -> DeltaNet {
        // It applies to the convolution. The reference's gate is silu or this activation, depending on the
        // kernel used.
        config.allow_only("hidden_act", "silu", "expected silu");
        let [key_heads, value_heads] = [("linear_num_key_heads", 16), ("linear_num_value_heads", 32)]
            .map(|(key, usual)| config.count_or(key, usual));
        if !value_heads.is_multiple_of(key_heads) {
            config.report_inconsistency(
                "linear_num_value_heads",
                format!("{value_heads} value heads are not a multiple of {key_heads} key heads"),
            );
        }
        let taps = config.count_or("linear_conv_kernel_dim", 4);
        if taps == 1 {
            config.reject("linear_conv_kernel_dim", "expected 2 or more", &[]);
        }
        DeltaNet {
            hidden,
            key_heads,
            value_heads,
            key_width: config.count_or("linear_key_head_dim", 128),
            value_width: config.count_or("linear_value_head_dim", 128),
            taps,
            stored,
            tiled: config.conventions().tiled_value_heads,
            transposed: false,
            epsilon,
        }
    }

    /// Builds the block: from the normed stream to the branch output. `module` is the prefix of tensor names.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let (keys, values) = (self.key_heads * self.key_width, self.value_heads * self.value_width);
        let heads = self.value_heads;
        let (stacked, numbers) = self.projections(layer, module);
        let [query, key, value, gate] = stacked;
        let [beta, dt] = numbers;
        let parts = [query, key, value, gate, beta, dt];
        let roles = ["query", "key", "value", "output_gate", "beta", "dt"];
        let of_heads = if self.tiled { heads * self.key_width } else { keys };
        let widths = [of_heads, of_heads, values, values, heads, heads];
        let mut input = |index: usize| {
            let (projection, cut) = parts[index];
            let module = format!("{module}.{projection}");
            layer.cut_linear(roles[index], x, (&module, cut), [widths[index], self.hidden], false)
        };
        let [query, key, value, gate, beta, dt] = [0, 1, 2, 3, 4, 5].map(&mut input);

        let mut convolved = |role: &str, x: ValueId, first: usize, width: usize| {
            let of = 2 * keys + values;
            let cut = match self.tiled && first < 2 * keys {
                true => WeightSlice::Repeated { first, rows: keys, of },
                false => WeightSlice::Rows { first, of },
            };
            let x = layer.convolve(
                role,
                x,
                (&format!("{module}.conv1d"), cut),
                [width, self.taps],
                self.transposed,
            );
            layer.activate(&format!("activated_{role}"), x, Activation::Silu)
        };
        let query = convolved("query", query, 0, of_heads);
        let key = convolved("key", key, keys, of_heads);
        let value = convolved("value", value, 2 * keys, values);

        let beta = layer.activate("beta_sigmoid", beta, Activation::Sigmoid);
        let tensors = [&*format!("{module}.A_log"), &*format!("{module}.dt_bias")];
        let state = RecurrentState { heads, keys: self.key_width, values: self.value_width };
        let scale = (self.key_width as f64).sqrt().recip() as f32;
        let output = layer.delta_rule("heads", [query, key, value, dt, beta], tensors, scale, EPSILON, state);

        let norm = Norm { epsilon: self.epsilon, plus_one: false, kind: NormKind::Rms };
        let gain = ("head_gain", &*format!("{module}.norm"));
        let normed = layer.norm("normed_heads", output, gain, [heads, self.value_width], norm);
        let gate = layer.activate("open_gate", gate, Activation::Silu);
        let gated = layer.multiply("gated_heads", normed, gate);
        layer.linear("output", gated, &format!("{module}.out_proj"), [self.hidden, values], false)
    }
}

/// A projection's module and the slice of it.
type Projection = (&'static str, Option<WeightSlice>);

impl DeltaNet {
    /// The projections to query, key, value and output gate, and those to beta and decay.
    fn projections(&self, layer: &Layer<'_, '_>, module: &str) -> ([Projection; 4], [Projection; 2]) {
        // GGUF files separate the former and not the latter.
        let is_apart = layer.has(&format!("{module}.in_proj_qkv.weight"));
        let stacked = if is_apart { Stored::Apart } else { self.stored };
        let (keys, values) = (self.key_heads * self.key_width, self.value_heads * self.value_width);
        let each = self.value_heads / self.key_heads;
        let stacked = match stacked {
            Stored::ByHead => {
                let (key, value) = (self.key_width, each * self.value_width);
                let of = 2 * key + 2 * value;
                let part = |first, rows| ("in_proj_qkvz", Some(WeightSlice::Groups { first, rows, of }));
                [part(0, key), part(key, key), part(2 * key, value), part(2 * key + value, value)]
            }
            Stored::Apart => {
                let of = 2 * keys + values;
                let part = |first| ("in_proj_qkv", Some(WeightSlice::Rows { first, of }));
                let repeated = |first| match self.tiled {
                    true => ("in_proj_qkv", Some(WeightSlice::Repeated { first, rows: keys, of })),
                    false => part(first),
                };
                [repeated(0), repeated(keys), part(2 * keys), ("in_proj_z", None)]
            }
        };
        let numbers = match self.stored {
            Stored::ByHead => {
                let number =
                    |first| ("in_proj_ba", Some(WeightSlice::Groups { first, rows: each, of: 2 * each }));
                [number(0), number(each)]
            }
            Stored::Apart => [("in_proj_b", None), ("in_proj_a", None)],
        };
        (stacked, numbers)
    }
}

/// The layers with Gated DeltaNet, from `layer_types`, or all but every `full_attention_interval`th.
pub(crate) fn layers(config: &Section<'_>, layers: usize) -> Vec<bool> {
    config.mark_inert("full_attention_interval");
    let Some(words) = config.words("layer_types") else {
        let interval = config.count_or("full_attention_interval", 4);
        return (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect();
    };
    if words.len() != layers {
        let message = format!("layer_types has {} entries for {layers} layers", words.len());
        config.report_inconsistency("layer_types", message);
    }
    let known = |word: &&str| ["full_attention", "linear_attention"].contains(word);
    if let Some(other) = words.iter().find(|word| !known(word)) {
        config.reject("layer_types", &format!("unsupported layer type {other}"), &[]);
    }
    words.iter().map(|word| *word == "linear_attention").collect()
}
