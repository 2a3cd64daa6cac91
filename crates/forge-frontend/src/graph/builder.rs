//! Builds a graph layer by layer and binds the checkpoint's tensors. `operations` adds nodes.
//!
//! A body is built for every layer; equal bodies are shared.

use crate::checkpoint::tensors::Tensors;
use crate::graph::binding::{Bindings, TensorRequest};
use forge_ir::{
    Apply, Body, BodyId, Cache, LatentCache, Node, Op, Param, ParamId, ParamKind, Stack, State, StateId,
    ValueId, WeightId, WeightSlice,
};

/// A graph under construction.
pub(crate) struct Builder<'a> {
    /// Weights bound so far.
    pub(crate) bindings: Bindings<'a>,
    /// States declared so far.
    pub(crate) states: Vec<State>,
    /// Distinct bodies so far.
    pub(crate) bodies: Vec<Body>,
}

/// A layer under construction.
pub(crate) struct Layer<'b, 'a> {
    builder: &'b mut Builder<'a>,
    body: Body,
    weights: Vec<WeightId>,
    states: Vec<StateId>,
    pub(super) parts: Vec<usize>,
}

impl<'a> Builder<'a> {
    /// An empty graph.
    pub(crate) fn new(tensors: Option<&'a Tensors>) -> Builder<'a> {
        Builder { bindings: Bindings::new(tensors), states: Vec::new(), bodies: Vec::new() }
    }

    /// Begins a layer whose input has width `input`; 0 for token ids.
    pub(crate) fn layer(&mut self, name: &str, input: usize) -> Layer<'_, 'a> {
        let body = Body { name: name.to_owned(), input, params: Vec::new(), nodes: Vec::new() };
        Layer { builder: self, body, weights: Vec::new(), states: Vec::new(), parts: Vec::new() }
    }
}

impl Layer<'_, '_> {
    /// The layer's input.
    pub(crate) const INPUT: ValueId = ValueId(0);

    pub(super) fn param(&mut self, role: &str, kind: ParamKind) -> ParamId {
        self.body.params.push(Param { name: role.to_owned(), kind });
        ParamId(self.body.params.len() - 1)
    }

    /// Declares a weight and binds a tensor to it.
    pub(crate) fn weight(&mut self, role: &str, tensor: &str, shape: &[usize]) -> ParamId {
        self.bound(role, TensorRequest::whole(tensor, shape))
    }

    /// Declares a stack of matrices of this shape and binds tensors, or slices of them, to it.
    pub(crate) fn stack(
        &mut self,
        role: &str,
        (tensor, stack, cut): (&str, Stack, Option<WeightSlice>),
        shape: [usize; 3],
    ) -> ParamId {
        self.bound(role, TensorRequest { stack: Some(stack), cut, ..TensorRequest::whole(tensor, &shape) })
    }

    /// Declares a matrix and binds the first rows of a tensor of `of` rows to it. The other rows stay unused.
    pub(crate) fn first_rows(&mut self, role: &str, tensor: &str, shape: [usize; 2], of: usize) -> ParamId {
        let cut = (of > shape[0]).then_some(WeightSlice::Rows { first: 0, of });
        if cut.is_some() {
            self.builder.bindings.ignore_rows(tensor, shape[0]..of);
        }
        self.bound(role, TensorRequest { cut, ..TensorRequest::whole(tensor, &shape) })
    }

    /// Whether the checkpoint has a tensor of this name.
    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.builder.bindings.has(tensor)
    }

    pub(super) fn bound(&mut self, role: &str, request: TensorRequest<'_>) -> ParamId {
        let id = self.builder.bindings.bind(request);
        self.weights.push(id);
        self.param(role, ParamKind::Weight(request.shape.to_vec()))
    }

    /// Declares a KV cache.
    pub(crate) fn cache(&mut self, heads: usize, width: usize) -> ParamId {
        self.state("cache", State::Cache(Cache { heads, width }))
    }

    /// Declares an MLA cache: latents and rope keys.
    pub(crate) fn latents(&mut self, latents: LatentCache) -> ParamId {
        self.state("cache", State::Latents(latents))
    }

    pub(super) fn state(&mut self, role: &str, state: State) -> ParamId {
        self.states.push(StateId(self.builder.states.len()));
        self.builder.states.push(state.clone());
        self.param(role, ParamKind::State(state))
    }

    /// Declares a read-only reference to an earlier layer's cache.
    pub(crate) fn kept(&mut self, id: StateId) -> ParamId {
        let state = self.builder.states[id.0].clone();
        self.states.push(id);
        self.param("cache", ParamKind::State(state))
    }

    pub(super) fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        self.body.nodes.push(Node { name: name.to_owned(), op, inputs: inputs.to_vec() });
        ValueId(self.body.nodes.len())
    }

    /// Ends the layer. Its output is the last value defined.
    pub(crate) fn finish(self) -> Apply {
        let Layer { builder, body, weights, states, parts } = self;
        let index = builder.bodies.iter().position(|known| *known == body).unwrap_or_else(|| {
            builder.bodies.push(body);
            builder.bodies.len() - 1
        });
        Apply { body: BodyId(index), weights, states, parts }
    }
}
