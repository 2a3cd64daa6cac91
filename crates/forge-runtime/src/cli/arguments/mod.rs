//! Command line arguments of all commands.

mod commands;
mod common;
mod sampling;

pub use crate::cli::arguments::commands::{
    Bench, Chat, Completions, Generate, Info, Logits, Perplexity, Profile, Record, Serve, Tune, Verify,
};
pub use crate::cli::arguments::common::Common;
