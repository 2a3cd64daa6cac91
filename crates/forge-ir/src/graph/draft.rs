//! Graph data: the model, bodies, operations, and the bindings of applications. See the crate documentation
//! for semantics.

use crate::graph::routing::{Experts, Routing};
use crate::graph::state::State;
use crate::weights::weight::Weight;
use forge_ops::{Activation, RopeParameters};
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

/// Properties of the whole model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// Name, such as `Qwen3-0.6B`; by default the name of the checkpoint directory.
    pub name: String,
    /// Architecture class in the checkpoint, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Vocabulary size: rows of the embedding table and of the head.
    pub vocabulary: usize,
    /// Hidden size: width of the residual stream.
    pub hidden: usize,
    /// Maximum context length.
    pub context: usize,
    /// Special tokens.
    pub specials: SpecialTokens,
}

/// Special tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpecialTokens {
    /// BOS token.
    pub begin: Option<u32>,
    /// EOS tokens.
    pub end: Vec<u32>,
}

/// A sequence of nodes, shared by layers of equal structure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Body {
    /// Name in generated code: `embed`, `layer`, `head`.
    pub name: String,
    /// Width of the input; 0 for the token ids of the prologue.
    pub input: usize,
    /// Parameters, bound by each application.
    pub params: Vec<Param>,
    /// Nodes in order of evaluation.
    pub nodes: Vec<Node>,
}

/// A parameter of a body.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Param {
    /// Role, such as `query`, `attention_gain` or `down`.
    pub name: String,
    /// What can be bound to it.
    pub kind: ParamKind,
}

/// The kind of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamKind {
    /// A weight of this shape: `[width]`, `[rows, columns]` or, for a stack, `[matrices, rows, columns]`.
    Weight(Vec<usize>),
    /// A state of this kind and shape.
    State(State),
    /// This many columns of the per-layer inputs.
    Part(usize),
}

/// An application of an operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Name of the result, such as `query`, `scores` or `stream`.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// The operands.
    pub inputs: Vec<ValueId>,
}

