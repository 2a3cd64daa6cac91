//! The plan of the weight file: which weights become which tensors. The planner makes it, the weight writer
//! carries it out, and the reader inverts it.

use crate::graph::draft::WeightId;
use forge_ops::Format;
use serde::Serialize;

/// One weight of the weight file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Packed {
    /// Name in the file, such as `layers.0.qkv`.
    pub name: String,
    /// Number format; vectors are f32.
    pub format: Format,
    /// `[width]` or `[rows, columns]`, without row padding.
    pub shape: Vec<usize>,
    /// How the parts are arranged.
    pub layout: Layout,
    /// Weights of the graph that it consists of, of equal width except with [`Layout::Blocks`].
    pub parts: Vec<WeightId>,
    /// A norm gain folded into it: the stored matrix is `W · diag(gain)`. The gain is not stored, so every
    /// other reader of it must accept ones.
    pub gain: Option<WeightId>,
    /// The expert records that contain it, if it is an expert stack. It is then not a tensor of its own.
    pub records: Option<Records>,
}

/// The expert records of a layer. All weights with the same tensor name belong to them, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Records {
    /// Name of the tensor, such as `layers.0.experts`.
    pub tensor: String,
    /// Number of experts. Each has an equal number of rows of every weight.
    pub experts: usize,
}

/// How the parts of a packed weight are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Stacked: one after the other.
    Rows,
    /// Interleaved in pairs: row i of the first, row i of the second, and so on; for vectors, elements.
    Alternate,
    /// Stacked; a part wider than the matrix is split into blocks of its width, which are stacked.
    Blocks,
}
