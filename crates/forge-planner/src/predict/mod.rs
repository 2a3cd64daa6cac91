//! Predicts the time of a pass on a chip, from the chip's specifications and the plan's bytes and operations.
//!
//! A step takes the longest of moving its bytes, computing its operations, and moving bytes on cores, at the
//! fraction of peak that good kernels reach. The tail (too few threadgroups left to fill the chip) and the launch are added:
//!
//! ```text
//! seconds = max(bytes / bandwidth, operations / rate, on-core bytes / on-core rate) / efficiency
//!     + tail + start [+ barrier]
//! ```
//!
//! A pass is the sum of its steps and one submission. The model ignores overlap of independent steps,
//! repeated memory reads due to cache capacity, the cost of dequantization and of barriers, and how many
//! threadgroups fit in the registers of a core.

mod amounts;
pub(crate) mod chips;
pub(crate) mod cost;
pub(crate) mod kernel_cost;
mod memory_traffic;
mod operations;
mod prediction;
pub(crate) mod report;

pub use crate::predict::prediction::{Limit, Prediction, StepTime, Time, predict, predict_prompt};
