//! Builds a graph layer by layer, binding tensors of the checkpoint as it goes.
//!
//! Every application of a body is built anew; bodies that come out equal are shared.

use crate::binding::{Bindings, TensorRequest};
use crate::mla::OfHeads;
use crate::tensors::Tensors;
use forge_ir::{
    Activation, Apply, Body, BodyId, Cache, ConvState, Experts, LatentCache, Node, Op, Param, ParamId,
    ParamKind, RecurrentState, Rotation, Routing, Stack, State, StateId, ValueId, WeightId, WeightSlice,
};
use std::ops::Range;

/// A graph in the making.
pub(crate) struct Builder<'a> {
    /// The weights so far.
    pub(crate) bindings: Bindings<'a>,
    /// Every state declared so far.
    pub(crate) states: Vec<State>,
    /// The distinct bodies so far.
    pub(crate) bodies: Vec<Body>,
}

/// One application of a body in the making.
pub(crate) struct Layer<'b, 'a> {
    builder: &'b mut Builder<'a>,
    body: Body,
    weights: Vec<WeightId>,
    states: Vec<StateId>,
    parts: Vec<usize>,
}

/// What all norms of a model have in common.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    /// Added to the mean of squares, or to the variance.
    pub(crate) epsilon: f32,
    /// Whether gains are kept less 1.
    pub(crate) plus_one: bool,
    /// What is normed.
    pub(crate) kind: NormKind,
}

/// What a norm does before it divides.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum NormKind {
    /// Nothing: it divides by the root of the mean square.
    Rms,
    /// It takes the mean off.
    Layer {
        /// Whether the tensor `<module>.bias` is added at the end.
        bias: bool,
    },
}

impl<'a> Builder<'a> {
    /// Nothing yet.
    pub(crate) fn new(tensors: Option<&'a Tensors>) -> Builder<'a> {
        Builder { bindings: Bindings::new(tensors), states: Vec::new(), bodies: Vec::new() }
    }

    /// Begins an application of a body that takes a width of `input`; 0 for ids.
    pub(crate) fn layer(&mut self, name: &str, input: usize) -> Layer<'_, 'a> {
        let body = Body { name: name.to_owned(), input, params: Vec::new(), nodes: Vec::new() };
        Layer { builder: self, body, weights: Vec::new(), states: Vec::new(), parts: Vec::new() }
    }
}

impl Layer<'_, '_> {
    /// What flows in.
    pub(crate) const INPUT: ValueId = ValueId(0);

    fn param(&mut self, role: &str, kind: ParamKind) -> ParamId {
        self.body.params.push(Param { name: role.to_owned(), kind });
        ParamId(self.body.params.len() - 1)
    }

    /// Declares a weight and binds a tensor to it.
    pub(crate) fn weight(&mut self, role: &str, tensor: &str, shape: &[usize]) -> ParamId {
        self.bound(role, TensorRequest::whole(tensor, shape))
    }

    /// Declares a stack of matrices of this shape and binds tensors to it, or parts of them.
    pub(crate) fn stack(
        &mut self,
        role: &str,
        (tensor, stack, cut): (&str, Stack, Option<WeightSlice>),
        shape: [usize; 3],
    ) -> ParamId {
        self.bound(role, TensorRequest { stack: Some(stack), cut, ..TensorRequest::whole(tensor, &shape) })
    }

    /// Declares a matrix and binds the first rows of a tensor to it that has `of` rows. The others are left out.
    pub(crate) fn first_rows(&mut self, role: &str, tensor: &str, shape: [usize; 2], of: usize) -> ParamId {
        let cut = (of > shape[0]).then_some(WeightSlice::Rows { first: 0, of });
        if cut.is_some() {
            self.builder.bindings.leave_out_rows(tensor, shape[0]..of);
        }
        self.bound(role, TensorRequest { cut, ..TensorRequest::whole(tensor, &shape) })
    }

    /// Whether the checkpoint has a tensor of this name.
    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.builder.bindings.has(tensor)
    }

    fn bound(&mut self, role: &str, wanted: TensorRequest<'_>) -> ParamId {
        let id = self.builder.bindings.bind(wanted);
        self.weights.push(id);
        self.param(role, ParamKind::Weight(wanted.shape.to_vec()))
    }

