//! Finds the fastest kernel layouts on a device. A program compiled with `--with-tuning` includes candidate
//! kernels. [`Tuner`] runs each in place of the default kernels on the same inputs, and compares and times
//! them in interleaved rounds. A candidate with different output is reported and never chosen. The result is
//! a table for `forge compile --tuned`; the program itself does not change.
//!
//! The time of a matmul does not depend on the context length, so it is measured in one pass. Attention is
//! measured at a short and at a long context length. Its layout has to be faster in the mean and not slower
//! at either length.

#[cfg(feature = "tune")]
pub(crate) mod compare;
#[cfg(feature = "tune")]
pub(crate) mod result;
#[cfg(feature = "tune")]
pub(crate) mod table;
#[cfg(feature = "tune")]
pub(crate) mod tuner;

#[cfg(feature = "tune")]
pub use crate::measure::tune::compare::OutputDifference;
#[cfg(feature = "tune")]
pub use crate::measure::tune::result::{LayoutTimes, Mismatch, TuningResult};
#[cfg(feature = "tune")]
pub use crate::measure::tune::table::{line, table};
#[cfg(feature = "tune")]
pub use crate::measure::tune::tuner::Tuner;
