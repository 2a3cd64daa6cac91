//! Arguments that several commands have.

use crate::cli::output::log_info;
use crate::load::{DeviceKind, LoadOptions};
use clap::{Args, value_parser};
use forge_device::offload::ExpertPlacement;
use std::path::PathBuf;

/// The maximum of `--threads`. Each thread has a stack and takes part in every barrier.
const MAX_THREADS: i64 = 1024;

/// The options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Common {
    /// Device to run on
    #[arg(long, global = true, value_enum, default_value_t = DeviceKind::Auto)]
    pub(crate) device: DeviceKind,
    /// Threads of the CPU device [default: all hardware threads]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u16).range(1..=MAX_THREADS))]
    pub(crate) threads: Option<u16>,
    /// Use weights from the memory-mapped file; do not copy and repack them
    ///
    /// Without it, on Linux, the CPU device starts from the mapped file and copies the weights to huge pages in the
    /// background, repacked for the CPU. The copy is faster; pages of the file are shared between processes.
    #[arg(long, global = true)]
    pub(crate) mmap: bool,
    /// Where MoE expert weights are kept: resident, mmap, stream or stream:SIZE [default: resident]
    ///
    /// `resident` keeps all experts in memory. `stream:20G` reads them from disk and caches 20 GB of them (`stream`: what
    /// is free). `mmap`, CPU only, leaves caching to the operating system. Expert usage is counted in expert_usage.json
    /// beside the weights; the next run loads the most used experts first.
    #[arg(long, global = true, value_name = "WHERE")]
    pub(crate) experts: Option<ExpertPlacement>,
    /// Do not quantize activations on the CPU (slower, exact)
    #[arg(long, global = true)]
    pub(crate) f32_activations: bool,
    /// Context length in tokens [default: what the command needs; info, chat, serve: up to 8192]
    #[arg(short = 'c', long, global = true, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) ctx_size: Option<u32>,
    /// Parallel sequences to allocate KV cache for [default: 1; serve: 4]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) slots: Option<u32>,
    /// Make decoded tokens independent of the number of running sequences (slower above 16)
    ///
    /// On a GPU, passes that decode more than 16 sequences divide long contexts into fewer parts, which rounds differently.
    /// With this option they are split into passes of at most 16. The CPU needs no option.
    #[arg(long, global = true)]
    pub(crate) reproducible: bool,
    /// Directory of weights.safetensors, tokenizer.json and golden.json
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) model_dir: Option<PathBuf>,
}

impl Common {
    /// The load options that these arguments describe.
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions {
            directory: self.model_dir.clone(),
            device: self.device,
            threads: self.threads.map(usize::from),
            mmap: self.mmap,
            experts: self.experts.unwrap_or_default(),
            f32_activations: self.f32_activations,
            context: self.ctx_size,
            slots: self.slots.unwrap_or(1),
            reproducible: self.reproducible,
            on_message: |what| log_info(&what),
        }
    }
}

/// How far the device runs ahead of the host.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RunAheadArguments {
    /// Decode N tokens per GPU submission before the host reads them [default: chosen for the device]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=8))]
    pub(crate) tokens_per_pass: Option<u32>,
}
