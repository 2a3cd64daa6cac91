//! The operations of a layer: each method adds nodes and returns the value of the last.

use crate::graph::binding::TensorRequest;
use crate::graph::builder::Layer;
use forge_ir::{
    Activation, ConvState, Experts, Op, ParamId, ParamKind, RecurrentState, RopeParameters, Routing, State,
    ValueId, WeightSlice,
};
use std::ops::Range;

/// Properties shared by all norms of a model.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    /// Added to the mean square or the variance.
    pub(crate) epsilon: f32,
    /// Whether gains are stored minus 1.
    pub(crate) plus_one: bool,
    /// RMSNorm or LayerNorm.
    pub(crate) kind: NormKind,
}

/// The kind of a norm.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum NormKind {
    /// RMSNorm.
    Rms,
    /// LayerNorm.
    Layer {
        /// Whether the tensor `<module>.bias` is added.
        bias: bool,
    },
}

/// One matrix per head, stacked: a tensor or a slice of one.
pub(crate) struct PerHeadWeight {
    /// The tensor.
    pub(crate) tensor: String,
    /// Shape over all heads.
    pub(crate) shape: [usize; 2],
    /// Slice of the tensor.
    pub(crate) cut: Option<WeightSlice>,
    /// The tensor's dimensions after the first, if it has a dimension for heads.
    pub(crate) lies: Vec<usize>,
}

impl Layer<'_, '_> {
    /// Embedding lookup, scaled.
    pub(crate) fn embed(&mut self, name: &str, table: ParamId, scale: f32) -> ValueId {
        self.node(name, Op::Embed { table, scale }, &[Self::INPUT])
    }

