//! `report.html`: a self-contained visual report of a compiled model.
//!
//! [`report`] takes a graph and its plan and returns the page. It shows fusion, the decode timeline and roofline
//! of several chips, predicted tok/s of all chips, memory, quantization error, and kernel checker results. Each
//! plot is a module, drawn with `svg`. All times are predicted, and labeled as such. [`with_measurements`] adds
//! kernel checker results to an existing page.

mod fusion;
mod measured;
mod memory;
mod page;
mod quantization_error;
mod roofline;
mod svg;
mod timeline;

pub use crate::measured::{Measurement, Verdict, with_measurements};
pub use crate::page::{ReportFacts, report};
