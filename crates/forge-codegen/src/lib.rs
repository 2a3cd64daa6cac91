//! The code generator: turns a plan into the files of a Rust crate.
//!
//! # Contract
//!
//! [`render()`] takes a [`Plan`](forge_planner::Plan) and returns [`CrateFiles`]: paths within the crate and their contents.
//! It does no I/O and makes no decisions about the model. The modules below resolve the plan to final names and literals;
//! the templates in `templates/crate` hold the text that all models share, with no logic but loops and conditions.
//!
//! Every generated crate depends on `forge-runtime`. Its source is embedded when this crate is built, and
//! [`render()`] copies it into the generated crate unless [`CrateOptions::runtime`] names a directory.

mod candidates;
mod crate_files;
mod features;
mod fields;
mod kernels;
mod kv_cache_code;
mod model;
mod names;
mod runtime_files;
mod rust_expression;
mod section;
mod shapes;
mod steps;

pub use crate::crate_files::{CrateFiles, CrateOptions, LAYOUTS, RUNTIME, RenderError, layouts_ptx, render};
pub use crate::runtime_files::runtime;
