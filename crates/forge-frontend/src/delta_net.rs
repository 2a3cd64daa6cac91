//! Gated DeltaNet, which stands where others have attention: memories of heads that learn from every row, in the place of
//! keys and values of every position.
//!
//! ```text
//! q, k, v   = silu(convolved(projections of x))
//! heads     = memories that decay, learn v by k as strongly as they are told to, and are asked q
//! out       = projection of norm(heads) * silu(z)
//! ```

use crate::builder::{Layer, Norm, NormKind};
use crate::config::Section;
use forge_ir::{Activation, RecurrentState, ValueId, WeightSlice};

/// A block's description.
pub(crate) struct DeltaNet {
    /// Width of what it reads and of what it gives.
    pub(crate) hidden: usize,
    /// Query heads, and as many key heads.
    pub(crate) key_heads: usize,
    /// Value heads: each has a memory.
    pub(crate) value_heads: usize,
    /// Channels of a query and of a key.
    pub(crate) key_width: usize,
    /// Channels of a value.
    pub(crate) value_width: usize,
    /// Rows that a convolution's result is made of.
    pub(crate) taps: usize,
    /// How the projections are stored.
    pub(crate) stored: Stored,
    /// Whether the taps of each channel lie along the second axis of their tensor and not along the last.
    pub(crate) turned: bool,
    /// Added to the mean of a head's squares.
    pub(crate) epsilon: f32,
}

/// How the checkpoint stores the projections of what a block reads.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Stored {
    /// Queries, keys and values one below the other; gates, strengths and rates each by itself.
    Apart,
    /// For each key head its query, its key and the values and gates of all that share it, one below the other; and in a
    /// second tensor, the same way, strengths and rates.
    ByHead,
}

/// Added to the sum of a query's or key's squares, whatever the configuration says.
const EPSILON: f32 = 1e-6;

impl DeltaNet {
    /// Reads the keys that such architectures spell alike.
    pub(crate) fn read(config: &Section<'_>, hidden: usize, epsilon: f32, stored: Stored) -> DeltaNet {
        // Of what is convolved; of the gate it is silu or this, as who computes it likes.
        config.only("hidden_act", "silu", "forge knows Gated DeltaNet with silu");
        let [key_heads, value_heads] = [("linear_num_key_heads", 16), ("linear_num_value_heads", 32)]
            .map(|(key, usual)| config.count_or(key, usual));
        if !value_heads.is_multiple_of(key_heads) {
            config.contradiction(
                "linear_num_value_heads",
                format!("{value_heads} value heads do not share {key_heads} key heads evenly"),
            );
        }
        let taps = config.count_or("linear_conv_kernel_dim", 4);
        if taps == 1 {
            config.refuse("linear_conv_kernel_dim", "forge knows convolutions of several rows", &[]);
        }
        DeltaNet {
            hidden,
            key_heads,
            value_heads,
            key_width: config.count_or("linear_key_head_dim", 128),
            value_width: config.count_or("linear_value_head_dim", 128),
            taps,
            stored,
            turned: false,
            epsilon,
        }
    }

    /// From the normed stream to the branch's result. `module` is the tensors' prefix.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let (keys, values) = (self.key_heads * self.key_width, self.value_heads * self.value_width);
        let heads = self.value_heads;
        let shares = heads / self.key_heads;
        let parts = match self.stored {
            Stored::ByHead => {
                let (key, value) = (self.key_width, shares * self.value_width);
                let part = |first, rows| {
                    ("in_proj_qkvz", Some(WeightSlice::Groups { first, rows, of: 2 * key + 2 * value }))
                };
                let number =
                    |first| ("in_proj_ba", Some(WeightSlice::Groups { first, rows: shares, of: 2 * shares }));
                [
                    part(0, key),
                    part(key, key),
                    part(2 * key, value),
                    part(2 * key + value, value),
                    number(0),
                    number(shares),
                ]
            }
            Stored::Apart => {
                let of = 2 * keys + values;
                let part = |first| ("in_proj_qkv", Some(WeightSlice::Rows { first, of }));
                let whole = |projection| (projection, None);
                [
                    part(0),
                    part(keys),
                    part(2 * keys),
                    whole("in_proj_z"),
                    whole("in_proj_b"),
                    whole("in_proj_a"),
                ]
            }
        };
        let roles = ["query", "key", "value", "output_gate", "strength", "time"];
        let widths = [keys, keys, values, values, heads, heads];
        let mut input = |index: usize| {
            let (projection, cut) = parts[index];
            let module = format!("{module}.{projection}");
            layer.cut_linear(roles[index], x, (&module, cut), [widths[index], self.hidden], false)
        };
        let [query, key, value, gate, strength, time] = [0, 1, 2, 3, 4, 5].map(&mut input);

        let mut convolved = |role: &str, x: ValueId, first: usize, width: usize| {
            let cut = WeightSlice::Rows { first, of: 2 * keys + values };
            let x =
                layer.convolve(role, x, (&format!("{module}.conv1d"), cut), [width, self.taps], self.turned);
            layer.activate(&format!("activated_{role}"), x, Activation::Silu)
        };
        let query = convolved("query", query, 0, keys);
        let key = convolved("key", key, keys, keys);
        let value = convolved("value", value, 2 * keys, values);

        let strength = layer.activate("strengths", strength, Activation::Sigmoid);
        let tensors = [&*format!("{module}.A_log"), &*format!("{module}.dt_bias")];
        let memory = RecurrentState { heads, keys: self.key_width, values: self.value_width };
        let scale = (self.key_width as f64).sqrt().recip() as f32;
        let said =
            layer.delta_rule("heads", [query, key, value, time, strength], tensors, scale, EPSILON, memory);

        let norm = Norm { epsilon: self.epsilon, plus_one: false, kind: NormKind::Rms };
        let gain = ("head_gain", &*format!("{module}.norm"));
        let normed = layer.norm("normed_heads", said, gain, [heads, self.value_width], norm);
        let gate = layer.activate("open_gate", gate, Activation::Silu);
        let gated = layer.multiply("gated_heads", normed, gate);
        layer.linear("output", gated, &format!("{module}.out_proj"), [self.hidden, values], false)
    }
}

/// Which layers have such a block: those that `layer_types` says, or all but every `full_attention_interval`th.
pub(crate) fn layers(config: &Section<'_>, layers: usize) -> Vec<bool> {
    config.pass_over("full_attention_interval");
    let Some(words) = config.words("layer_types") else {
        let interval = config.count_or("full_attention_interval", 4);
        return (1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect();
    };
    if words.len() != layers {
        let message = format!("layer_types tells of {} layers, and there are {layers}", words.len());
        config.contradiction("layer_types", message);
    }
    let known = |word: &&str| ["full_attention", "linear_attention"].contains(word);
    if let Some(other) = words.iter().find(|word| !known(word)) {
        config.refuse("layer_types", &format!("forge does not know {other} here"), &[]);
    }
    words.iter().map(|word| *word == "linear_attention").collect()
}
