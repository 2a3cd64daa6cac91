//! Builds a graph layer by layer, binding tensors of the checkpoint as it goes.
//!
//! Every application of a body is built anew; bodies that come out equal are shared. A tensor that is missing or has
//! the wrong shape is noted and stood in for, so that all faults of a checkpoint are found at once.

use crate::header::Tensor;
use crate::nearest::nearest;
use crate::quantised::{self, Quantization};
use crate::tensors::Tensors;
use forge_ir::{
    Activation, Apply, Body, BodyId, Diagnostic, Format, Node, Op, Param, ParamId, ParamKind, Rotation,
    State, StateId, ValueId, Weight, WeightId,
};
use std::collections::{BTreeMap, BTreeSet};

/// A graph in the making.
pub(crate) struct Builder<'a> {
    /// What the checkpoint has; none where whatever is asked for is there, in bf16.
    tensors: Option<&'a Tensors>,
    /// What the configuration says of tensors of codes.
    pub(crate) quantization: Option<Quantization>,
    /// Every tensor bound so far.
    pub(crate) weights: Vec<Weight>,
    /// Every state declared so far.
    pub(crate) states: Vec<State>,
    /// The distinct bodies so far.
    pub(crate) bodies: Vec<Body>,
    bound: BTreeMap<String, WeightId>,
    ignored: BTreeSet<String>,
    missing: Vec<WeightId>,
    faults: Vec<Diagnostic>,
}

/// One application of a body in the making.
pub(crate) struct Layer<'b, 'a> {
    builder: &'b mut Builder<'a>,
    body: Body,
    weights: Vec<WeightId>,
    states: Vec<StateId>,
}

/// What all norms of a model have in common.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// Whether gains are kept less 1.
    pub(crate) plus_one: bool,
}

/// So many faults of one kind are told; the rest is counted.
const TOLD: usize = 16;

/// After so many missing tensors there is no point in looking for more.
const HOPELESS: usize = 1000;

/// No model has more tensors: a header could not tell of them.
const MOST: usize = 1 << 18;

