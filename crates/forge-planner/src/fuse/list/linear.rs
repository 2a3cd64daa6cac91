//! Projections as operations.

use crate::fuse::list::{Gain, UnaryOp};
use forge_ir::{Activation, Layout, ParamId};

/// Several weights applied to one input at once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linear {
    /// Each weight with its bias.
    pub(crate) parts: Vec<(ParamId, Option<ParamId>)>,
    /// How the weights lie in one matrix.
    pub(crate) layout: Layout,
    /// The gain that is folded into the matrix.
    pub(crate) folded: Option<ParamId>,
    /// Epsilon of the input's norm, where its division is left to this projection.
    pub(crate) norm: Option<f32>,
    /// The norm of its input, where all of it is left to this projection.
    pub(crate) own_norm: Option<InlineNorm>,
    /// What each result becomes first.
    pub(crate) each: Option<UnaryOp>,
    /// What becomes of the result.
    pub(crate) ending: Epilogue,
}

/// A norm that whoever reads its result does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InlineNorm {
    /// None where it is folded into the weights.
    pub(crate) gain: Option<ParamId>,
    /// Added to the mean of squares.
    pub(crate) epsilon: f32,
}

/// What becomes of a projection's result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Epilogue {
    /// It is the output.
    Store,
    /// It is added to the second input, in place.
    Add,
    /// It is added to the second input, in place, and leaves what the deferred norm of the sum needs.
    AddSquares(Gain),
    /// It is multiplied by what the layer takes of the aside.
    MultiplyTaken,
    /// Its outputs alternate gate and up.
    Gate(Activation),
    /// It is the output; each threadgroup leaves the best of its own.
    Best,
}

impl Linear {
    /// One weight, nothing before or after it.
    pub(crate) fn plain(weight: ParamId, bias: Option<ParamId>) -> Linear {
        Linear {
            parts: vec![(weight, bias)],
            layout: Layout::Rows,
            folded: None,
            norm: None,
            own_norm: None,
            each: None,
            ending: Epilogue::Store,
        }
    }
}
