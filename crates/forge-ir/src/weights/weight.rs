//! Weights: a tensor of the checkpoint, a slice of one, or a stack of several.

use crate::weights::blocks::Blocks;
use crate::weights::encoding::Encoding;
use forge_ops::Format;
use serde::Serialize;

/// A weight of the model, stored as a tensor of the checkpoint, a slice of one, or several tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// Tensor name in the checkpoint. For a stack with one tensor per matrix, `*` stands for the index.
    pub tensor: String,
    /// How a stack is stored; `None` if it is not a stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Stack>,
    /// The slice of the tensor, or of each matrix of a stack; `None` for all of it.
    pub cut: Option<WeightSlice>,
    /// `[width]`, `[rows, columns]` or, for a stack, `[matrices, rows, columns]`.
    pub shape: Vec<usize>,
    /// Number format in the checkpoint; with an encoding, the format that its values are repacked or
    /// dequantized to.
    pub format: Format,
    /// How the checkpoint stores the matrix in several tensors; `None` for all formats that forge has itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// ggml block format of the tensor's rows, whose values are in `format`; `None` for plain values and other
    /// quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
    /// Whether 1 is added to the stored values, as for the norm gains of some models. Rows from
    /// [`crate::WeightRows`] include it.
    pub plus_one: bool,
}

/// A slice of a tensor. Some checkpoints store several weights as one tensor; some store matrices transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightSlice {
    /// Rows from `first` on, of a tensor of `of` rows; elements of a vector.
    Rows {
        /// First row.
        first: usize,
        /// Rows of the tensor.
        of: usize,
    },
    /// Columns from `first` on, of a tensor of `of` columns; each is a row of the weight.
    Columns {
        /// First column.
        first: usize,
        /// Columns of the tensor.
        of: usize,
    },
    /// `rows` rows from `first` on, of each group of `of` rows, as when a checkpoint interleaves two weights
    /// by head.
    Groups {
        /// First row in every group.
        first: usize,
        /// Rows taken from every group.
        rows: usize,
        /// Rows of a group.
        of: usize,
    },
    /// `rows` rows from `first` on, of a tensor of `of` rows, repeated until the weight has all its rows.
    Repeated {
        /// First row.
        first: usize,
        /// Rows that are repeated.
        rows: usize,
        /// Rows of the tensor.
        of: usize,
    },
    /// `columns` columns from `first` on, of each group of `of` columns; each is a row of the weight.
    ColumnGroups {
        /// First column in every group.
        first: usize,
        /// Columns taken from every group.
        columns: usize,
        /// Columns of a group.
        of: usize,
    },
}

impl WeightSlice {
    /// The tensor's row, column or vector element that is row `row` of the weight.
    pub fn place(self, row: usize) -> usize {
        match self {
            WeightSlice::Rows { first, .. } | WeightSlice::Columns { first, .. } => first + row,
            WeightSlice::Repeated { first, rows, .. } => first + row % rows,
            WeightSlice::Groups { first, rows: each, of }
            | WeightSlice::ColumnGroups { first, columns: each, of } => row / each * of + first + row % each,
        }
    }

    /// Rows or columns of the tensor, or of each group.
    pub fn of(self) -> usize {
        match self {
            WeightSlice::Rows { of, .. }
            | WeightSlice::Columns { of, .. }
            | WeightSlice::Groups { of, .. }
            | WeightSlice::Repeated { of, .. }
            | WeightSlice::ColumnGroups { of, .. } => of,
        }
    }

    /// Whether it transposes columns to rows.
    pub fn transposes(self) -> bool {
        matches!(self, WeightSlice::Columns { .. } | WeightSlice::ColumnGroups { .. })
    }

    /// The same slice of a vector that has an element per row of the weight.
    pub fn of_elements(self) -> WeightSlice {
        match self {
            WeightSlice::Columns { first, of } => WeightSlice::Rows { first, of },
            WeightSlice::ColumnGroups { first, columns: rows, of } => WeightSlice::Groups { first, rows, of },
            rows @ (WeightSlice::Rows { .. } | WeightSlice::Groups { .. } | WeightSlice::Repeated { .. }) => {
                rows
            }
        }
    }
}

impl Weight {
    /// Names of the tensors that contain it.
    pub fn tensors(&self) -> impl Iterator<Item = String> + '_ {
        let matrices = if self.stack == Some(Stack::Apart) { self.matrices() } else { 1 };
        (0..matrices).map(|index| self.tensor_of(index))
    }

    /// Name of the tensor that contains a matrix of a stack; without a stack, of the tensor.
    pub fn tensor_of(&self, matrix: usize) -> String {
        match self.stack {
            Some(Stack::Apart) => self.tensor.replacen('*', &matrix.to_string(), 1),
            Some(Stack::Whole) | None => self.tensor.clone(),
        }
    }

    /// Full shape of each tensor.
    pub fn tensor_shape(&self) -> Vec<usize> {
        let shape = self.matrix_shape();
        let matrix = match (self.cut, shape) {
            (None, shape) => shape.to_vec(),
            (Some(WeightSlice::Rows { of, .. } | WeightSlice::Repeated { of, .. }), shape) => {
                [&[of], &shape[shape.len().min(1)..]].concat()
            }
            (Some(WeightSlice::Groups { rows, of, .. }), shape) => {
                let groups = shape.first().map_or(0, |all| all / rows.max(1));
                [&[groups * of], &shape[shape.len().min(1)..]].concat()
            }
            (Some(WeightSlice::Columns { of, .. }), shape) => vec![shape.last().copied().unwrap_or(0), of],
            (Some(WeightSlice::ColumnGroups { columns, of, .. }), shape) => {
                let groups = shape.first().map_or(0, |all| all / columns.max(1));
                vec![shape.last().copied().unwrap_or(0), groups * of]
            }
        };
        match self.stack {
            Some(Stack::Whole) => [&[self.matrices()], &matrix[..]].concat(),
            Some(Stack::Apart) | None => matrix,
        }
    }

    /// The rows, columns or vector elements of the tensor that belong to the weight: of each group if there
    /// are groups, and of each matrix of a stack.
    pub fn part(&self) -> std::ops::Range<usize> {
        let length = self.matrix_shape().first().copied().unwrap_or(0);
        match self.cut {
            None => 0..length,
            Some(WeightSlice::Rows { first, .. } | WeightSlice::Columns { first, .. }) => {
                first..first + length
            }
            Some(
                WeightSlice::Groups { first, rows: each, .. }
                | WeightSlice::Repeated { first, rows: each, .. }
                | WeightSlice::ColumnGroups { first, columns: each, .. },
            ) => first..first + each,
        }
    }

    /// Number of matrices of a stack; 1 without a stack.
    pub fn matrices(&self) -> usize {
        self.stack.and(self.shape.first()).copied().unwrap_or(1)
    }

    /// Shape of each matrix of a stack; without a stack, of the weight.
    pub fn matrix_shape(&self) -> &[usize] {
        &self.shape[self.shape.len().min(usize::from(self.stack.is_some()))..]
    }

    /// Whether it is a matrix or a stack of matrices.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
    }

    /// Rows of the matrix, or of all matrices of a stack; 1 for a vector.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len().max(1) - 1].iter().product()
    }

    /// Columns of a matrix; width of a vector.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }
}

/// How a checkpoint stores a stack of matrices, one per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    /// In one tensor.
    Whole,
    /// In one tensor per matrix, whose names have its index in place of `*`.
    Apart,
}