impl<'a> Builder<'a> {
    /// Nothing yet.
    pub(crate) fn new(tensors: Option<&'a Tensors>) -> Builder<'a> {
        Builder {
            tensors,
            quantization: None,
            weights: Vec::new(),
            states: Vec::new(),
            bodies: Vec::new(),
            bound: BTreeMap::new(),
            ignored: BTreeSet::new(),
            missing: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Begins an application of a body that takes a width of `input`; 0 for ids.
    pub(crate) fn layer(&mut self, name: &str, input: usize) -> Layer<'_, 'a> {
        let body = Body { name: name.to_owned(), input, params: Vec::new(), nodes: Vec::new() };
        Layer { builder: self, body, weights: Vec::new(), states: Vec::new() }
    }

    /// Marks the tensors that nothing needs to use.
    pub(crate) fn ignore(&mut self, which: impl Fn(&str) -> bool) {
        let names = self.tensors().map(|tensor| &tensor.name).filter(|name| which(name)).cloned();
        self.ignored.extend(names);
    }

    /// Whether so much is missing, or so much was asked for, that building on is useless.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.missing.len() > HOPELESS || self.weights.len() > MOST
    }

    fn tensors(&self) -> impl Iterator<Item = &'a Tensor> + use<'a> {
        self.tensors.into_iter().flat_map(Tensors::iter)
    }

    /// Notes a fault.
    pub(crate) fn fault(&mut self, fault: Diagnostic) {
        self.faults.push(fault);
    }

    fn bind(&mut self, name: &str, shape: &[usize], plus_one: bool) -> WeightId {
        if let Some(id) = self.bound.get(name) {
            return *id;
        }
        let id = WeightId(self.weights.len());
        self.bound.insert(name.to_owned(), id);
        let format = match self.tensors.map(|tensors| tensors.get(name)) {
            None => Some(Format::Bf16),
            Some(None) => {
                self.missing.push(id);
                None
            }
            Some(Some(tensor)) if tensor.dtype == "U32" => self.bind_codes(id, tensor, shape),
            Some(Some(tensor)) => {
                if tensor.shape != shape {
                    let message =
                        format!("{name} is {:?}, and the configuration makes it {shape:?}", tensor.shape);
                    self.faults
                        .push(Diagnostic::new("F0302", message).note(format!("it is in {}", tensor.file)));
                }
                let format = match tensor.dtype.as_str() {
                    "F32" => Some(Format::F32),
                    "F16" => Some(Format::F16),
                    "BF16" => Some(Format::Bf16),
                    _ => None,
                };
                if format.is_none() {
                    let message = format!("{name} is stored as {}", tensor.dtype);
                    self.faults.push(
                        Diagnostic::new("F0304", message)
                            .note("forge reads F32, F16 and BF16, and codes as MLX has them"),
                    );
                }
                format
            }
        };
        let format = format.unwrap_or(Format::F32);
        self.weights.push(Weight { tensor: name.to_owned(), shape: shape.to_vec(), format, plus_one });
        id
    }

    /// Binds the tensors beside one of codes along with it.
    fn bind_codes(&mut self, id: WeightId, tensor: &Tensor, shape: &[usize]) -> Option<Format> {
        let beside = quantised::companions(&tensor.name);
        self.bound.extend(beside.map(|name| (name, id)));
        let format = quantised::format(self.tensors?, self.quantization.as_ref(), tensor, shape);
        format.map_err(|fault| self.faults.push(fault)).ok()
    }

    /// The names of tensors that were left out on purpose; or every fault found.
    pub(crate) fn finish(&mut self) -> Result<Vec<String>, Vec<Diagnostic>> {
        let mut faults = told(std::mem::take(&mut self.faults).into_iter(), "faults of tensors");
        let unused: Vec<&Tensor> = self
            .tensors()
            .filter(|tensor| !self.bound.contains_key(&tensor.name) && !self.ignored.contains(&tensor.name))
            .collect();
        let missing = || self.missing.iter().map(|id| &self.weights[id.0]);
        let lacking = missing().map(|weight| {
            let message = format!("the checkpoint lacks the tensor {} {:?}", weight.tensor, weight.shape);
            let fault = Diagnostic::new("F0301", message);
            let mut others = self.tensors().map(|tensor| tensor.name.as_str());
            match nearest(&weight.tensor, unused.iter().map(|tensor| tensor.name.as_str())) {
                Some(near) => fault.note(format!("it has {near}, which nothing uses")),
                None => match nearest(&weight.tensor, &mut others) {
                    Some(near) => fault.note(format!("the nearest that it has is {near}")),
                    None => fault,
                },
            }
        });
        let left = unused.iter().map(|tensor| {
            let message = format!("nothing uses the tensor {} {:?}", tensor.name, tensor.shape);
            let fault = Diagnostic::new("F0303", message).note(format!("it is in {}", tensor.file));
            let fault = match nearest(&tensor.name, missing().map(|weight| weight.tensor.as_str())) {
                Some(near) => fault.note(format!("the nearest that is missing is {near}")),
                None => match nearest(&tensor.name, self.bound.keys().map(String::as_str)) {
                    Some(near) => fault.note(format!("the nearest that is used is {near}")),
                    None => fault,
                },
            };
            fault.note("a model compiled without it could give wrong text")
        });
        faults.extend(told(lacking, "missing tensors"));
        faults.extend(told(left, "unused tensors"));
        if faults.is_empty() { Ok(self.ignored.iter().cloned().collect()) } else { Err(faults) }
    }
}

/// The first few faults, and how many more there are.
fn told(faults: impl ExactSizeIterator<Item = Diagnostic>, what: &str) -> Vec<Diagnostic> {
    let count = faults.len();
    let mut told: Vec<Diagnostic> = faults.take(TOLD).collect();
    if let (Some(first), true) = (told.first(), count > TOLD) {
        told.push(Diagnostic::new(first.code, format!("and {} more {what}", count - TOLD)));
    }
    told
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
        self.bound(role, tensor, shape, false)
    }

    fn bound(&mut self, role: &str, tensor: &str, shape: &[usize], plus_one: bool) -> ParamId {
        let id = self.builder.bind(tensor, shape, plus_one);
        self.weights.push(id);
        self.param(role, ParamKind::Weight(shape.to_vec()))
    }

    /// Declares a cache of keys and values.
    pub(crate) fn cache(&mut self, heads: usize, width: usize) -> ParamId {
        let state = State { heads, width };
        self.states.push(StateId(self.builder.states.len()));
        self.builder.states.push(state.clone());
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

    /// A root-mean-square norm of every part of x; its gain is the tensor `<module>.weight`.
    pub(crate) fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        (role, module): (&str, &str),
        [parts, width]: [usize; 2],
        norm: Norm,
    ) -> ValueId {
        let gain = self.bound(role, &format!("{module}.weight"), &[width], norm.plus_one);
        self.node(name, Op::RmsNorm { gain, parts, epsilon: norm.epsilon }, &[x])
    }

    /// A product with the tensor `<module>.weight`, and the sum with `<module>.bias` if there is to be one. The
    /// result is called as the weight is: `query`, and the bias `query_bias`.
    pub(crate) fn linear(
        &mut self,
        role: &str,
        x: ValueId,
        module: &str,
        [outputs, inputs]: [usize; 2],
        bias: bool,
    ) -> ValueId {
        let weight = self.weight(role, &format!("{module}.weight"), &[outputs, inputs]);
        let bias = bias.then(|| self.weight(&format!("{role}_bias"), &format!("{module}.bias"), &[outputs]));
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

    /// Attention of queries over keys and values that go to `cache`.
    pub(crate) fn attention(
        &mut self,
        name: &str,
        [query, key, value]: [ValueId; 3],
        query_heads: usize,
        scale: f32,
        cache: ParamId,
        window: Option<usize>,
        softcap: Option<f32>,
    ) -> ValueId {
        let op = Op::Attention { query_heads, scale, cache, window, softcap };
        self.node(name, op, &[query, key, value])
    }

    /// Numbers bent to stay below a cap.
    pub(crate) fn softcap(&mut self, name: &str, x: ValueId, cap: f32) -> ValueId {
        self.node(name, Op::Softcap(cap), &[x])
    }

    /// A function of every number.
    pub(crate) fn activate(&mut self, name: &str, x: ValueId, activation: Activation) -> ValueId {
        self.node(name, Op::Activate(activation), &[x])
    }

    /// The product number by number.
    pub(crate) fn multiply(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Op::Multiply, &[a, b])
    }

    /// The sum number by number.
    pub(crate) fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.node(name, Op::Add, &[a, b])
    }

    /// Ends the application. What was defined last flows out.
    pub(crate) fn finish(self) -> Apply {
        let Layer { builder, body, weights, states } = self;
        let index = builder.bodies.iter().position(|known| *known == body).unwrap_or_else(|| {
            builder.bodies.push(body);
            builder.bodies.len() - 1
        });
        Apply { body: BodyId(index), weights, states }
    }
}
