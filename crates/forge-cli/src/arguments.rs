//! The command line of `forge`.

use crate::quantize::format_names;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Default of --calibrate-tokens.
pub(crate) const CALIBRATE_TOKENS: u32 = 8192;

/// Ahead-of-time compiler for language models.
///
/// forge reads a Hugging Face checkpoint or a GGUF file and writes a standalone Rust crate that runs that one
/// model. Shapes are constants, memory is planned at compile time, and reference logits are included.
#[derive(Debug, Parser)]
#[command(name = "forge", version, arg_required_else_help = true)]
#[command(
    after_help = "Examples:\n  forge run <model> -- chat\n  forge compile <model> -o out && cd out && cargo run --release -- generate -p \"Once upon a time\""
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compile a model into a Rust crate.
    Compile {
        #[command(flatten)]
        compile: CompileArguments,
        /// Output directory.
        #[arg(short, long, value_name = "DIR")]
        out: PathBuf,
        /// Replace an existing output directory.
        ///
        /// Only a directory that forge has written is replaced. Its build results and its tuned.json are
        /// kept.
        #[arg(long)]
        force: bool,
        /// Print a JSON summary.
        #[arg(long)]
        json: bool,
    },
    /// Compile a model into the cache, build it and run it.
    Run {
        #[command(flatten)]
        compile: CompileArguments,
        /// Arguments of the program, after `--`.
        #[arg(last = true, value_name = "ARGS")]
        program: Vec<String>,
    },
    /// Print the result of one compiler stage.
    Inspect {
        #[command(flatten)]
        compile: CompileArguments,
        /// Compiler stage.
        ///
        /// With --chip, the plan includes the predicted time of each step on that chip; `--chip all` compares
        /// all chips.
        #[arg(long, value_enum, default_value_t = Stage::Graph)]
        stage: Stage,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check a crate's kernels on the CPU for races, bounds errors and wrong results.
    ///
    /// Builds the crate, records the dispatches of prefill, a small batch and a decode step, executes
    /// kernels.metal on the CPU with every memory access checked, and compares logits with the reference.
    /// Faults are reported by kernel and line. The memory traffic of each kernel is reported too: bytes
    /// requested and distinct bytes, 128-byte lines touched per simdgroup and the minimum. Needs clang.
    Verify {
        /// Directory of a compiled crate.
        crate_directory: PathBuf,
        /// Program of the crate that is built already [default: build it]
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Add the measured memory traffic to the crate's report.html.
        #[arg(long)]
        report: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check a model on this machine's GPU, and write a file to send to the project.
    ///
    /// Compiles the model into the cache, builds it, and runs the steps of the guide for a first run on a
    /// Mac: validation of the kernels, logits, texts, benchmarks and a profile. A failed step does not stop
    /// the others. The file has the results, the chip and the versions of system and tools, and no paths,
    /// user names or host names. It is not sent anywhere.
    Report {
        #[command(flatten)]
        compile: CompileArguments,
        /// Device to check: metal, cuda or cpu.
        #[arg(long, value_name = "DEVICE", default_value = "metal")]
        device: String,
        /// Output file.
        #[arg(short, long, value_name = "FILE", default_value = "forge-report.json")]
        out: PathBuf,
        /// Minutes of continuous decode, to see whether the machine slows down; 0 skips it.
        #[arg(long, value_name = "N", default_value_t = 2)]
        minutes: u32,
        /// Short benchmarks, to try the command.
        #[arg(long)]
        quick: bool,
        /// Check a program of the model that is already built, without compiling.
        #[arg(long, value_name = "FILE", hide = true)]
        program: Option<PathBuf>,
    },
    /// Check the installed tools and devices.
    Doctor,
    /// Generate a shell completion script.
    ///
    /// For bash: forge completions bash > ~/.local/share/bash-completion/completions/forge
    Completions {
        /// Shell to generate for.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// The model and the compile options.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompileArguments {
    /// Checkpoint directory, GGUF file, or owner/name on the Hugging Face hub.
    ///
    /// For a split GGUF file, any part. On the hub: owner/name, owner/name@revision, and for a repository of
    /// GGUF files owner/name:file.gguf or owner/name:Q4_K_M. Missing files are downloaded to the hub's cache.
    /// HF_TOKEN is the access token, HF_HUB_CACHE the cache directory, HF_ENDPOINT the hub's address;
    /// HF_HUB_OFFLINE=1 disables the network.
    pub(crate) model: String,
    /// Number format of weight matrices: keep, f16, q8_0, q4_0, Q4_K_M, auto:5, ... (see --help).
    #[arg(long, default_value = "keep", value_name = "FORMAT", long_help = format_names::long_help())]
    pub(crate) quant: String,
    /// Format for matrices whose checkpoint name matches, such as `*.mlp.down_proj=q8_0` (repeatable).
    ///
    /// The format is any of --quant's except mixes and auto. `*` matches any characters, `?` one, {a,b}
    /// either. The last matching override wins. lm_head=FORMAT stores a tied output matrix separately.
    #[arg(long, value_name = "PATTERN=FORMAT")]
    pub(crate) quant_override: Vec<String>,
    /// Quantize for the activations of this text: an importance matrix.
    ///
    /// The reference evaluates the text and collects the mean square of each matrix's input columns, per
    /// expert for experts. Quantization then minimizes the error of the matrices' outputs instead of the error
    /// of their values. Text like that of the application, 10 to 100 kB, is enough. For a checkpoint without a
    /// tokenizer, a file of token ids.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibrate: Option<PathBuf>,
    /// Use at most the first N tokens of the text of --calibrate.
    #[arg(long, value_name = "N", default_value_t = CALIBRATE_TOKENS, requires = "calibrate", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) calibrate_tokens: u32,
    /// Quantize for the activation statistics of this file of llama.cpp's `imatrix` tool.
    ///
    /// Both of its formats: GGUF and the older .dat. As --calibrate, without evaluating a text.
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate", hide_short_help = true)]
    pub(crate) imatrix: Option<PathBuf>,
    /// KV cache format: f32, f16 or q8_0 [default: f32 if every matrix is f32, else f16].
    ///
    /// q8_0 takes about half the memory of f16 and needs head dimensions that are multiples of 32.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) kv_cache_type: Option<String>,
    /// Maximum context length in tokens [default: the model's].
    #[arg(long, value_name = "N")]
    pub(crate) max_context: Option<usize>,
    /// Parallel sequences assumed in the memory report.
    ///
    /// The program allocates for as many sequences as its own --slots option says.
    #[arg(long, value_name = "N", default_value_t = 1, hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) report_slots: u16,
    /// GPU to optimize and predict for, such as m4-max or h200 [default: m4-max; with --target cuda h200].
    ///
    /// Apple chips from m1 to m5-max, NVIDIA GPUs from rtx-3090 to h200.
    #[arg(long, value_name = "CHIP")]
    pub(crate) chip: Option<String>,
    /// GPU backends; Metal is always included.
    ///
    /// cuda: NVIDIA GPUs of compute capability 7.0 or later. Needs a clang with the NVPTX target.
    #[arg(long, value_enum, value_name = "GPU", value_delimiter = ',', default_value = "metal")]
    pub(crate) target: Vec<Target>,
    /// Use the kernel layouts measured by a program's `tune` command.
    #[arg(long, value_name = "FILE")]
    pub(crate) tuned: Option<PathBuf>,
    /// Include candidate kernel layouts for the program's `tune` command.
    #[arg(long)]
    pub(crate) with_tuning: bool,
    /// Disable a fusion, for debugging and comparison (repeatable; see --help).
    ///
    /// One of fuse_gate_up, merge_shared_experts, fuse_qkv, fuse_rope_kv_append, fuse_delta_net, fuse_unary,
    /// fuse_attention_gate, hoist_gate, split_residual_sum, residual, norm_add, fold_gain, attention_prologue,
    /// delta_prologue, fuse_per_layer_input, fuse_routing, deferred_norm, head_argmax, or
    /// all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) disable_fusion: Vec<String>,
    /// Name of the crate and its program [default: the checkpoint's name].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Ignore this unknown config.json key (repeatable).
    #[arg(long, value_name = "KEY")]
    pub(crate) ignore_config_key: Vec<String>,
    /// Reference logits for `verify`: quick, full or none.
    ///
    /// The reference computes them from the packed weights. full: up to 4 sequences that cover decode, small
    /// batches and prefill, of 122 tokens, fewer for models of more than 500 M parameters. quick: 2 sequences of
    /// 6 tokens altogether. none: `verify` cannot run.
    #[arg(long, value_enum, value_name = "EFFORT", default_value_t = Certify::Full)]
    pub(crate) certify: Certify,
    /// As --certify none.
    #[arg(long, hide = true, conflicts_with = "certify")]
    pub(crate) no_reference_logits: bool,
    /// List config keys and tensors that have no effect.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Depend on the runtime in DIR instead of copying it into the crate.
    ///
    /// For several models that share one build of the runtime. Without it, the crate is standalone.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) runtime: Option<PathBuf>,
}

/// Effort for reference logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Certify {
    /// Two short sequences.
    Quick,
    /// Sequences that cover all kinds of passes.
    Full,
    /// No reference logits.
    None,
}

/// A GPU backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Apple GPUs.
    Metal,
    /// NVIDIA GPUs.
    Cuda,
}