/// The operations. Widths are those of one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Embedding lookup: ids -> scale * table row
    Embed {
        /// `[vocabulary, width]`
        table: ParamId,
        /// 1 in most models.
        scale: f32,
    },
    /// Learned position embedding: x -> x + table row of its position
    PositionEmbedding {
        /// `[positions, width]`
        table: ParamId,
    },
    /// x -> gain * p / sqrt(mean(p²) + epsilon), for each of the equal parts p of x
    RmsNorm {
        /// `[width / parts]`; `None`: no gain.
        gain: Option<ParamId>,
        /// 1, or the number of heads that are normed separately.
        parts: usize,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// x -> gain * d / sqrt(mean(d²) + epsilon) + bias, where d is x minus its mean
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
    /// RoPE: rotates every head of x by its row's position.
    Rope {
        /// Heads in x.
        heads: usize,
        /// Channels of a head.
        width: usize,
        /// Frequencies and pairing.
        rope: RopeParameters,
    },
    /// Grouped-query attention. (queries, keys, values) -> for every query head, softmax(scale * q·k) v over
    /// its slot's positions so far. With queries only, it reads the cache of an earlier layer, which already
    /// contains this pass's rows.
    ///
    /// Query head h uses key head h / (query_heads / state.heads). With a window a row sees that many
    /// positions, including its own. With a softcap c a score s becomes c * tanh(s / c). A sink is one more
    /// score per head: it takes part in the softmax and has no value.
    Attention {
        /// Heads in the first input.
        query_heads: usize,
        /// Multiplies q·k.
        scale: f32,
        /// The KV cache.
        cache: ParamId,
        /// Positions that a row sees; `None`: all so far.
        window: Option<usize>,
        /// Softcap of scores.
        softcap: Option<f32>,
        /// `[query heads]`, one more score each, neither scaled nor capped.
        sinks: Option<ParamId>,
    },
    /// x -> for every head, its matrix times its part of x. The weight stacks the matrices of all heads; if
    /// `transposed`, each is transposed.
    PerHeadLinear {
        /// `[heads * rows, columns]`
        weight: ParamId,
        /// Heads in x.
        heads: usize,
        /// Whether the matrices are transposed.
        transposed: bool,
    },
    /// MLA in absorbed form. (queries, rope queries, latents, rope keys) -> for every head, softmax(scale *
    /// (q·c + r·k)) c over its slot's positions so far. q and r are the head's parts of the queries; c and k
    /// are a position's latent and rope key, shared by all heads.
    LatentAttention {
        /// Heads in the first two inputs.
        heads: usize,
        /// Multiplies scores.
        scale: f32,
        /// The cache of latents and rope keys.
        cache: ParamId,
    },
    /// Causal depthwise convolution: x -> for every channel, the sum of its last values times its taps. The
    /// last tap is for the row itself. Values before the first row of a slot are 0.
    Convolve {
        /// `[width * taps]`: all taps of a channel, then those of the next.
        taps: ParamId,
        /// The conv state.
        conv_state: ParamId,
    },
    /// Gated delta rule. (queries, keys, values, dt, beta) -> for every value head, an update of its
    /// recurrent state S and scale * Sᵀ q: S becomes exp(-exp(a_log) * ln(1 + exp(dt + dt_bias))) * S, then S
    /// + k (beta * (v - Sᵀ k))ᵀ.
    ///
    /// S depends on the slot's rows so far and is 0 before the first. Queries and keys are first divided by
    /// sqrt(sum of their head's squares + epsilon). Value head h uses element h of dt, beta, a_log and
    /// dt_bias, and query and key head h / (value heads / key heads).
    DeltaRule {
        /// `[value heads]`: `A_log`.
        a_log: ParamId,
        /// `[value heads]`, added to dt.
        dt_bias: ParamId,
        /// Multiplies the output.
        scale: f32,
        /// Added to the sum of squares of a query or key.
        epsilon: f32,
        /// The recurrent state S.
        recurrent_state: ParamId,
    },
    /// Router logits -> the weight of each expert, 0 for experts that are not selected.
    Route(Routing),
    /// (x, expert weights) -> the sum over experts of weight * down(gating(gate(x), up(x))). Only selected
    /// experts are evaluated.
    Experts(Experts),
    /// x -> activation(x)
    Activate(Activation),
    /// x -> cap * tanh(x / cap)
    Softcap(f32),
    /// x -> factor * x
    Scale(f32),
    /// x -> factor * x, with a factor from the checkpoint.
    ScaleBy {
        /// `[1]`
        factor: ParamId,
    },
    /// (x, y) -> x; y becomes the per-layer inputs.
    StorePerLayerInputs,
    /// nothing -> the columns of the per-layer inputs that are bound to a parameter.
    PerLayerInput {
        /// The parameter.
        part: ParamId,
    },
    /// (a, b) -> a * b, element by element; b may be a single element.
    Multiply,
    /// (a, b) -> a + b, element by element.
    Add,
}

/// A body with its parameters bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Apply {
    /// The body.
    pub body: BodyId,
    /// For every weight parameter, in order.
    pub weights: Vec<WeightId>,
    /// For every state parameter, in order.
    pub states: Vec<StateId>,
    /// For every per-layer input parameter, in order: its first column.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<usize>,
}

/// An unvalidated graph, built by a frontend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Draft {
    /// Properties of the whole model.
    pub model: Model,
    /// All weights, without duplicates.
    pub weights: Vec<Weight>,
    /// All states. One application writes each; later ones may read it.
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

    /// The per-layer input parameters in order.
    pub fn part_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params_where(|kind| matches!(kind, ParamKind::Part(_)))
    }

    /// The node that defines a value; `None` for the input.
    pub fn producer(&self, value: ValueId) -> Option<&Node> {
        self.nodes.get(value.0.checked_sub(1)?)
    }

    /// Whether attention reads a state that an earlier application writes, and does not modify it.
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
    /// The weight bound to a parameter of `body`, if it is a weight parameter.
    pub fn weight(&self, body: &Body, param: ParamId) -> Option<WeightId> {
        body.weight_params().position(|p| p == param).and_then(|index| self.weights.get(index)).copied()
    }

    /// The state bound to a parameter of `body`, if it is a state parameter.
    pub fn state(&self, body: &Body, param: ParamId) -> Option<StateId> {
        body.state_params().position(|p| p == param).and_then(|index| self.states.get(index)).copied()
    }

    /// The first column of the per-layer inputs bound to a parameter of `body`, if it is a per-layer input
    /// parameter.
    pub fn part(&self, body: &Body, param: ParamId) -> Option<usize> {
        body.part_params().position(|p| p == param).and_then(|index| self.parts.get(index)).copied()
    }
}
