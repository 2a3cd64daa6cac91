//! The computation graph: what a model computes, independent of how.
//!
//! # Semantics
//!
//! A [`Graph`] takes a batch of *rows*. A row is one token: its id, its slot (sequence) and its position in
//! the slot. Decode, prefill chunks and mixed batches are the same graph with different rows. Rows of one
//! slot are in ascending position and continue the slot's state.
//!
//! The graph is a prologue, a list of layers and an epilogue. Each is an application of a [`Body`], a
//! straight line of [`Node`]s over values. Value 0 of a body is its input: token ids in the prologue, the
//! residual stream afterwards. Node `i` defines value `i + 1`, and the last value is the output. A value
//! holds one f32 vector of known width per row. Layers of equal structure share one body and bind different
//! weights and states to its parameters.
//!
//! Nodes are mathematical operations, not kernels. A node is evaluated for all rows at once. Only operations
//! with a [`State`] let a row depend on others, namely those of its own slot up to and including itself:
//!
//! * [`Op::Attention`] and [`Op::LatentAttention`] first write every row's keys and values to its slot's
//!   cache, then each row attends to the cached positions. They can also read the cache of an earlier layer
//!   and write nothing.
//! * [`Op::Convolve`] and [`Op::DeltaRule`] process rows in order; each sees the state that the previous one
//!   left.
//!
//! The prologue may produce one more value for the layers, the *per-layer inputs*. They are the same for all
//! layers, and each layer reads the columns that are bound to it.
//!
//! # Guarantees
//!
//! [`Draft::validate`] is the only way to obtain a [`Graph`]. It guarantees that indices are in range, widths
//! agree, every weight is bound and every body is used. Later stages return errors for unsupported graphs and
//! never panic. This crate does no I/O.

mod diagnostic;
mod graph;
mod tolerance;
pub mod units;
mod validate;
mod weights;

pub use crate::diagnostic::{Diagnostic, Place};
pub use crate::graph::draft::{
    Apply, Body, BodyId, Draft, Model, Node, Op, Param, ParamId, ParamKind, SpecialTokens, StateId, ValueId,
    WeightId,
};
pub use crate::graph::routing::{Experts, Routing};
pub use crate::graph::state::{Cache, ConvState, LatentCache, RecurrentState, State};
pub use crate::tolerance::{Tolerance, int8_tolerances, tolerance};
pub use crate::validate::graph::Graph;
pub use crate::weights::blocks::Blocks;
pub use crate::weights::encoding::{
    Element, Encoding, INTERLEAVED_NIBBLES, NESTED_SCALES, NESTED_TABLE, Packing, ScaleElement, ScaleFactor,
    ScaleTensor, ZeroPacking, Zeros, factor_of_divisor,
};
pub use crate::weights::importance::{ColumnSquares, ImportanceMatrix};
pub use crate::weights::packing::{Layout, Packed, Records};
pub use crate::weights::record::Record;
pub use crate::weights::small_float::{from_bf16, from_e4m3, from_e8m0, from_f16};
pub use crate::weights::weight::{Stack, Weight, WeightSlice};
pub use crate::weights::weight_source::WeightRows;
pub use forge_ops::{
    Activation, Affine, BLOCK, Bits, Format, Gating, Group, Groups, IQ4_ENTRIES, LongContext, Pairing, Plane,
    PlaneElement, RopeParameters, SUPERBLOCK, Scales, Scores,
};
