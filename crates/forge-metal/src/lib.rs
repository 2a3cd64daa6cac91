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

mod cache_text;
mod cpu;
mod features;
mod fields_text;
mod kernels_text;
mod layouts_text;
mod model_text;
mod names;
mod render;
mod report;
mod runtime_files;
mod section_text;
mod steps_text;

pub use render::{CrateFiles, CrateOptions, LAYOUTS, RUNTIME, RenderError, layouts_ptx, render};
pub use report::{Measurement, ReportFacts, Verdict, report, with_measurements};
pub use runtime_files::runtime;
