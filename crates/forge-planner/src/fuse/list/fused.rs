//! The list of a body's operations, and the queries that preconditions of rules need.

use crate::fuse::list::experts::CombineInput;
use crate::fuse::list::kind::Kind;
use crate::fuse::list::linear::{Epilogue, Linear};
use crate::fuse::list::value::Value;
use forge_ir::{BodyId, ParamId};
use forge_ops::Format;

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

impl Operation {
    /// Whether it reads the value as its first input and as no other.
    pub(crate) fn reads_first(&self, value: Value) -> bool {
        let reads = self.inputs.iter().filter(|input| **input == value).count();
        self.inputs.first() == Some(&value) && reads == 1
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