impl CompileArguments {
    /// Effort for reference logits.
    pub(crate) fn certify(&self) -> Certify {
        if self.no_reference_logits { Certify::None } else { self.certify }
    }

    /// Whether the crate includes the CUDA backend.
    pub(crate) fn cuda(&self) -> bool {
        self.target.contains(&Target::Cuda)
    }
}

/// The stages of the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// Files and tensors of the checkpoint.
    Checkpoint,
    /// Computation graph.
    Graph,
    /// Kernels, buffers and their order.
    Plan,
    /// Source of kernels.metal.
    Kernels,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn short_help_fits_a_screen_and_long_help_is_longer() {
        let mut command = Arguments::command();
        command.build();
        let compile = command.find_subcommand_mut("compile").expect("there is such a command");
        let (short, long) = (compile.render_help().to_string(), compile.render_long_help().to_string());
        assert!(short.lines().count() <= 45, "{} lines:\n{short}", short.lines().count());
        for line in short.lines().filter(|line| !line.contains("[default") && !line.contains("Usage")) {
            assert!(line.len() <= 130, "{line}");
        }
        assert!(long.lines().count() > 2 * short.lines().count(), "{long}");
        for word in ["HF_HUB_OFFLINE", "affine4_bf16", "fuse_gate_up"] {
            assert!(long.contains(word) && !short.contains(word), "{word}");
        }
    }
}
