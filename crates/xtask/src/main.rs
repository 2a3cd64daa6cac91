//! `cargo xtask`: the development tasks of this project, one module each.

mod checks;
mod cli_page;
mod gpu;
mod lock;

use crate::checks::{arm, darwin, quick, races, test, validate};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::bench_peers;
use xtask::metal;
use xtask::models;
use xtask::random_model;
use xtask::reference_keys;
use xtask::shapes::{self, ShapeOptions};

/// Development tasks of forge.
#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run all checks: formatting, clippy, rustdoc and tests.
    ///
    /// Installs clang with apt-get first if it is missing and the user is root.
    Test {
        /// Check only packages with uncommitted changes and what depends on them, without slow tests
        #[arg(long)]
        quick: bool,
    },
    /// Package programs and kernel tests to run on a machine with an NVIDIA GPU.
    ///
    /// Needs cargo and clang, but no GPU. On the GPU machine, run `verify_programs.sh` from the package.
    Gpu {
        /// Package only these models of tests/models, without kernel tests
        #[arg(long, value_delimiter = ',', conflicts_with = "kernels")]
        models: Vec<String>,
        /// Package only the kernel tests
        #[arg(long)]
        kernels: bool,
        /// Output directory
        out: PathBuf,
    },
    /// Package programs of real model shapes, to benchmark with random weights on an NVIDIA GPU
    GpuTimes {
        /// Include candidate kernel layouts for `tune`
        #[arg(long)]
        tunable: bool,
        /// Use the layouts measured by `tune`
        #[arg(long, value_name = "FILE")]
        tuned: Option<PathBuf>,
        /// Output directory
        out: PathBuf,
        /// Configuration in tests/shapes, or path to one, and weight formats
        #[arg(required = true, value_name = "NAME=FORMAT,FORMAT")]
        shapes: Vec<String>,
    },
    /// Write the Cargo.lock of generated crates
    Lock,
    /// Write docs/models.md, the list of supported models
    Models,
    /// Write docs/reference/cli.md, the options of forge and of compiled programs
    Cli,
    /// Write the list of configuration keys that Hugging Face transformers reads.
    ///
    /// Parses the sources of an installed package. The compiler ignores keys that transformers never reads, and rejects keys that
    /// transformers reads but forge does not support. Needs Python 3 and `pip install transformers`, but no torch.
    ReferenceKeys {
        /// Python interpreter with the transformers package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: String,
    },
    /// Write a checkpoint with reproducible random weights
    RandomModel {
        /// config.json of the model [default: a Llama with 1.1B parameters]
        #[arg(long)]
        config: Option<PathBuf>,
        /// Maximum bytes of weights per file
        #[arg(long, value_name = "BYTES")]
        shard: Option<u64>,
        /// Skew the routers, so that some experts are selected more often
        #[arg(long)]
        skewed: bool,
        /// Output directory
        out: PathBuf,
    },
    /// Compare dispatches per token with other engines, for real model shapes.
    ///
    /// Prints dispatches, barriers, bytes and predicted decode times from the configuration alone. The other engines are modeled
    /// with the dispatch counts of their sources and the bytes and kernels of this plan. Their times show the value of fewer
    /// launches; they are not measurements.
    Shapes {
        /// Apple chip, m1 to m5-max
        #[arg(long, default_value = "m4-max")]
        chip: String,
        /// Weight format of matrices
        #[arg(long, default_value = "q4_0", value_name = "FORMAT")]
        quant: String,
        /// Context length in tokens, including the decoded token
        #[arg(long, default_value_t = 64, value_name = "POSITIONS")]
        length: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// config.json files [default: those in tests/shapes]
        configs: Vec<PathBuf>,
    },
    /// Benchmark programs against llama.cpp on this machine, in alternating runs.
    ///
    /// See docs/performance.md for the setup.
    BenchPeers {
        /// Build directory of llama.cpp, with bin/llama-bench
        #[arg(long, value_name = "DIR")]
        llama_cpp: PathBuf,
        /// Prompt tokens; 0 skips prefill
        #[arg(long, default_value_t = 512, value_name = "N")]
        prompt: u32,
        /// Tokens to generate; 0 skips decode
        #[arg(long, default_value_t = 64, value_name = "N")]
        count: u32,
        /// Number of runs of each program
        #[arg(long, default_value_t = 5, value_name = "N")]
        turns: usize,
        /// CPU threads of both programs
        #[arg(long, default_value_t = 2, value_name = "N")]
        threads: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Compiled program, and GGUF file of the same checkpoint in the same format
        #[arg(required = true, value_name = "PROGRAM=FILE.gguf")]
        pairs: Vec<String>,
    },
    /// Lint and link programs for macOS and a library for iOS, on any system, without running them
    Darwin,
    /// Run the CPU device's tests under ThreadSanitizer.
    ///
    /// Needs Linux on x86-64 and rustup's rust-src component.
    Races,
    /// Run the CPU device's tests for 64-bit ARM in QEMU.
    ///
    /// Needs qemu-user, gcc-aarch64-linux-gnu and the Rust target aarch64-unknown-linux-gnu.
    Arm,
    /// Compile models, run them on this machine's Metal GPU and check the results (macOS).
    ///
    /// Checks logits against the reference, greedy text against the CPU's, and sampled text against the host's. Fails without a
    /// usable GPU, and if nothing was dispatched. Reports no times.
    Metal {
        /// Run only these models: fable, or names in tests/models
        #[arg(long, value_delimiter = ',')]
        models: Vec<String>,
        /// Output directory
        out: PathBuf,
    },
    /// Compile kernels.metal with Apple's compiler, warnings as errors (macOS only)
    Validate {
        /// kernels.metal files, from src/ of generated crates
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test { quick: false } => test::test(),
        Task::Test { quick: true } => quick::quick(),
        Task::Gpu { models, kernels, out } => {
            gpu::pack(&out, (!kernels).then_some(&models), kernels || models.is_empty())
        }
        Task::GpuTimes { tunable, tuned, out, shapes } => {
            gpu::times::pack(&out, &shapes, tunable, tuned.as_deref())
        }
        Task::Lock => lock::write(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")),
        Task::Models => models::write(),
        Task::Cli => cli_page::write(),
        Task::ReferenceKeys { python } => reference_keys::write(&python),
        Task::RandomModel { config, shard, skewed, out } => {
            random_model::write_from(config.as_deref(), shard, skewed, &out)
        }
        Task::Shapes { chip, quant, length, json, configs } => {
            shapes::shapes(&ShapeOptions { configs: &configs, chip: &chip, quant: &quant, length, json })
        }
        Task::BenchPeers { llama_cpp, prompt, count, turns, threads, json, pairs } => {
            bench_peers::bench_peers(&bench_peers::BenchOptions {
                llama_cpp: &llama_cpp,
                pairs: &pairs,
                tests: [prompt, count],
                turns,
                threads,
                json,
            })
        }
        Task::Darwin => darwin::darwin(),
        Task::Races => races::races(),
        Task::Arm => arm::arm(),
        Task::Metal { models, out } => {
            metal::metal(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &out, &models)
        }
        Task::Validate { files } => validate::validate(&files),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
