//! The planner's operation list, which fusion rules rewrite.
//!
//! A [`Fused`] list starts with one entry for each node of a body. Attention, MLA and experts start as two:
//! append and attend, or the projections up to `down` and `down` with its sum. It ends with one entry for
//! each dispatch. Values are numbered as in the body; new values take the next free number. Every kind but
//! [`Kind::Unplanned`] has a kernel, so the list is executable before and after each rule.

pub(crate) mod attention;
pub(crate) mod experts;
pub(crate) mod from_body;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod recurrent;

pub(crate) use crate::fuse::list::attention::{Attend, HeadNorm, RopeAppend};
pub(crate) use crate::fuse::list::experts::{CombineInput, ExpertsInner, ExpertsSum, FusedRouting};
pub(crate) use crate::fuse::list::linear::{Epilogue, InlineNorm, Linear};
pub(crate) use crate::fuse::list::mla::{MlaAppend, MlaAttention, MlaPrepare, PerHeadLinear};
pub(crate) use crate::fuse::list::recurrent::{Convolve, DeltaRule, Gated};
use forge_ir::{BodyId, ParamId};
use forge_ops::{Format, RopeParameters};
pub(crate) use forge_ops::{Function, KvSource, UnaryOp};

/// A value of a list. Numbers below `body.nodes.len() + 1` are the body's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Value(pub(crate) usize);

impl Value {
    /// The body's input.
    pub(crate) const INPUT: Value = Value(0);
}

/// The operations of one body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fused {
    /// The body.
    pub(crate) body: BodyId,
    /// Operations in order of evaluation.
    pub(crate) operations: Vec<Operation>,
    /// Width of every value, in elements.
    pub(crate) widths: Vec<usize>,
    /// Number format of every parameter; f32 for vectors.
    pub(crate) formats: Vec<Format>,
}

/// One operation. It computes `output` from `inputs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// Name of the step.
    pub(crate) name: String,
    /// Kind and parameters.
    pub(crate) kind: Kind,
    /// Input values.
    pub(crate) inputs: Vec<Value>,
    /// Output value.
    pub(crate) output: Value,
}

/// The kinds of operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Embedding lookup.
    Embed {
        /// Embedding table.
        table: ParamId,
        /// Factor applied to the looked-up row.
        scale: f32,
        /// Output for the deferred norm that reads the row.
        next_norm: Option<Gain>,
    },
    /// Learned position embedding, added in place.
    PositionEmbedding {
        /// Position table.
        table: ParamId,
    },
    /// LayerNorm.
    LayerNorm {
        /// Factor of the result.
        gain: ParamId,
        /// Added to the result.
        bias: Option<ParamId>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// RMSNorm of each of `parts` equal parts.
    Norm {
        /// `None` if folded into the weights that read the result.
        gain: Option<ParamId>,
        /// Number of parts of a value.
        parts: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// Norm of the first input, added to the second in place.
    NormAdd(NormAdd),
    /// Linear: several weights applied to one input.
    Linear(Linear),
    /// Columns of a wider value; no dispatch.
    Slice {
        /// First column.
        first: usize,
    },
    /// RoPE on every head.
    Rope {
        /// Number of heads.
        heads: usize,
        /// Frequencies and pairing.
        rope: RopeParameters,
    },
    /// Writes keys and values to the KV cache. It has no output value.
    Append {
        /// The cache.
        cache: ParamId,
    },
    /// RoPE and optional QK-norm on concatenated q, k, v; appends k and v to the KV cache. The output is the
    /// rotated queries.
    RopeAppend(RopeAppend),
    /// Attention over a KV cache that already contains the rows' own keys and values, or that a prologue
    /// appends to.
    Attend(Attend),
    /// Per-head linear: each head's matrix times its part of the value.
    PerHeadLinear(PerHeadLinear),
    /// Writes latents and RoPE keys to the MLA cache.
    MlaAppend(MlaAppend),
    /// MLA attention in absorbed form.
    MlaAttention(MlaAttention),
    /// Causal depthwise convolution.
    Convolve(Convolve),
    /// Gated delta rule: updates the recurrent state with the row and reads it out.
    DeltaRule(DeltaRule),
    /// Top-k routing: expert indices and weights of each row (its routes).
    Route(FusedRouting),
    /// Expert gate and up projections with their activation.
    ExpertsInner(ExpertsInner),
    /// Expert down projections, weighted and summed.
    ExpertsSum(ExpertsSum),
    /// Elementwise function.
    Elementwise(Function),
    /// Multiplication by a scalar weight.
    ScaleBy {
        /// The scalar.
        factor: ParamId,
    },
    /// The first input is the result; the second becomes the per-layer inputs. No dispatch.
    StorePerLayerInputs,
    /// Columns of the per-layer inputs.
    PerLayerInput,
    /// An operation without a kernel.
    Unplanned,
}

/// A norm whose result is added to a value in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormAdd {
    /// Factor of the normalized value.
    pub(crate) gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// Scalar weight that multiplies the sum.
    pub(crate) factor: Option<ParamId>,
    /// Output for the deferred norm that reads the sum.
    pub(crate) next_norm: Option<Gain>,
}

