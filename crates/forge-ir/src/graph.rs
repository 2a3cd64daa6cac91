//! The graph's data: the model, its bodies and their operations, and what each application binds to a body. See the crate's
//! documentation for what it means. Weights and states have files of their own.

use crate::rotation::Rotation;
use crate::routing::{Experts, Routing};
use crate::state::State;
use crate::weight::Weight;
use serde::Serialize;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub struct $name(pub usize);
    };
}

index!(/** A weight of the model. */ WeightId);
index!(/** A state of the model. */ StateId);
index!(/** A body. */ BodyId);
index!(/** A parameter of a body: what a layer binds a weight or a state to. */ ParamId);
index!(/** A value of a body: 0 is what flows in, node i defines i + 1. */ ValueId);

/// What is true of the whole model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// The model's name, `Qwen3-0.6B`; by default the checkpoint folder's.
    pub name: String,
    /// The architecture as the checkpoint names it, `LlamaForCausalLM`.
    pub architecture: String,
    /// Rows of the embedding table and of the head.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Tokens with a meaning.
    pub specials: SpecialTokens,
}

/// Tokens with a meaning, and the sampling that the checkpoint's generation_config.json asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpecialTokens {
    /// Begins a text.
    pub begin: Option<u32>,
    /// Any of these ends an answer.
    pub end: Vec<u32>,
}

/// A straight line of nodes, applied once a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Body {
    /// What generated code calls it: `embed`, `layer`, `head`.
    pub name: String,
    /// Width of what flows in; 0 for the ids of the prologue.
    pub input: usize,
    /// What is bound anew by each application.
    pub params: Vec<Param>,
    /// In order of evaluation.
    pub nodes: Vec<Node>,
}

/// A parameter of a body.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Param {
    /// The role, in the words of the paper: `query`, `attention_gain`, `down`.
    pub name: String,
    /// What may be bound to it.
    pub kind: ParamKind,
}

/// What may be bound to a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamKind {
    /// A weight of this shape: `[width]`, `[rows, columns]`, or of a stack `[matrices, rows, columns]`.
    Weight(Vec<usize>),
    /// A state of this kind and shape.
    State(State),
    /// So many columns of the aside.
    Part(usize),
}

/// One application of an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// What the result is called: `query`, `scores`, `stream`.
    pub name: String,
    /// What is computed.
    pub op: Op,
    /// From which values.
    pub inputs: Vec<ValueId>,
}

/// The operations. Widths are of one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// ids -> scale * the table's row
    Embed {
        /// `[vocabulary, width]`
        table: ParamId,
        /// 1 for most.
        scale: f32,
    },
    /// x -> x + the table's row at the position of x's own
    Place {
        /// `[positions, width]`
        table: ParamId,
    },
    /// x -> gain * p / sqrt(mean(p²) + epsilon), for each of the equal parts p of x
    RmsNorm {
        /// `[width / parts]`; none where there is nothing to multiply by.
        gain: Option<ParamId>,
        /// 1, or heads that are normed each by itself.
        parts: usize,
        /// Added to the mean of the squares.
        epsilon: f32,
    },
    /// x -> gain * d / sqrt(mean(d²) + epsilon) + bias, where d is x less its mean
    LayerNorm {
        /// `[width]`
        gain: ParamId,
        /// `[width]`
        bias: Option<ParamId>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// x -> W x + bias
    Linear {
        /// `[out, in]`
        weight: ParamId,
        /// `[out]`
        bias: Option<ParamId>,
    },
    /// x -> every head of x turned by its row's position.
    Rotate {
        /// Heads in x.
        heads: usize,
        /// Channels a head.
        width: usize,
        /// By how much.
        rotation: Rotation,
    },
    /// (queries, keys, values) -> for every query head, softmax(scale * q·k) v over its slot's positions so far.
    /// (queries) alone -> the same over what an earlier layer keeps, whose keys and values are those of this pass's rows too.
    /// Query head h reads key head h / (query_heads / state.heads). With a window a row sees that many positions, its own
    /// included; with a cap c a score s counts as c * tanh(s / c). A head's sink is one more score, of nothing: it takes its
    /// share of the softmax and has no value.
    Attention {
        /// Heads in the first input.
        query_heads: usize,
        /// Multiplies q·k.
        scale: f32,
        /// Where keys and values are kept.
        cache: ParamId,
        /// Positions that a row sees; `None`: all so far.
        window: Option<usize>,
        /// What scores are capped to.
        softcap: Option<f32>,
        /// `[query heads]`, one more score for each, which is neither scaled nor capped.
        sinks: Option<ParamId>,
    },
    /// x -> for every head, its matrix times its part of x. The weight is the matrices of all heads, one below the other;
    /// turned, each is taken with its rows for columns.
    EachHead {
        /// `[heads * rows, columns]`
        weight: ParamId,
        /// Heads in x.
        heads: usize,
        /// Whether rows are taken for columns.
        turned: bool,
    },
    /// (queries, turned queries, latents, turned keys) -> for every head, softmax(scale * (q·c + r·k)) c over its slot's
    /// positions so far, where q and r are the head's parts of the queries, and c and k a position's latent and turned key,
    /// which all heads share.
    LatentAttention {
        /// Heads in the first two inputs.
        heads: usize,
        /// Multiplies scores.
        scale: f32,
        /// Where latents and turned keys are kept.
        cache: ParamId,
    },
    /// x -> for every channel, the sum of its last values, each times the channel's tap for it. The last tap is for the
    /// row's own; what is before the first row of a slot is 0. Rows of the same slot come one after the other in position.
    Convolve {
        /// `[width * taps]`: all taps of a channel, then those of the next.
        taps: ParamId,
        /// Where the last rows are kept.
        tail: ParamId,
    },
    /// (queries, keys, values, time, strength) -> for every value head, what its memory says to the query: S becomes
    /// exp(-exp(rate) * ln(1 + exp(time + bias))) * S, then S + k (strength * (v - Sᵀ k))ᵀ, and the result is scale * Sᵀ q.
    /// S is of the slot's rows so far, and 0 before the first. Queries and keys are divided by sqrt(sum of their head's
    /// squares + epsilon) first. Value head h has time, strength, rate and bias h, and reads query and key head
    /// h / (value heads / key heads).
    DeltaRule {
        /// `[value heads]`
        rate: ParamId,
        /// `[value heads]`
        bias: ParamId,
        /// Multiplies what the memory says.
        scale: f32,
        /// Added to the sum of squares of a query or key.
        epsilon: f32,
        /// Where S is kept.
        memory: ParamId,
    },
    /// logits of a router -> the weight of each expert, 0 for those that are not chosen.
    Route(Routing),
    /// (x, weights of experts) -> the sum over experts of weight * down(gating(gate(x), up(x))). Experts that are not chosen are
    /// not evaluated.
    Experts(Experts),
    /// x -> activation(x)
    Activate(Activation),
    /// x -> cap * tanh(x / cap)
    Softcap(f32),
    /// x -> factor * x
    Scale(f32),
    /// x -> factor * x, where the checkpoint has the factor.
    ScaleBy {
        /// `[1]`
        factor: ParamId,
    },
    /// (x, y) -> x; y is the aside from now on.
    Leave,
    /// nothing -> the columns of the aside that are bound to a parameter.
    Take {
        /// Which.
        part: ParamId,
    },
    /// (a, b) -> a * b, element by element, or all of a times the one number that b is.
    Multiply,
    /// (a, b) -> a + b, element by element.
    Add,
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x / (1 + exp(-x))
    Silu,
    /// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))
    GeluTanh,
    /// x times the normal distribution's share below x
    Gelu,
    /// max(x, 0)
    Relu,
    /// 1 / (1 + exp(-x))
    Sigmoid,
}