    /// A norm of each of `parts` parts of x, with gain `<module>.weight`. LayerNorm applies to x as a whole.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        x: ValueId,
        (role, module): (&str, &str),
        [parts, width]: [usize; 2],
        norm: Norm,
    ) -> ValueId {
        let tensor = &format!("{module}.weight");
        let (shape, plus_one) = (&[width], norm.plus_one);
        let gain = self.bound(role, TensorRequest { plus_one, ..TensorRequest::whole(tensor, shape) });
        let epsilon = norm.epsilon;
        let op = match norm.kind {
            NormKind::Rms => Op::RmsNorm { gain: Some(gain), parts, epsilon },
            NormKind::Layer { bias } => {
                let role = role.replace("gain", "bias");
                let bias = bias.then(|| self.weight(&role, &format!("{module}.bias"), &[width]));
                Op::LayerNorm { gain, bias, epsilon }
            }
        };
        self.node(name, op, &[x])
    }

    /// A norm of x as a whole, with the gain tensor of this name.
    pub(crate) fn norm_by(
        &mut self,
        name: &str,
        x: ValueId,
        (role, tensor): (&str, &str),
        width: usize,
        epsilon: f32,
    ) -> ValueId {
        let gain = Some(self.weight(role, tensor, &[width]));
        self.node(name, Op::RmsNorm { gain, parts: 1, epsilon }, &[x])
    }

    /// A norm of each part of x without a gain.
    pub(crate) fn norm_without_gain(
        &mut self,
        name: &str,
        x: ValueId,
        parts: usize,
        epsilon: f32,
    ) -> ValueId {
        self.node(name, Op::RmsNorm { gain: None, parts, epsilon }, &[x])
    }

    /// Adds a learned position embedding to x.
    pub(crate) fn place(&mut self, name: &str, x: ValueId, table: ParamId) -> ValueId {
        self.node(name, Op::PositionEmbedding { table }, &[x])
    }

    /// A linear layer with weight `<module>.weight` and optional bias `<module>.bias`. The result is named
    /// after the weight's role, such as `query`; the bias is `query_bias`.
    pub(crate) fn linear(
        &mut self,
        role: &str,
        x: ValueId,
        module: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> ValueId {
        self.cut_linear(role, x, (module, None), shape, bias)
    }

    /// A linear layer with a slice of these tensors. The bias has as many elements as the weight slice has
    /// rows.
    pub(crate) fn cut_linear(
        &mut self,
        role: &str,
        x: ValueId,
        (module, cut): (&str, Option<WeightSlice>),
        [outputs, inputs]: [usize; 2],
        bias: bool,
    ) -> ValueId {
        let tensor = &format!("{module}.weight");
        let shape = &[outputs, inputs];
        let weight = self.bound(role, TensorRequest { cut, ..TensorRequest::whole(tensor, shape) });
        let bias = bias.then(|| {
            let (role, tensor, shape) = (&format!("{role}_bias"), &format!("{module}.bias"), &[outputs]);
            let cut = cut.map(WeightSlice::of_elements);
            self.bound(role, TensorRequest { cut, ..TensorRequest::whole(tensor, shape) })
        });
        self.node(role, Op::Linear { weight, bias }, &[x])
    }

    /// A matrix product with a weight that is already declared.
    pub(crate) fn product(&mut self, name: &str, x: ValueId, weight: ParamId) -> ValueId {
        self.node(name, Op::Linear { weight, bias: None }, &[x])
    }

    /// RoPE.
    pub(crate) fn rope(
        &mut self,
        name: &str,
        x: ValueId,
        heads: usize,
        width: usize,
        rope: &RopeParameters,
    ) -> ValueId {
        self.node(name, Op::Rope { heads, width, rope: rope.clone() }, &[x])
    }

    /// Attention over keys and values that are appended to `cache`; with queries only, over those already in
    /// it.
    pub(crate) fn attention(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        query_heads: usize,
        scale: f32,
        cache: ParamId,
        (window, softcap, sinks): (Option<usize>, Option<f32>, Option<ParamId>),
    ) -> ValueId {
        let op = Op::Attention { query_heads, scale, cache, window, softcap, sinks };
        self.node(name, op, inputs)
    }

    /// Causal convolution with a slice of the tensor `<module>.weight`, which has `taps` taps per channel
    /// along its last axis or, if transposed, the second to last. The result is named `convolved_<role>`.
    pub(crate) fn convolve(
        &mut self,
        role: &str,
        x: ValueId,
        (module, cut): (&str, WeightSlice),
        [width, taps]: [usize; 2],
        transposed: bool,
    ) -> ValueId {
        let tensor = &format!("{module}.weight");
        let lies: &[usize] = if transposed { &[taps, 1] } else { &[1, taps] };
        let of_taps = match cut.of_elements() {
            WeightSlice::Groups { first, rows, of } => {
                WeightSlice::Groups { first: first * taps, rows: rows * taps, of: of * taps }
            }
            WeightSlice::Repeated { first, rows, of } => {
                WeightSlice::Repeated { first: first * taps, rows: rows * taps, of: of * taps }
            }
            cut => WeightSlice::Rows { first: cut.place(0) * taps, of: cut.of() * taps },
        };
        let shape = &[width * taps];
        let request = TensorRequest { cut: Some(of_taps), lies, ..TensorRequest::whole(tensor, shape) };
        let weight = self.bound(&format!("{role}_taps"), request);
        let conv_state =
            self.state(&format!("{role}_conv_state"), State::Conv(ConvState { rows: taps - 1, width }));
        self.node(&format!("convolved_{role}"), Op::Convolve { taps: weight, conv_state }, &[x])
    }

    /// The gated delta rule: updates the recurrent state from keys, values, `beta` and decay, and reads it
    /// with queries.
    pub(crate) fn delta_rule(
        &mut self,
        name: &str,
        inputs: [ValueId; 5],
        tensors: [&str; 2],
        scale: f32,
        epsilon: f32,
        recurrent_state: RecurrentState,
    ) -> ValueId {
        let [a_log, dt_bias] = [("a_log", tensors[0]), ("dt_bias", tensors[1])]
            .map(|(role, tensor)| self.weight(role, tensor, &[recurrent_state.heads]));
        let recurrent_state = self.state("recurrent_state", State::Recurrent(recurrent_state));
        self.node(name, Op::DeltaRule { a_log, dt_bias, scale, epsilon, recurrent_state }, &inputs)
    }

    /// Routing weights from router logits.
    pub(crate) fn route(&mut self, name: &str, logits: ValueId, routing: Routing) -> ValueId {
        self.node(name, Op::Route(routing), &[logits])
    }

    /// Declares one vector per matrix of a stack and binds a tensor with a row per matrix, or a slice of it:
    /// some elements of every group.
    pub(crate) fn stacked_vectors(
        &mut self,
        role: &str,
        (tensor, cut): (&str, Option<WeightSlice>),
        [count, width]: [usize; 2],
    ) -> ParamId {
        let of_tensor = width * cut.map_or(1, WeightSlice::of);
        self.bound(
            role,
            TensorRequest { cut, lies: &[of_tensor], ..TensorRequest::whole(tensor, &[count * width]) },
        )
    }

    /// The weighted sum of experts' outputs. The stacks are gate, up and down.
    pub(crate) fn experts(&mut self, name: &str, [x, weights]: [ValueId; 2], experts: Experts) -> ValueId {
        self.node(name, Op::Experts(experts), &[x, weights])
    }

    /// Per-head linear layer: each head has its own matrix.
    pub(crate) fn per_head_linear(
        &mut self,
        (role, name): (&str, &str),
        x: ValueId,
        of: &PerHeadWeight,
        (heads, transposed): (usize, bool),
    ) -> ValueId {
        let PerHeadWeight { tensor, shape, cut, lies } = of;
        let weight =
            self.bound(role, TensorRequest { cut: *cut, lies, ..TensorRequest::whole(tensor, shape) });
        self.node(name, Op::PerHeadLinear { weight, heads, transposed }, &[x])
    }

    /// MLA in absorbed form: attention of queries and rope queries over latents and rope keys.
    pub(crate) fn latent_attention(
        &mut self,
        name: &str,
        inputs: [ValueId; 4],
        heads: usize,
        scale: f32,
        cache: ParamId,
    ) -> ValueId {
        self.node(name, Op::LatentAttention { heads, scale, cache }, &inputs)
    }

    /// Logit softcapping.
    pub(crate) fn softcap(&mut self, name: &str, x: ValueId, cap: f32) -> ValueId {
        self.node(name, Op::Softcap(cap), &[x])
    }

    /// Multiplication by a constant.
    pub(crate) fn scale(&mut self, name: &str, x: ValueId, factor: f32) -> ValueId {
        self.node(name, Op::Scale(factor), &[x])
    }

    /// Multiplication by a one-element tensor.
    pub(crate) fn scale_by(&mut self, name: &str, x: ValueId, (role, tensor): (&str, &str)) -> ValueId {
        let factor = self.weight(role, tensor, &[1]);
        self.node(name, Op::ScaleBy { factor }, &[x])
    }

    /// Returns x and publishes y as the per-layer inputs.
    pub(crate) fn store_per_layer_inputs(&mut self, name: &str, x: ValueId, y: ValueId) -> ValueId {
        self.node(name, Op::StorePerLayerInputs, &[x, y])
    }

    /// A column slice of the per-layer inputs.
    pub(crate) fn per_layer_input(&mut self, name: &str, columns: Range<usize>) -> ValueId {
        self.parts.push(columns.start);
        let part = self.param(name, ParamKind::Part(columns.len()));
        self.node(name, Op::PerLayerInput { part }, &[])
    }

    /// An activation function.
    pub(crate) fn activate(&mut self, name: &str, x: ValueId, activation: Activation) -> ValueId {
        self.node(name, Op::Activate(activation), &[x])
    }

    /// Elementwise product; b may be a single element that scales all of a.
    pub(crate) fn multiply(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Op::Multiply, &[a, b])
    }

    /// Elementwise sum.
    pub(crate) fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Op::Add, &[a, b])
    }
}