    /// Declares a cache of keys and values.
    pub(crate) fn cache(&mut self, heads: usize, width: usize) -> ParamId {
        self.state("cache", State::Cache(Cache { heads, width }))
    }

    /// Declares a cache of latents and turned keys.
    pub(crate) fn latents(&mut self, latents: LatentCache) -> ParamId {
        self.state("cache", State::Latents(latents))
    }

    fn state(&mut self, role: &str, state: State) -> ParamId {
        self.states.push(StateId(self.builder.states.len()));
        self.builder.states.push(state.clone());
        self.param(role, ParamKind::State(state))
    }

    /// Declares a cache that an earlier application keeps, to be read.
    pub(crate) fn kept(&mut self, id: StateId) -> ParamId {
        let state = self.builder.states[id.0].clone();
        self.states.push(id);
        self.param("cache", ParamKind::State(state))
    }

    fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        self.body.nodes.push(Node { name: name.to_owned(), op, inputs: inputs.to_vec() });
        ValueId(self.body.nodes.len())
    }

    /// Rows of a table times a number.
    pub(crate) fn embed(&mut self, name: &str, table: ParamId, scale: f32) -> ValueId {
        self.node(name, Op::Embed { table, scale }, &[Self::INPUT])
    }

    /// A norm of every part of x; its gain is the tensor `<module>.weight`. What takes the mean off is of x as a whole.
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

    /// A norm of x as a whole, whose gain is the tensor of this name.
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

    /// A norm of every part of x without a gain.
    pub(crate) fn norm_alone(&mut self, name: &str, x: ValueId, parts: usize, epsilon: f32) -> ValueId {
        self.node(name, Op::RmsNorm { gain: None, parts, epsilon }, &[x])
    }

    /// A table's row at each row's position, added to x.
    pub(crate) fn place(&mut self, name: &str, x: ValueId, table: ParamId) -> ValueId {
        self.node(name, Op::Place { table }, &[x])
    }

    /// A product with the tensor `<module>.weight`, and the sum with `<module>.bias` if there is to be one. The
    /// result is called as the weight is: `query`, and the bias `query_bias`.
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

    /// The same with a part of these tensors, as the cut says of the weight; the bias has the elements that the weight has
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

    /// A product with a weight that is declared already.
    pub(crate) fn product(&mut self, name: &str, x: ValueId, weight: ParamId) -> ValueId {
        self.node(name, Op::Linear { weight, bias: None }, &[x])
    }

    /// Heads turned by their row's position.
    pub(crate) fn rotate(
        &mut self,
        name: &str,
        x: ValueId,
        heads: usize,
        width: usize,
        rotation: &Rotation,
    ) -> ValueId {
        self.node(name, Op::Rotate { heads, width, rotation: rotation.clone() }, &[x])
    }

    /// Attention of queries over keys and values that go to `cache`, or, of queries alone, over those that it keeps.
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

    /// Every channel's last values, weighed by a part of the tensor `<module>.weight`, which has so many taps for each of its
    /// channels, along its last axis or, turned, the one before. The result is called `convolved_<role>`.
    pub(crate) fn convolve(
        &mut self,
        role: &str,
        x: ValueId,
        (module, cut): (&str, WeightSlice),
        [width, taps]: [usize; 2],
        turned: bool,
    ) -> ValueId {
        let tensor = &format!("{module}.weight");
        let lies: &[usize] = if turned { &[taps, 1] } else { &[1, taps] };
        let of_taps = match cut.of_elements() {
            WeightSlice::Groups { first, rows, of } => {
                WeightSlice::Groups { first: first * taps, rows: rows * taps, of: of * taps }
            }
            cut => WeightSlice::Rows { first: cut.place(0) * taps, of: cut.of() * taps },
        };
        let shape = &[width * taps];
        let wanted = TensorRequest { cut: Some(of_taps), lies, ..TensorRequest::whole(tensor, shape) };
        let weight = self.bound(&format!("{role}_taps"), wanted);
        let tail = self.state(&format!("{role}_tail"), State::Tail(ConvState { rows: taps - 1, width }));
        self.node(&format!("convolved_{role}"), Op::Convolve { taps: weight, tail }, &[x])
    }

    /// What memories say to queries. They learn from keys and values as strongly as they are told, and forget as the time says
    /// and the tensors of its rates and their biases.
    pub(crate) fn delta_rule(
        &mut self,
        name: &str,
        inputs: [ValueId; 5],
        tensors: [&str; 2],
        scale: f32,
        epsilon: f32,
        memory: RecurrentState,
    ) -> ValueId {
        let [rate, bias] = [("rate", tensors[0]), ("rate_bias", tensors[1])]
            .map(|(role, tensor)| self.weight(role, tensor, &[memory.heads]));
        let memory = self.state("memory", State::Memory(memory));
        self.node(name, Op::DeltaRule { rate, bias, scale, epsilon, memory }, &inputs)
    }

    /// The weights of experts from a router's logits.
    pub(crate) fn route(&mut self, name: &str, logits: ValueId, routing: Routing) -> ValueId {
        self.node(name, Op::Route(routing), &[logits])
    }

    /// Declares a vector for each matrix of a stack, one after the other, and binds a tensor to it that has a row for each, or a
    /// part of one: elements of every group of so many.
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

    /// The weighted sum of experts' results. Stacks are of gates, ups and downs.
    pub(crate) fn experts(&mut self, name: &str, [x, weights]: [ValueId; 2], experts: Experts) -> ValueId {
        self.node(name, Op::Experts(experts), &[x, weights])
    }

    /// Every head's own matrix times its part of x.
    pub(crate) fn each_head(
        &mut self,
        (role, name): (&str, &str),
        x: ValueId,
        of: &OfHeads,
        (heads, turned): (usize, bool),
    ) -> ValueId {
        let OfHeads { tensor, shape, cut, lies } = of;
        let weight =
            self.bound(role, TensorRequest { cut: *cut, lies, ..TensorRequest::whole(tensor, shape) });
        self.node(name, Op::EachHead { weight, heads, turned }, &[x])
    }

    /// Attention over latents: of queries, turned queries, latents and turned keys.
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

    /// Numbers bent to stay below a cap.
    pub(crate) fn softcap(&mut self, name: &str, x: ValueId, cap: f32) -> ValueId {
        self.node(name, Op::Softcap(cap), &[x])
    }

    /// Every number times the same.
    pub(crate) fn scale(&mut self, name: &str, x: ValueId, factor: f32) -> ValueId {
        self.node(name, Op::Scale(factor), &[x])
    }

    /// Every number times the tensor, which holds one.
    pub(crate) fn scale_by(&mut self, name: &str, x: ValueId, (role, tensor): (&str, &str)) -> ValueId {
        let factor = self.weight(role, tensor, &[1]);
        self.node(name, Op::ScaleBy { factor }, &[x])
    }

    /// x, and y left for the layers as the aside.
    pub(crate) fn leave(&mut self, name: &str, x: ValueId, y: ValueId) -> ValueId {
        self.node(name, Op::Leave, &[x, y])
    }

    /// Columns of the aside.
    pub(crate) fn take(&mut self, name: &str, columns: Range<usize>) -> ValueId {
        self.parts.push(columns.start);
        let part = self.param(name, ParamKind::Part(columns.len()));
        self.node(name, Op::Take { part }, &[])
    }

    /// A function of every number.
    pub(crate) fn activate(&mut self, name: &str, x: ValueId, activation: Activation) -> ValueId {
        self.node(name, Op::Activate(activation), &[x])
    }

    /// The product number by number, or of all of a with the one number that b is.
    pub(crate) fn multiply(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Op::Multiply, &[a, b])
    }

    /// The sum number by number.
    pub(crate) fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Op::Add, &[a, b])
    }

    /// Ends the application. What was defined last flows out.
    pub(crate) fn finish(self) -> Apply {
        let Layer { builder, body, weights, states, parts } = self;
        let index = builder.bodies.iter().position(|known| *known == body).unwrap_or_else(|| {
            builder.bodies.push(body);
            builder.bodies.len() - 1
        });
        Apply { body: BodyId(index), weights, states, parts }
    }
}