impl Activation {
    /// The name used in printed graphs, plans and kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Gelu => "gelu",
            Activation::Relu => "relu",
            Activation::Sigmoid => "sigmoid",
        }
    }
}

/// A body with its parameters bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Apply {
    /// Which body.
    pub body: BodyId,
    /// For every parameter that is a weight, in the order of parameters.
    pub weights: Vec<WeightId>,
    /// For every parameter that is a state, in the order of parameters.
    pub states: Vec<StateId>,
    /// For every parameter that is a part of the aside, in the order of parameters: its first column.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<usize>,
}

/// A graph that nobody has checked yet: what a frontend builds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Draft {
    /// What is true of the whole model.
    pub model: Model,
    /// Every tensor used, each once.
    pub weights: Vec<Weight>,
    /// Every state. One application keeps it; those after it may read it.
    pub states: Vec<State>,
    /// The distinct bodies.
    pub bodies: Vec<Body>,
    /// ids -> stream
    pub prologue: Apply,
    /// stream -> stream
    pub layers: Vec<Apply>,
    /// stream -> logits
    pub epilogue: Apply,
}

impl Body {
    /// The weight parameters in order: the n-th is bound to the n-th weight of an application.
    pub fn weight_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params_where(|kind| matches!(kind, ParamKind::Weight(_)))
    }

    /// The state parameters in order.
    pub fn state_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params_where(|kind| matches!(kind, ParamKind::State(_)))
    }

    /// The parameters that are parts of the aside, in order.
    pub fn part_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params_where(|kind| matches!(kind, ParamKind::Part(_)))
    }

    /// The node that defines a value; none of what flows in.
    pub fn maker(&self, value: ValueId) -> Option<&Node> {
        self.nodes.get(value.0.checked_sub(1)?)
    }

    /// Whether attention reads a state that another application keeps, and so leaves it as it is.
    pub fn only_reads(&self, state: ParamId) -> bool {
        let mut inputs = self.nodes.iter().filter_map(|node| match node.op {
            Op::Attention { cache, .. } if cache == state => Some(node.inputs.len()),
            _ => None,
        });
        inputs.clone().next().is_some() && inputs.all(|inputs| inputs == 1)
    }

    fn params_where(&self, keep: impl Fn(&ParamKind) -> bool) -> impl Iterator<Item = ParamId> {
        self.params
            .iter()
            .enumerate()
            .filter(move |(_, param)| keep(&param.kind))
            .map(|(index, _)| ParamId(index))
    }
}

impl Apply {
    /// The weight bound to a parameter of `body`, if the parameter is a weight.
    pub fn weight(&self, body: &Body, param: ParamId) -> Option<WeightId> {
        body.weight_params().position(|p| p == param).and_then(|index| self.weights.get(index)).copied()
    }

    /// The state bound to a parameter of `body`, if the parameter is a state.
    pub fn state(&self, body: &Body, param: ParamId) -> Option<StateId> {
        body.state_params().position(|p| p == param).and_then(|index| self.states.get(index)).copied()
    }

    /// The first column of the aside that is bound to a parameter of `body`, if the parameter is a part of it.
    pub fn part(&self, body: &Body, param: ParamId) -> Option<usize> {
        body.part_params().position(|p| p == param).and_then(|index| self.parts.get(index)).copied()
    }
}