/// Gain of a deferred norm, seen from the producer of the norm's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    /// Folded into the weights that read the result.
    Folded,
    /// Parameter of the producer's own body.
    Own(ParamId),
    /// Parameter of the body that is applied next.
    Next,
}

impl Operation {
    /// Whether it reads the value as its first input and as no other.
    pub(crate) fn reads_first(&self, value: Value) -> bool {
        let reads = self.inputs.iter().filter(|input| **input == value).count();
        self.inputs.first() == Some(&value) && reads == 1
    }
}

impl Kind {
    /// Whether it adds its result to its last input in place and has no other output.
    pub(crate) fn adds(&self) -> bool {
        match self {
            Kind::Linear(linear) => linear.ending == Epilogue::Add,
            Kind::NormAdd(norm) => norm.next_norm.is_none(),
            Kind::ExpertsSum(sum) => sum.ending == CombineInput::Add,
            _ => false,
        }
    }

    /// Makes it add its result to its last input in place.
    pub(crate) fn add(&mut self) {
        match self {
            Kind::Linear(linear) => linear.ending = Epilogue::Add,
            Kind::ExpertsSum(sum) => sum.ending = CombineInput::Add,
            _ => {}
        }
    }

    /// Makes it also write what the deferred norm of its sum needs.
    pub(crate) fn write_squares(&mut self, gain: Gain) {
        match self {
            Kind::Embed { next_norm, .. } => *next_norm = Some(gain),
            Kind::NormAdd(norm) => norm.next_norm = Some(gain),
            Kind::Linear(linear) => linear.ending = Epilogue::AddSquares(gain),
            Kind::ExpertsSum(sum) => sum.ending = CombineInput::AddSquares(gain),
            _ => {}
        }
    }

    /// The matrices that it multiplies its first input by, if it is a matrix multiplication.
    pub(crate) fn matrices(&self) -> Option<Vec<ParamId>> {
        match self {
            Kind::Linear(linear) => Some(linear.parts.iter().map(|part| part.0).collect()),
            Kind::ExpertsInner(inner) => Some(inner.stacks()),
            _ => None,
        }
    }

    /// Whether it performs the division of a deferred norm on its first input.
    pub(crate) fn divides(&self) -> bool {
        match self {
            Kind::Linear(linear) => linear.norm.is_some() || linear.own_norm.is_some(),
            Kind::ExpertsInner(inner) => inner.norm.is_some(),
            _ => false,
        }
    }

    /// Makes it perform the division of its input's norm.
    pub(crate) fn divide(&mut self, epsilon: f32) {
        match self {
            Kind::Linear(linear) => linear.norm = Some(epsilon),
            Kind::ExpertsInner(inner) => inner.norm = Some(epsilon),
            _ => {}
        }
    }

