//! Gated MLP: down(activation(gate(x)) * up(x)).

use crate::config::section::Section;
use crate::graph::builder::Layer;
use forge_ir::{Activation, ValueId, WeightSlice};

/// Description of an MLP.
pub(crate) struct Mlp {
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Intermediate size.
    pub(crate) inner: usize,
    /// Activation of the gate.
    pub(crate) activation: Activation,
    /// Whether all three projections have a bias.
    pub(crate) bias: bool,
    /// Module of the fused gate and up projection, if any.
    pub(crate) joined: Option<&'static str>,
}

impl Mlp {
    /// Reads the intermediate size and the activation from the architecture's keys. Biases are off.
    pub(crate) fn read(
        config: &Section<'_>,
        hidden: usize,
        inner: &str,
        (key, default): (&str, Activation),
    ) -> Mlp {
        let activation = activation(config, key, default);
        Mlp { hidden, inner: config.count(inner), activation, bias: false, joined: None }
    }

    /// Builds the MLP: from the normed stream to the branch output. `module` is the prefix of tensor names.
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

/// The activation named by a key.
pub(crate) fn activation(config: &Section<'_>, key: &str, default: Activation) -> Activation {
    match config.word(key) {
        None => default,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
        Some("gelu") => Activation::Gelu,
        Some("relu") => Activation::Relu,
        Some("relu2") => Activation::ReluSquared,
        Some(_) => {
            config.reject(key, "expected silu, gelu, gelu_pytorch_tanh, relu or relu2", &[]);
            default
        }
    }
}
