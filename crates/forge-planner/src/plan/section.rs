//! Sections: bodies as planned, with their weights and states.

use crate::plan::kv_cache::Ring;
use crate::plan::regime::Schedule;
use crate::plan::step::Step;
use forge_ops::Format;
use serde::Serialize;

/// One application of a section.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Application {
    /// Index of the section.
    pub section: usize,
    /// Index into the plan's weights, for each field of the section.
    pub weights: Vec<usize>,
    /// Index of the cache that is written or read. Caches are numbered in the order of first use.
    pub cache: Option<usize>,
    /// First column of the per-layer inputs that this layer reads, if it reads any.
    pub first: Option<usize>,
}

/// A body as planned: its steps, executed once, or once for each layer that shares it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// `embed`, `layer`, `head`.
    pub name: String,
    /// Weights that the section reads.
    pub fields: Vec<Field>,
    /// Cache that the section writes or reads, if any.
    pub state: Option<State>,
    /// Number of columns of the per-layer inputs that the section reads, if any.
    pub per_layer_input_columns: Option<usize>,
    /// Recurrent states of the section. Their size does not depend on the context length.
    pub recurrent_states: Vec<RecurrentState>,
    /// Steps of a decode pass, in order.
    pub decode: Vec<Step>,
    /// Steps of a batch pass, in order.
    pub batch: Vec<Step>,
}

impl Section {
    /// The steps of a schedule, in order.
    pub fn steps(&self, schedule: Schedule) -> &[Step] {
        match schedule {
            Schedule::Decode => &self.decode,
            Schedule::Batch => &self.batch,
        }
    }

    /// Mutable access to [`Section::steps`].
    pub(crate) fn steps_mut(&mut self, schedule: Schedule) -> &mut Vec<Step> {
        match schedule {
            Schedule::Decode => &mut self.decode,
            Schedule::Batch => &mut self.batch,
        }
    }
}

/// The KV cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// Number of KV heads.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Whether values are stored besides keys. False for MLA, where a position has one line that all heads
    /// share: a latent and a RoPE key.
    pub values: bool,
    /// Ring buffer of a sliding window. `None`: every position is kept.
    pub ring: Option<Ring>,
}

/// Recurrent state of one layer: f32 elements of each slot, independent of the context length. Kernels read
/// zeros at position 0, so the initial content does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecurrentState {
    /// Name of the body's parameter.
    pub name: String,
    /// Shape for one slot.
    pub shape: Vec<usize>,
}

impl RecurrentState {
    /// Elements of one slot.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A weight that a section reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    /// Role, such as `qkv`.
    pub name: String,
    /// Kind and shape.
    pub kind: FieldKind,
    /// Description of its parts: `2048 query rows, 1024 key rows, 1024 value rows`.
    pub comment: String,
    /// Whether it belongs to the next application, and is only read by this one.
    pub of_next: bool,
}

/// Kind and shape of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// A matrix.
    Matrix {
        /// Number format.
        format: Format,
        /// Outputs (rows).
        rows: usize,
        /// Inputs (columns).
        columns: usize,
    },
    /// One matrix for each expert, in records of the weight file.
    Experts {
        /// Number of experts.
        experts: usize,
        /// Number format.
        format: Format,
        /// Outputs (rows) of each expert.
        rows: usize,
        /// Inputs (columns).
        columns: usize,
    },
    /// An f32 vector.
    Vector {
        /// Number of elements.
        width: usize,
    },
}