    /// Folds a gain into its matrices.
    pub(crate) fn fold(&mut self, gain: Option<ParamId>) {
        match self {
            Kind::Linear(linear) => linear.folded = gain,
            Kind::ExpertsInner(inner) => inner.folded = gain,
            _ => {}
        }
    }
}

impl Fused {
    /// Whether the value selects experts, directly or through elementwise operations.
    pub(crate) fn chooses(&self, value: Value) -> bool {
        let mut readers = self.operations.iter().filter(|operation| operation.inputs.contains(&value));
        readers.any(|reader| match &reader.kind {
            Kind::Route(_) => true,
            Kind::ExpertsInner(inner) => inner.choice.is_some() && reader.inputs[1] == value,
            Kind::Elementwise(_) | Kind::ScaleBy { .. } | Kind::Slice { .. } => self.chooses(reader.output),
            _ => false,
        })
    }

    /// Adds a value.
    pub(crate) fn new_value(&mut self, width: usize) -> Value {
        self.widths.push(width);
        Value(self.widths.len() - 1)
    }

    /// The body's output: the value of the last operation.
    pub(crate) fn result(&self) -> Option<Value> {
        self.operations.last().map(|operation| operation.output)
    }

    /// Whether the value is the body's output, also if per-layer inputs are stored after it.
    pub(crate) fn flows_out(&self, value: Value) -> bool {
        match self.operations.last() {
            Some(Operation { kind: Kind::StorePerLayerInputs, inputs, .. }) if inputs[0] == value => true,
            last => last.is_some_and(|last| last.output == value),
        }
    }

    /// Whether the value becomes the per-layer inputs.
    pub(crate) fn is_per_layer_inputs(&self, value: Value) -> bool {
        self.operations
            .last()
            .is_some_and(|last| last.kind == Kind::StorePerLayerInputs && last.inputs[1] == value)
    }

    /// Number of readers of the value. The body's output counts as one.
    pub(crate) fn uses(&self, value: Value) -> usize {
        self.readers(value).count() + usize::from(self.result() == Some(value))
    }

    /// Operations that read the value.
    pub(crate) fn readers(&self, value: Value) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(move |operation| operation.inputs.contains(&value))
    }

    /// Index of the operation that defines the value.
    pub(crate) fn definition(&self, value: Value) -> Option<usize> {
        self.operations.iter().position(|operation| operation.output == value)
    }

    /// Index of the operation that defines the value, if the value has one reader.
    pub(crate) fn definition_for_one(&self, value: Value) -> Option<usize> {
        self.definition(value).filter(|_| self.uses(value) == 1)
    }

    /// Index and weight of the unfused, single-reader projection that defines the value, if there is one.
    pub(crate) fn plain_projection(&self, value: Value) -> Option<(usize, (ParamId, Option<ParamId>))> {
        self.plain_projection_of_uses(value, 1)
    }

    /// [`Fused::plain_projection`] for a value with this number of readers.
    pub(crate) fn plain_projection_of_uses(
        &self,
        value: Value,
        uses: usize,
    ) -> Option<(usize, (ParamId, Option<ParamId>))> {
        let place = self.definition(value).filter(|_| self.uses(value) == uses)?;
        match &self.operations[place].kind {
            Kind::Linear(Linear { parts, unary: None, ending: Epilogue::Store, .. }) => match parts[..] {
                [part] => Some((place, part)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Index of the operation that defines the value, if its result can be added to another value instead. It
    /// is a single-reader projection of one weight, with or without a unary epilogue, or a single-reader sum
    /// over experts.
    pub(crate) fn stored_product(&self, value: Value) -> Option<usize> {
        let place = self.definition(value)?;
        let stored = match &self.operations[place].kind {
            Kind::Linear(linear) => linear.parts.len() == 1 && linear.ending == Epilogue::Store,
            Kind::ExpertsSum(sum) => sum.ending == CombineInput::Store,
            _ => false,
        };
        (stored && self.uses(value) == 1).then_some(place)
    }

    /// Number format of a parameter.
    pub(crate) fn format(&self, param: ParamId) -> Format {
        self.formats.get(param.0).copied().unwrap_or(Format::F32)
    }
}
