//! Which layouts of a model's products and of its attention are fastest on a device. A program that was compiled for it has, beside
//! its kernels, others that may stand in for them; [`Tuner`] has each do what the plan's kernels do in passes of the model, on the same
//! bytes, and times them in turns. One that computes something else is told of and never chosen. The table that comes of it is for
//! `forge compile --tuned`: a program's own kernels stay what they are.
//!
//! What a product takes does not depend on how long a text is, and it is measured in one pass. What attention takes does: it is
//! measured in a short text and in a long one, and a layout is chosen that is faster on the whole and in neither slower.

pub(crate) mod candidates;
#[cfg(feature = "tune")]
pub(crate) mod compare;
#[cfg(feature = "tune")]
pub(crate) mod result;
#[cfg(feature = "tune")]
pub(crate) mod table;
#[cfg(feature = "tune")]
pub(crate) mod tuner;

pub use crate::measure::tune::candidates::{
    Candidate, CandidateKernel, ErrorModel, KeyValue, Layout, TuningKey, TuningProblem, TuningSpace,
};
#[cfg(feature = "tune")]
pub use crate::measure::tune::compare::Difference;
#[cfg(feature = "tune")]
pub use crate::measure::tune::result::{Mismatch, Times, TuningResult};
#[cfg(feature = "tune")]
pub use crate::measure::tune::table::{line, table};
#[cfg(feature = "tune")]
pub use crate::measure::tune::tuner::Tuner;
