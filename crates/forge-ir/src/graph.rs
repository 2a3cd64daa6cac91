//! The graph's data. See the crate's documentation for what it means.

use crate::{Blocks, Format, Rotation};
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
    pub specials: Specials,
}

/// Tokens with a meaning, and the sampling that the checkpoint's generation_config.json asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Specials {
    /// Begins a text.
    pub begin: Option<u32>,
    /// Any of these ends an answer.
    pub end: Vec<u32>,
}

/// A tensor of the checkpoint that the model uses, or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// Which part of the tensor it is; none: all of it, as it lies there.
    pub cut: Option<Cut>,
    /// `[width]` or `[rows, columns]`.
    pub shape: Vec<usize>,
    /// The number format it has there.
    pub format: Format,
    /// The blocks that the tensor's rows are made of; none: plain numbers, or codes as MLX has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
    /// Whether what it means is the tensor's numbers and 1: so some models keep the gains of norms. Numbers that
    /// [`crate::Numbers`] gives have the 1 in them.
    pub plus_one: bool,
}

/// A part of a tensor: some checkpoints store several weights as one tensor, some store matrices the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Rows from `first` on, of a tensor of so many rows; of a vector, elements.
    Rows {
        /// The first that is the weight's.
        first: usize,
        /// All that the tensor has.
        of: usize,
    },
    /// Columns from `first` on, of a tensor of so many columns: each is a row of the weight.
    Columns {
        /// The first that is the weight's.
        first: usize,
        /// All that the tensor has.
        of: usize,
    },
    /// Rows from `first` on, so many of each group of so many rows: what a checkpoint keeps beside another for each head.
    Groups {
        /// The first that is the weight's, in every group.
        first: usize,
        /// Those that are the weight's, in every group.
        rows: usize,
        /// All that a group has.
        of: usize,
    },
}

impl Cut {
    /// The tensor's row, or column, or element of a vector, that is this one of the weight.
    pub fn place(self, row: usize) -> usize {
        match self {
            Cut::Rows { first, .. } | Cut::Columns { first, .. } => first + row,
            Cut::Groups { first, rows, of } => row / rows * of + first + row % rows,
        }
    }

    /// How many the tensor has, or each of its groups.
    pub fn of(self) -> usize {
        match self {
            Cut::Rows { of, .. } | Cut::Columns { of, .. } | Cut::Groups { of, .. } => of,
        }
    }
}

impl Weight {
    /// The shape of the whole tensor.
    pub fn tensor_shape(&self) -> Vec<usize> {
        match (self.cut, &self.shape[..]) {
            (None, shape) => shape.to_vec(),
            (Some(Cut::Rows { of, .. }), shape) => [&[of], &shape[shape.len().min(1)..]].concat(),
            (Some(Cut::Groups { rows, of, .. }), shape) => {
                let groups = shape.first().map_or(0, |all| all / rows.max(1));
                [&[groups * of], &shape[shape.len().min(1)..]].concat()
            }
            (Some(Cut::Columns { of, .. }), shape) => vec![shape.last().copied().unwrap_or(0), of],
        }
    }

    /// The rows of the tensor, or columns, or elements of a vector, that are the weight's; of each group, where it has groups.
    pub fn part(&self) -> std::ops::Range<usize> {
        let length = self.shape.first().copied().unwrap_or(0);
        match self.cut {
            None => 0..length,
            Some(Cut::Rows { first, .. } | Cut::Columns { first, .. }) => first..first + length,
            Some(Cut::Groups { first, rows, .. }) => first..first + rows,
        }
    }

    /// Rows of a matrix; 1 for a vector.
    pub fn rows(&self) -> usize {
        if self.shape.len() == 2 { self.shape[0] } else { 1 }
    }

    /// Columns of a matrix; the width of a vector.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }
}

/// What a slot remembers between rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Keys and values, for every position so far.
    Cache(Cache),
    /// What a convolution has read, for the last positions.
    Tail(Tail),
    /// What a delta rule has learnt of all positions so far: their number does not change its size.
    Memory(Memory),
}

/// The keys and values of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Key and value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
}

/// The last rows that a convolution has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// As many as a result is made of, less the row's own.
    pub rows: usize,
    /// Channels of a row.
    pub width: usize,
}

/// A matrix for every head, of a row for each channel of its keys and a column for each channel of its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Value heads.
    pub heads: usize,
    /// Channels of a key.
    pub keys: usize,
    /// Channels of a value.
    pub values: usize,
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
    /// A weight of this shape.
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
    /// included; with a cap c a score s counts as c * tanh(s / c).
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
    },
    /// x -> for every channel, the sum of its last values, each times the channel's tap for it. The last tap is for the
    /// row's own; what is before the first row of a slot is 0. Rows of the same slot come one after the other in position.
    Convolve {
        /// `[width * taps]`: all taps of a channel, then those of the next.
        taps: ParamId,
        /// Where the last rows are kept.
        tail: ParamId,
    },
    /// x -> exp(-exp(rate) * ln(1 + exp(x + bias))): what is left of something after a time that x tells.
    Decay {
        /// `[width]`
        rate: ParamId,
        /// `[width]`
        bias: ParamId,
    },
    /// (queries, keys, values, decay, strength) -> for every value head, what its memory says to the query: S becomes
    /// decay * S, then S + k (strength * (v - Sᵀ k))ᵀ, and the result is scale * Sᵀ q. S is of the slot's rows so far, and 0
    /// before the first. Queries and keys are divided by sqrt(sum of their head's squares + epsilon) first. Value head h has
    /// decay and strength h, and reads query and key head h / (value heads / key heads).
    DeltaRule {
        /// Multiplies what the memory says.
        scale: f32,
        /// Added to the sum of squares of a query or key.
        epsilon: f32,
        /// Where S is kept.
        memory: ParamId,
    },
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
    /// (a, b) -> a * b, element by element.
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

    /// The cache that a parameter stands for, if it does.
    pub fn cache(&self, param: ParamId) -> Option<&Cache> {
        match self.params.get(param.0).map(|param| &param.kind) {
            Some(ParamKind::State(State::Cache(cache))) => Some(cache),
            _ => None,
        }
    }

    /// The tail that a parameter stands for, if it does.
    pub fn tail(&self, param: ParamId) -> Option<&Tail> {
        match self.params.get(param.0).map(|param| &param.kind) {
            Some(ParamKind::State(State::Tail(tail))) => Some(tail),
            _ => None,
        }
    }

    /// The memory that a parameter stands for, if it does.
    pub fn memory(&self, param: ParamId) -> Option<&Memory> {
        match self.params.get(param.0).map(|param| &param.kind) {
            Some(ParamKind::State(State::Memory(memory))) => Some(memory),
            _ => None,
        }
    }

    /// The state parameters in order.
    pub fn state_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params_where(|kind| matches!(kind, ParamKind::State(_)))
    }

    /// The parameters that are parts of the aside, in order.
    pub fn part_params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params_where(|kind| matches!(kind, ParamKind::Part(_)))
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
