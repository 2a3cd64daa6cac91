//! What a model computes, and nothing of how.
//!
//! # The meaning of a graph
//!
//! A [`Graph`] takes a batch of *rows*. Each row is one token: its id, the slot (conversation) it belongs to and
//! its position in that slot. A decode step, a chunk of a prompt and a mixture of both are the same graph with
//! other rows; rows of one slot are in ascending position and continue what the slot's state already holds.
//!
//! The graph is a prologue, a list of layers and an epilogue, each an application of a [`Body`]: a straight line
//! of [`Node`]s over values. Value 0 of a body is what flows in (the rows' ids in the prologue, the residual
//! stream afterwards), node `i` defines value `i + 1`, and the last value flows out. A value holds one vector of
//! f32 for each row; its width is known. Layers with equal structure share one body and differ in the weights
//! and states that they bind to its parameters.
//!
//! Nodes are mathematics, not kernels. A node is evaluated for all rows at once, and only those with a [`State`] let a row
//! see others, of its own slot up to and including itself. [`Op::Attention`] and [`Op::LatentAttention`]: first what every row
//! brings is written to the cache of its slot at its position, then each row attends to those positions; or it attends to
//! those that an earlier layer has written, and writes nothing. [`Op::Convolve`] and [`Op::DeltaRule`]: rows are taken one after the other, each
//! finding what the one before it left.
//!
//! Beside the stream, the prologue may leave one more value for the layers: the *aside*. It does not change from layer to
//! layer, and each takes the columns that are bound to it.
//!
//! # Promises
//!
//! A [`Graph`] is only to be had from [`Draft::validate`], so whoever holds one knows that every index is in range,
//! every width agrees, every weight is bound and every body is used. Later stages return errors for what they
//! cannot do; they never panic over a graph. This crate does no I/O and knows no other crate of the project.

mod blocks;
mod diagnostic;
mod format;
mod graph;
mod mla;
mod packing;
mod print;
mod record;
mod recurrent;
mod rotation;
mod routing;
mod shape_check;
mod state;
mod tolerance;
mod validate;
mod weight;
mod weight_source;

pub use crate::blocks::Blocks;
pub use crate::diagnostic::{Diagnostic, Place};
pub use crate::format::{Affine, BLOCK, Bits, Format, Group, Plane, PlaneElement, SUPERBLOCK, Scales};
pub use crate::graph::{
    Activation, Apply, Body, BodyId, Draft, Model, Node, Op, Param, ParamId, ParamKind, SpecialTokens,
    StateId, ValueId, WeightId,
};
pub use crate::packing::{Layout, Packed, Records};
pub use crate::record::Record;
pub use crate::rotation::{LongContext, Pairing, Rotation};
pub use crate::routing::{Experts, Gating, Groups, Routing, Scores};
pub use crate::state::{Cache, ConvState, LatentCache, RecurrentState, State};
pub use crate::tolerance::{Tolerance, encoded_tolerances, tolerance};
pub use crate::validate::Graph;
pub use crate::weight::{Stack, Weight, WeightSlice};
pub use crate::weight_source::WeightRows;
