//! Embedding, elementwise functions and slices.

use crate::activation::UnaryOp;
use crate::format::Format;
use crate::norm::Squares;
use serde::Serialize;

/// Embedding lookup: token ids to rows of the table, in f32.
///
/// Scalars: rows. Buffers: table planes, ids, \[gain,\] stream\[, gained\]\[, squares\]. Grid: rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Embed {
    /// Format of the table.
    pub format: Format,
    /// Rows of the table. An out-of-range id reads row 0; the host rejects such ids before.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
    /// Factor of the looked-up row.
    pub scale: f32,
    /// Whether rows are added to `stream` in place.
    pub adds: bool,
    /// Outputs for a deferred norm of the rows, if one follows. The first partial sum is that of the whole
    /// row, the others are 0.
    pub squares: Option<Squares>,
}

/// Elementwise function of one or two vectors.
///
/// Scalars: rows. Buffers: a, \[b,\] y. Grid: a row's elements in groups of 256 threads; rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Elementwise {
    /// The function.
    pub function: Function,
    /// Elements of a row.
    pub width: usize,
}

/// A unary or binary function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// `y` is this unary function of `a`.
    Unary(UnaryOp),
    /// `y = a · b`
    Multiply,
    /// `y = a · b`, b being a scalar per row.
    ScaleRows,
    /// `y = b · a`, b being a scalar (f32, `[1]`).
    ScaleBy,
    /// `y = a + b`
    Add,
}

/// Column slice of wider rows.
///
/// Scalars: rows, first. Buffers: x, y. Grid: a row of y in groups of 128 threads; rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SliceColumns {
    /// Columns of the slice, starting at `first`.
    pub width: usize,
    /// Columns of x.
    pub of: usize,
}
