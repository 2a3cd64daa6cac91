//! The gated feed-forward network: down(activation(gate(x)) * up(x)).

use crate::builder::Layer;
use crate::config::Section;
use forge_ir::{Activation, ValueId, WeightSlice};

/// A feed-forward network's description.
pub(crate) struct Mlp {
    /// Width of what it reads and of what it gives.
    pub(crate) hidden: usize,
    /// Width between.
    pub(crate) inner: usize,
    /// Applied to the gate.
    pub(crate) activation: Activation,
    /// Whether all three projections have a bias.
    pub(crate) bias: bool,
    /// The module that is `gate_proj` and `up_proj` one below the other, where they are stored so.
    pub(crate) joined: Option<&'static str>,
}

impl Mlp {
    /// Reads the width between, from the key that the architecture has for it, and the activation, for which it has a key
    /// and a default; without biases.
    pub(crate) fn read(
        config: &Section<'_>,
        hidden: usize,
        inner: &str,
        (key, default): (&str, Activation),
    ) -> Mlp {
        let activation = activation(config, key, default);
        Mlp { hidden, inner: config.count(inner), activation, bias: false, joined: None }
    }

    /// From the normed stream to the branch's result. `module` is the tensors' prefix.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let mut input = |role: &str, projection: &str, first: usize| {
            let cut = self.joined.map(|_| WeightSlice::Rows { first, of: 2 * self.inner });
            let module = format!("{module}.{}", self.joined.unwrap_or(projection));
            layer.cut_linear(role, x, (&module, cut), [self.inner, self.hidden], self.bias)
        };
        let gate = input("gate", "gate_proj", 0);
        let up = input("up", "up_proj", self.inner);
        let gate = layer.activate("activated", gate, self.activation);
        let inner = layer.multiply("inner", gate, up);
        layer.linear("down", inner, &format!("{module}.down_proj"), [self.hidden, self.inner], self.bias)
    }
}

/// The activation that a key names.
pub(crate) fn activation(config: &Section<'_>, key: &str, default: Activation) -> Activation {
    match config.word(key) {
        None => default,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
        Some("gelu") => Activation::Gelu,
        Some("relu") => Activation::Relu,
        Some(_) => {
            config.refuse(key, "forge knows silu, gelu, gelu_pytorch_tanh and relu", &[]);
            default
        }
    }
}
