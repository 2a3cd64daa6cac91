//! The planner's own list of operations: what rules rewrite.
//!
//! A [`Fused`] list starts as one entry for each node of a body, attention as two (append to the cache, attend), of either kind,
//! and experts as two (up to their last projections, and these), and ends as one entry for each dispatch. Values are numbered like the body's; what is new takes the next free number. Every
//! kind of operation but one has a kernel of its own, so a list is a program before any rule has touched it, and after each.

pub(crate) mod attention;
pub(crate) mod experts;
pub(crate) mod from_body;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod recurrent;

pub(crate) use crate::fuse::list::attention::{Attend, HeadNorm, RotateAppend};
pub(crate) use crate::fuse::list::experts::{CombineInput, ExpertsInner, ExpertsSum, FusedRouting};
pub(crate) use crate::fuse::list::linear::{Epilogue, InlineNorm, Linear};
pub(crate) use crate::fuse::list::mla::{EachHead, LatentAppend, LatentAttend, LatentPrepare};
pub(crate) use crate::fuse::list::recurrent::{Convolve, DeltaRule, Gated};
use forge_ir::{BodyId, Format, ParamId, Rotation};
pub(crate) use forge_kernels::spec::{Function, KvSource, UnaryOp};

/// A value of a list; below `body.nodes.len() + 1` it is the body's value of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Value(pub(crate) usize);

impl Value {
    /// What flows into a body.
    pub(crate) const INPUT: Value = Value(0);
}

/// The operations of one body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fused {
    /// Which body.
    pub(crate) body: BodyId,
    /// In order of evaluation.
    pub(crate) operations: Vec<Operation>,
    /// Width of every value.
    pub(crate) widths: Vec<usize>,
    /// What every parameter's matrix is stored as; f32 for what is no matrix.
    pub(crate) formats: Vec<Format>,
}

/// One operation: it defines `output` from `inputs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// What the step is called.
    pub(crate) name: String,
    /// What it does.
    pub(crate) kind: Kind,
    /// From which values.
    pub(crate) inputs: Vec<Value>,
    /// To which value.
    pub(crate) output: Value,
}

/// The kinds of operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The table's row.
    Embed {
        /// The table.
        table: ParamId,
        /// Multiplies what is looked up.
        scale: f32,
        /// What it leaves for the deferred norm that reads the row.
        leaves: Option<Gain>,
    },
    /// The table's row at each row's position, added in place.
    Place {
        /// The table.
        table: ParamId,
    },
    /// Layer norm.
    LayerNorm {
        /// Multiplies the result.
        gain: ParamId,
        /// Added to it.
        bias: Option<ParamId>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Root-mean-square norm of each of some equal parts.
    Norm {
        /// None where it is folded into the weights that read the result.
        gain: Option<ParamId>,
        /// Of a value.
        parts: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// The norm of the first input, added to the second in place.
    NormAdd(NormAdd),
    /// Several weights applied to one input at once.
    Project(Linear),
    /// Columns of a wider value; no work.
    Slice {
        /// First column.
        first: usize,
    },
    /// Every head turned.
    Rotate {
        /// Heads.
        heads: usize,
        /// How they turn.
        rotation: Rotation,
    },
    /// Keys and values to the cache. Its output is nothing.
    Append {
        /// Where they go.
        cache: ParamId,
    },
    /// Queries, prepared, from queries, keys and values side by side; keys and values go to the cache.
    RotateAppend(RotateAppend),
    /// Attention over a cache that already holds the rows' own keys and values, or prepares them itself.
    Attend(Attend),
    /// Every head's own matrix times its part of a value.
    EachHead(EachHead),
    /// Latents and turned keys to the cache.
    LatentAppend(LatentAppend),
    /// Attention over latents, which all heads share.
    LatentAttend(LatentAttend),
    /// Each channel's last values, times its taps.
    Convolve(Convolve),
    /// What memories say to a query when they have learnt the row.
    DeltaRule(DeltaRule),
    /// The experts of each row and their weights, which are its routes.
    Route(FusedRouting),
    /// What experts make of a row, up to their last projections.
    ExpertsInner(ExpertsInner),
    /// The sum of what they make of it.
    ExpertsSum(ExpertsSum),
    /// A function of each number.
    Elementwise(Function),
    /// Every number times a weight of one.
    ScaleBy {
        /// The weight.
        factor: ParamId,
    },
    /// The first input goes on, the second becomes the aside; no work.
    Leave,
    /// Columns of the aside.
    Take,
    /// What has no kernel yet.
    Unplanned,
}

/// A norm that is added to a value in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormAdd {
    /// Multiplies what is added.
    pub(crate) gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
    /// A weight of one number, which multiplies the sum.
    pub(crate) factor: Option<ParamId>,
    /// What it leaves for the deferred norm that reads the sum.
    pub(crate) leaves: Option<Gain>,
}

/// The gain of a deferred norm, as the producer of what is normed knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    /// It is in the weights that read the result.
    Folded,
    /// It is a parameter of the producer's own body.
    Own(ParamId),
    /// It belongs to whatever body is applied next.
    Next,
}

impl Operation {
    /// Whether it reads the value as its first input, and nowhere else.
    pub(crate) fn reads_first(&self, value: Value) -> bool {
        let reads = self.inputs.iter().filter(|input| **input == value).count();
        self.inputs.first() == Some(&value) && reads == 1
    }
}

impl Kind {
    /// Whether it adds its result to its last input, in place, and leaves nothing else.
    pub(crate) fn adds(&self) -> bool {
        match self {
            Kind::Project(project) => project.ending == Epilogue::Add,
            Kind::NormAdd(norm) => norm.leaves.is_none(),
            Kind::ExpertsSum(sum) => sum.ending == CombineInput::Add,
            _ => false,
        }
    }

