//! How the model's weights become tensors of the weight file: plain data, made by the planner, carried out by the
//! weight writer, and undone by the reader that checks what was written.

use crate::format::Format;
use crate::graph::WeightId;
use serde::Serialize;

/// One weight of the weight file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Packed {
    /// Its name there, `layers.0.qkv`.
    pub name: String,
    /// Its number format; vectors are f32.
    pub format: Format,
    /// `[width]` or `[rows, columns]`, before rows are padded to whole groups.
    pub shape: Vec<usize>,
    /// How the parts lie in it.
    pub layout: Layout,
    /// The weights of the graph that it is made of, all of the same width but for blocks.
    pub parts: Vec<WeightId>,
    /// A vector folded into it: what is stored is `W · diag(gain)`, column c of every part times element c. The vector is
    /// not stored by itself; whatever reads it besides must be content with ones.
    pub gain: Option<WeightId>,
    /// The records that it is a part of, if it is the matrices of experts; then it is no tensor by itself.
    pub records: Option<Records>,
}

/// The records of a layer's experts: all weights that name the same, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Records {
    /// The tensor that they are, `layers.0.experts`.
    pub tensor: String,
    /// How many: experts, of each of which a weight has as many rows.
    pub experts: usize,
}

/// How the parts of a packed weight lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// One below the other; vectors end to end.
    Rows,
    /// Parts come in pairs: row i of either in turn, and pairs one below the other; for vectors, element i.
    Alternate,
    /// One below the other; of a part that is wider than the matrix, blocks of as many columns, one below the other.
    Blocks,
}
