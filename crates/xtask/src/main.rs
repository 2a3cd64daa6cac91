//! `cargo xtask`: the chores of this project, one file each.

mod test;
mod validate;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::random_model;

/// The chores of this project.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that must pass: formatting, clippy, tests. Installs clang first where it is missing and it may.
    Test,
    /// Write a checkpoint with random weights: the same bytes every time.
    RandomModel {
        /// A config.json to write weights for; without it, a Llama of 1.1 billion parameters.
        #[arg(long)]
        config: Option<PathBuf>,
        /// Start a new file after so many bytes of weights.
        #[arg(long, value_name = "BYTES")]
        shard: Option<u64>,
        /// Where it goes.
        out: PathBuf,
    },
    /// On a Mac: feed a kernels.metal to Apple's compiler, warnings as errors.
    Validate {
        /// The files; every crate that forge writes has one in src/.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Test => test::test(),
        Chore::RandomModel { config, shard, out } => random_model::write_from(config.as_deref(), shard, &out),
        Chore::Validate { files } => validate::validate(&files),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
