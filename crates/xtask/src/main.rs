//! `cargo xtask`: the chores of this project, one file each.

mod arm;
mod darwin;
mod gpu;
mod lock;
mod races;
mod test;
mod validate;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::bench_peers;
use xtask::models;
use xtask::random_model;
use xtask::reference_keys;
use xtask::shapes::{self, Question};

/// The chores of this project.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that must pass: formatting, clippy, rustdoc, tests. Installs clang first where it is missing and it may.
    Test,
    /// Pack programs and tests of kernels for an NVIDIA GPU, and the script that judges both there: needs cargo and clang, and no such GPU.
    Gpu {
        /// Only these models of tests/models, and no tests of kernels.
        #[arg(long, value_delimiter = ',', conflicts_with = "kernels")]
        models: Vec<String>,
        /// Only the tests of kernels.
        #[arg(long)]
        kernels: bool,
        /// Where they go.
        out: PathBuf,
    },
    /// Pack programs of real shapes for an NVIDIA GPU, and the script that times them there with random weights.
    GpuTimes {
        /// With the layouts that `tune` chooses from.
        #[arg(long)]
        tunable: bool,
        /// Lay kernels out as a program's `tune` has measured.
        #[arg(long, value_name = "FILE")]
        tuned: Option<PathBuf>,
        /// Where they go.
        out: PathBuf,
        /// A configuration of tests/shapes, or a path to another, and formats.
        #[arg(required = true, value_name = "NAME=FORMAT,FORMAT")]
        shapes: Vec<String>,
    },
    /// Write the Cargo.lock that generated crates are shipped with.
    Lock,
    /// Write docs/models.md: what forge compiles, told by the architectures' own files.
    Models,
    /// Write which configuration keys Hugging Face transformers reads, from the sources of an installed package.
    ///
    /// The compiler accepts keys that transformers never reads, and refuses those that it reads and forge does not. Needs Python 3
    /// and `pip install transformers`; no torch.
    ReferenceKeys {
        /// The Python that has the package.
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: String,
    },
    /// Write a checkpoint with random weights: the same bytes every time.
    RandomModel {
        /// A config.json to write weights for; without it, a Llama of 1.1 billion parameters.
        #[arg(long)]
        config: Option<PathBuf>,
        /// Start a new file after so many bytes of weights.
        #[arg(long, value_name = "BYTES")]
        shard: Option<u64>,
        /// Have routers prefer some experts to others.
        #[arg(long)]
        skewed: bool,
        /// Where it goes.
        out: PathBuf,
    },
    /// Plan models of real shapes: dispatches, barriers, bytes and predicted times of a token, beside those of others.
    ///
    /// Needs no weights and runs nothing. Others are compared by the dispatches that their sources have, with the bytes and
    /// kernels of this plan: what fewer launches are worth, not what they take.
    Shapes {
        /// Apple's chip, m1 to m5-max.
        #[arg(long, default_value = "m4-max")]
        chip: String,
        /// Number format of matrices.
        #[arg(long, default_value = "q4_0", value_name = "FORMAT")]
        quant: String,
        /// Positions of the conversation, the token's own included.
        #[arg(long, default_value_t = 64, value_name = "POSITIONS")]
        length: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Configurations, each a config.json; without any, those of tests/shapes.
        configs: Vec<PathBuf>,
    },
    /// Measure programs beside llama.cpp, in turns, on this machine; docs/performance.md has what it takes.
    BenchPeers {
        /// Where llama.cpp was built: the folder with bin/llama-bench.
        #[arg(long, value_name = "DIR")]
        llama_cpp: PathBuf,
        /// Ids of a prompt; 0 measures none.
        #[arg(long, default_value_t = 512, value_name = "N")]
        prompt: u32,
        /// Ids that are generated; 0 measures none.
        #[arg(long, default_value_t = 64, value_name = "N")]
        count: u32,
        /// How many turns each side has.
        #[arg(long, default_value_t = 5, value_name = "N")]
        turns: usize,
        /// Threads of both.
        #[arg(long, default_value_t = 2, value_name = "N")]
        threads: usize,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// A program that forge compiled, and a GGUF file of the same checkpoint in the same format.
        #[arg(required = true, value_name = "PROGRAM=FILE.gguf")]
        pairs: Vec<String>,
    },
    /// Lint and link every model's program as for a Mac, on any system: nothing of it runs.
    Darwin,
    /// Run the CPU device's tests under ThreadSanitizer: needs rustup's rust-src, and Linux on x86-64.
    Races,
    /// Run the CPU device's kernels as 64-bit ARM does, in an emulator: needs qemu-user, gcc-aarch64-linux-gnu and Rust's library for that.
    Arm,
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
        Chore::Gpu { models, kernels, out } => {
            gpu::pack(&out, (!kernels).then_some(&models), kernels || models.is_empty())
        }
        Chore::GpuTimes { tunable, tuned, out, shapes } => {
            gpu::times::pack(&out, &shapes, tunable, tuned.as_deref())
        }
        Chore::Lock => lock::write(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")),
        Chore::Models => models::write(),
        Chore::ReferenceKeys { python } => reference_keys::write(&python),
        Chore::RandomModel { config, shard, skewed, out } => {
            random_model::write_from(config.as_deref(), shard, skewed, &out)
        }
        Chore::Shapes { chip, quant, length, json, configs } => {
            shapes::shapes(&Question { configs: &configs, chip: &chip, quant: &quant, length, json })
        }
        Chore::BenchPeers { llama_cpp, prompt, count, turns, threads, json, pairs } => {
            bench_peers::bench_peers(&bench_peers::Question {
                llama_cpp: &llama_cpp,
                pairs: &pairs,
                tests: [prompt, count],
                turns,
                threads,
                json,
            })
        }
        Chore::Darwin => darwin::darwin(),
        Chore::Races => races::races(),
        Chore::Arm => arm::arm(),
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