    /// Makes it add its result to its last input.
    pub(crate) fn add(&mut self) {
        match self {
            Kind::Project(project) => project.ending = Epilogue::Add,
            Kind::ExpertsSum(sum) => sum.ending = CombineInput::Add,
            _ => {}
        }
    }

    /// Makes it leave what the deferred norm of its sum needs.
    pub(crate) fn leave(&mut self, gain: Gain) {
        match self {
            Kind::Embed { leaves, .. } => *leaves = Some(gain),
            Kind::NormAdd(norm) => norm.leaves = Some(gain),
            Kind::Project(project) => project.ending = Epilogue::AddSquares(gain),
            Kind::ExpertsSum(sum) => sum.ending = CombineInput::AddSquares(gain),
            _ => {}
        }
    }

    /// The matrices that it multiplies its first input by, if that is what it does with it.
    pub(crate) fn matrices(&self) -> Option<Vec<ParamId>> {
        match self {
            Kind::Project(project) => Some(project.parts.iter().map(|part| part.0).collect()),
            Kind::ExpertsInner(inner) => Some(inner.stacks()),
            _ => None,
        }
    }

    /// Whether the division of its first input's norm is left to it.
    pub(crate) fn divides(&self) -> bool {
        match self {
            Kind::Project(project) => project.norm.is_some() || project.own_norm.is_some(),
            Kind::ExpertsInner(inner) => inner.norm.is_some(),
            _ => false,
        }
    }

    /// Leaves that to it.
    pub(crate) fn divide(&mut self, epsilon: f32) {
        match self {
            Kind::Project(project) => project.norm = Some(epsilon),
            Kind::ExpertsInner(inner) => inner.norm = Some(epsilon),
            _ => {}
        }
    }

    /// Folds a gain into its matrices.
    pub(crate) fn fold(&mut self, gain: Option<ParamId>) {
        match self {
            Kind::Project(project) => project.folded = gain,
            Kind::ExpertsInner(inner) => inner.folded = gain,
            _ => {}
        }
    }
}

impl Fused {
    /// Whether experts are chosen by a value, be it after some function of each number.
    pub(crate) fn chooses(&self, value: Value) -> bool {
        let mut readers = self.operations.iter().filter(|operation| operation.inputs.contains(&value));
        readers.any(|reader| match &reader.kind {
            Kind::Route(_) => true,
            Kind::ExpertsInner(inner) => inner.choice.is_some() && reader.inputs[1] == value,
            Kind::Elementwise(_) | Kind::ScaleBy { .. } | Kind::Slice { .. } => self.chooses(reader.output),
            _ => false,
        })
    }

    /// A value that did not exist.
    pub(crate) fn new_value(&mut self, width: usize) -> Value {
        self.widths.push(width);
        Value(self.widths.len() - 1)
    }

    /// What flows out: the value of the last operation.
    pub(crate) fn result(&self) -> Option<Value> {
        self.operations.last().map(|operation| operation.output)
    }

    /// Whether a value is what flows out, though the aside may be left after it.
    pub(crate) fn flows_out(&self, value: Value) -> bool {
        match self.operations.last() {
            Some(Operation { kind: Kind::Leave, inputs, .. }) if inputs[0] == value => true,
            last => last.is_some_and(|last| last.output == value),
        }
    }

    /// Whether a value is what is left for the layers.
    pub(crate) fn is_aside(&self, value: Value) -> bool {
        self.operations.last().is_some_and(|last| last.kind == Kind::Leave && last.inputs[1] == value)
    }

    /// How many operations read the value; the body's result counts as read.
    pub(crate) fn uses(&self, value: Value) -> usize {
        self.readers(value).count() + usize::from(self.result() == Some(value))
    }

    /// The operations that read the value.
    pub(crate) fn readers(&self, value: Value) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(move |operation| operation.inputs.contains(&value))
    }

    /// The place of the operation that defines the value.
    pub(crate) fn definition(&self, value: Value) -> Option<usize> {
        self.operations.iter().position(|operation| operation.output == value)
    }

    /// The same, if the value is read once.
    pub(crate) fn definition_for_one(&self, value: Value) -> Option<usize> {
        self.definition(value).filter(|_| self.uses(value) == 1)
    }

    /// The place and parts of the plain, single-use projection that defines the value, if that is what does.
    pub(crate) fn plain_projection(&self, value: Value) -> Option<(usize, (ParamId, Option<ParamId>))> {
        self.plain_projection_of_uses(value, 1)
    }

    /// The same, read as often as this.
    pub(crate) fn plain_projection_of_uses(
        &self,
        value: Value,
        uses: usize,
    ) -> Option<(usize, (ParamId, Option<ParamId>))> {
        let place = self.definition(value).filter(|_| self.uses(value) == uses)?;
        match &self.operations[place].kind {
            Kind::Project(Linear { parts, each: None, ending: Epilogue::Store, .. }) => match parts[..] {
                [part] => Some((place, part)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The place of the single-use projection of one weight that defines the value, with a function of each result or
    /// without one, or of the single-use sum over experts: what might as well be added to another value.
    pub(crate) fn stored_product(&self, value: Value) -> Option<usize> {
        let place = self.definition(value)?;
        let stored = match &self.operations[place].kind {
            Kind::Project(project) => project.parts.len() == 1 && project.ending == Epilogue::Store,
            Kind::ExpertsSum(sum) => sum.ending == CombineInput::Store,
            _ => false,
        };
        (stored && self.uses(value) == 1).then_some(place)
    }

    /// What a parameter's matrix is stored as.
    pub(crate) fn format(&self, param: ParamId) -> Format {
        self.formats.get(param.0).copied().unwrap_or(Format::F32)
    }
}
