//! From a plan to the files of a crate.
//!
//! # Contract
//!
//! [`render()`] takes a [`Plan`](forge_planner::Plan) and gives [`CrateFiles`]: paths within the crate and their bytes. It does no I/O and
//! decides nothing about the model; what it decides is how a program is spelled. Everything is resolved to final
//! names and literals in Rust (the modules below), and printed by the templates of `templates/crate`, which hold the
//! text that is the same for every model and no logic but loops.
//!
//! [`report()`] gives the page of pictures that lies beside the crate's source.
//!
//! The runtime that every crate depends on, and carries unless it is told otherwise, is `forge-runtime`'s own source, embedded
//! when this crate is built.

mod candidates;
mod cpu_kernels;
mod crate_files;
mod features;
mod fields;
mod kernels;
mod kv_cache_code;
mod model;
mod names;
mod report;
mod runtime_files;
mod section;
mod steps;

pub use crate::crate_files::{CrateFiles, CrateOptions, LAYOUTS, RUNTIME, RenderError, layouts_ptx, render};
pub use crate::report::{Measurement, ReportFacts, Verdict, report, with_measurements};
pub use crate::runtime_files::runtime;
