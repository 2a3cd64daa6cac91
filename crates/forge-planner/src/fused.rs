//! The planner's own list of operations: what rules rewrite.
//!
//! A [`Fused`] list starts as one entry for each node of a body and ends as one entry for each dispatch. Values are
//! numbered like the body's; rules that need new ones take the next free number.

use forge_ir::{Activation, Body, BodyId, Layout, Op, ParamId, Rotation};

/// A value of a list; below `body.nodes.len() + 1` it is the body's value of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Value(pub(crate) usize);

/// The operations of one body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fused {
    /// Which body.
    pub(crate) body: BodyId,
    /// In order of evaluation.
    pub(crate) operations: Vec<Operation>,
    /// Width of every value.
    pub(crate) widths: Vec<usize>,
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

/// What becomes of a projection's result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ending {
    /// It is the output.
    Store,
    /// It is added to the second input, in place.
    Add,
    /// Its outputs alternate gate and up.
    Gate(Activation),
}

/// The kinds of operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A node that no rule has touched.
    Node(Op),
    /// Several weights applied to one input at once.
    Project {
        /// Each weight with its bias.
        parts: Vec<(ParamId, Option<ParamId>)>,
        /// How the weights lie in one matrix.
        layout: Layout,
        /// What becomes of the result.
        ending: Ending,
    },
    /// Columns of a wider value; no work.
    Slice {
        /// First column.
        first: usize,
    },
    /// Rotated queries, from queries, keys and values side by side; keys and values go to the cache.
    RotateAppend {
        /// Query heads.
        query_heads: usize,
        /// Of queries and keys.
        rotation: Rotation,
        /// Where keys and values go.
        cache: ParamId,
    },
    /// Attention of rotated queries over a cache that already holds the rows' own keys and values.
    Attend {
        /// Query heads.
        query_heads: usize,
        /// Multiplies q·k.
        scale: f32,
        /// Where keys and values are.
        cache: ParamId,
    },
}

impl Fused {
    /// One operation for each node.
    pub(crate) fn of(id: BodyId, body: &Body, widths: Vec<usize>) -> Fused {
        let operations = body.nodes.iter().enumerate().map(|(index, node)| Operation {
            name: node.name.clone(),
            kind: match &node.op {
                Op::Linear { weight, bias } => Kind::Project {
                    parts: vec![(*weight, *bias)],
                    layout: Layout::Rows,
                    ending: Ending::Store,
                },
                op => Kind::Node(op.clone()),
            },
            inputs: node.inputs.iter().map(|value| Value(value.0)).collect(),
            output: Value(index + 1),
        });
        Fused { body: id, operations: operations.collect(), widths }
    }

    /// A value that did not exist.
    pub(crate) fn new_value(&mut self, width: usize) -> Value {
        self.widths.push(width);
        Value(self.widths.len() - 1)
    }

    /// How many operations read the value; the body's result counts as read.
    pub(crate) fn uses(&self, value: Value) -> usize {
        let read = self
            .operations
            .iter()
            .flat_map(|operation| &operation.inputs)
            .filter(|input| **input == value)
            .count();
        let last = self.operations.last().is_some_and(|operation| operation.output == value);
        read + usize::from(last)
    }

    /// The place of the operation that defines the value.
    pub(crate) fn definition(&self, value: Value) -> Option<usize> {
        self.operations.iter().position(|operation| operation.output == value)
    }

    /// The place and parts of the plain, single-use projection that defines the value, if that is what does.
    pub(crate) fn plain_projection(&self, value: Value) -> Option<(usize, (ParamId, Option<ParamId>))> {
        let place = self.definition(value)?;
        match &self.operations[place].kind {
            Kind::Project { parts, layout: Layout::Rows, ending: Ending::Store }
                if parts.len() == 1 && self.uses(value) == 1 =>
            {
                Some((place, parts[0]))
            }
            _ => None,
        }
    }
}
