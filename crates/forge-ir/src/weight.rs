//! Weights: which tensor of the checkpoint each is, or which part of one, or of which tensors it is made.

use crate::blocks::Blocks;
use crate::format::Format;
use serde::Serialize;

/// A tensor of the checkpoint that the model uses, or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// The tensor's name in the checkpoint; of a stack that lies apart, with `*` for the number of each.
    pub tensor: String,
    /// How a stack is stored; none: it is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Stack>,
    /// Which part of the tensor it is, or of each matrix of a stack; none: all of it, as it lies there.
    pub cut: Option<WeightSlice>,
    /// `[width]`, `[rows, columns]` or, of a stack, `[matrices, rows, columns]`.
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
pub enum WeightSlice {
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
    /// Columns from `first` on, so many of each group of so many columns: each is a row of the weight.
    ColumnGroups {
        /// The first that is the weight's, in every group.
        first: usize,
        /// Those that are the weight's, in every group.
        columns: usize,
        /// All that a group has.
        of: usize,
    },
}

impl WeightSlice {
    /// The tensor's row, or column, or element of a vector, that is this one of the weight.
    pub fn place(self, row: usize) -> usize {
        match self {
            WeightSlice::Rows { first, .. } | WeightSlice::Columns { first, .. } => first + row,
            WeightSlice::Groups { first, rows: each, of }
            | WeightSlice::ColumnGroups { first, columns: each, of } => row / each * of + first + row % each,
        }
    }

    /// How many the tensor has, or each of its groups.
    pub fn of(self) -> usize {
        match self {
            WeightSlice::Rows { of, .. }
            | WeightSlice::Columns { of, .. }
            | WeightSlice::Groups { of, .. }
            | WeightSlice::ColumnGroups { of, .. } => of,
        }
    }

    /// Whether it turns columns to rows.
    pub fn turns(self) -> bool {
        matches!(self, WeightSlice::Columns { .. } | WeightSlice::ColumnGroups { .. })
    }

    /// The same part of a vector that has an element for each row of the weight.
    pub fn of_elements(self) -> WeightSlice {
        match self {
            WeightSlice::Columns { first, of } => WeightSlice::Rows { first, of },
            WeightSlice::ColumnGroups { first, columns: rows, of } => WeightSlice::Groups { first, rows, of },
            rows @ (WeightSlice::Rows { .. } | WeightSlice::Groups { .. }) => rows,
        }
    }
}

impl Weight {
    /// The names of the tensors that it is made of, or is a part of.
    pub fn tensors(&self) -> impl Iterator<Item = String> + '_ {
        let matrices = if self.stack == Some(Stack::Apart) { self.matrices() } else { 1 };
        (0..matrices).map(|index| self.tensor_of(index))
    }

    /// The name of the tensor that has a matrix of a stack; of what is none, of the tensor.
    pub fn tensor_of(&self, matrix: usize) -> String {
        match self.stack {
            Some(Stack::Apart) => self.tensor.replacen('*', &matrix.to_string(), 1),
            Some(Stack::Whole) | None => self.tensor.clone(),
        }
    }

    /// The shape of each tensor as a whole.
    pub fn tensor_shape(&self) -> Vec<usize> {
        let shape = self.matrix_shape();
        let matrix = match (self.cut, shape) {
            (None, shape) => shape.to_vec(),
            (Some(WeightSlice::Rows { of, .. }), shape) => [&[of], &shape[shape.len().min(1)..]].concat(),
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

    /// The rows of the tensor, or columns, or elements of a vector, that are the weight's; of each group, where it has
    /// groups, and in each matrix of a stack.
    pub fn part(&self) -> std::ops::Range<usize> {
        let length = self.matrix_shape().first().copied().unwrap_or(0);
        match self.cut {
            None => 0..length,
            Some(WeightSlice::Rows { first, .. } | WeightSlice::Columns { first, .. }) => {
                first..first + length
            }
            Some(
                WeightSlice::Groups { first, rows: each, .. }
                | WeightSlice::ColumnGroups { first, columns: each, .. },
            ) => first..first + each,
        }
    }

    /// Matrices of a stack; 1 of what is none.
    pub fn matrices(&self) -> usize {
        self.stack.and(self.shape.first()).copied().unwrap_or(1)
    }

    /// The shape of each matrix of a stack; of what is none, the weight's.
    pub fn matrix_shape(&self) -> &[usize] {
        &self.shape[self.shape.len().min(usize::from(self.stack.is_some()))..]
    }

    /// Whether it is a matrix, or a stack of some.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() > 1
    }

    /// Rows of a matrix, or of all matrices of a stack, one below the other; 1 for a vector.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len().max(1) - 1].iter().product()
    }

    /// Columns of a matrix; the width of a vector.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }
}

/// How a checkpoint stores a weight that is a stack of matrices, one for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    /// One tensor, the matrices one after the other.
    Whole,
    /// A tensor for each: their names have its number where the weight's has `*`.
    Apart,
}
