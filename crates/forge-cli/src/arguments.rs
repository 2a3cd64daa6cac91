//! The command line, as typed. What it means is decided by the commands.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Compiles a language model into a program.
///
/// forge reads a Hugging Face checkpoint or a GGUF file and writes a small Rust crate that is exactly that model: its kernels
/// know every shape, its memory is known to the byte, and it can prove on your machine that it computes the model.
#[derive(Debug, Parser)]
#[command(name = "forge", version, arg_required_else_help = true)]
#[command(
    after_help = "Start here:\n  forge run <model> -- generate -p \"Once upon a time\"\n  forge compile <model> -o out && cd out && cargo run --release -- generate -p \"Once upon a time\""
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write the crate of a model.
    Compile {
        #[command(flatten)]
        compile: CompileArguments,
        /// Where the crate goes.
        #[arg(short, long, value_name = "DIRECTORY")]
        out: PathBuf,
        /// Replace the directory if forge made it.
        ///
        /// What was built in it stays, and so does its tuned.json.
        #[arg(long)]
        force: bool,
        /// Print what was made as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compile into a cache, build, and run.
    Run {
        #[command(flatten)]
        compile: CompileArguments,
        /// What the program is run with, after `--`; without it, its help.
        #[arg(last = true, value_name = "ARGUMENTS")]
        program: Vec<String>,
    },
    /// Show what a stage of the compiler makes of a model.
    Inspect {
        #[command(flatten)]
        compile: CompileArguments,
        /// Which stage.
        ///
        /// The plan with --chip: what each of its steps takes on that chip, predicted; --chip all: on every chip, side by side.
        #[arg(long, value_enum, default_value_t = Stage::Graph)]
        stage: Stage,
        /// Print it as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Execute a crate's Metal kernels on this CPU, watched by a referee, and compare with the reference.
    ///
    /// Builds the crate, records what its model.rs submits for a prompt, a few rows and a decode step, replays every
    /// dispatch from kernels.metal, and reports each fault by kernel and line. Of each kernel it says what it asked of
    /// memory beside the least that it could: bytes beside distinct bytes of each dispatch, lines of 128 bytes that the
    /// lanes of a simdgroup touch together beside those that would hold their bytes. Needs clang.
    Verify {
        /// A crate that forge made.
        crate_directory: PathBuf,
        /// Write what was measured into the crate's report.html too.
        ///
        /// Nothing else of the crate is ever changed.
        #[arg(long)]
        report: bool,
        /// Print the report as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say what this machine has of what forge can use, and what to install.
    Doctor,
    /// Print a script with which a shell completes what is typed.
    ///
    /// For bash: forge completions bash > ~/.local/share/bash-completion/completions/forge
    Completions {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// What is compiled, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompileArguments {
    /// A checkpoint's directory, a GGUF file, or owner/name on the Hugging Face hub.
    ///
    /// Of a GGUF file that is split, any part. On the hub: owner/name, owner/name@revision, and of a repository that holds GGUF
    /// files owner/name:file.gguf or owner/name:Q4_K_M. What of it is not in the hub's cache is fetched into it. HF_TOKEN is
    /// the access token, HF_HUB_CACHE the cache's directory, HF_ENDPOINT the hub's address; HF_HUB_OFFLINE=1 disables the network.
    pub(crate) model: String,
    /// Number format of matrices: keep, f16, q8_0, q4_0, Q4_K_M, auto:5, ... (see --help).
    ///
    /// One of keep, f32, f16, bf16, q8_0, q4_0, q4_k, q5_k or q6_k (llama.cpp's, for multiples of 256 columns), mxfp4, or
    /// affine2, 3, 4, 5, 6 or 8 (groups of 64; affine4_32 and affine4_128 and their like for others, affine4_bf16 and its like for
    /// scales in bf16), in any case.
    ///
    /// Q4_K_S, Q4_K_M, Q5_K_S and Q5_K_M are llama.cpp's mixes: the output matrix in q6_k, and more bits for the value and down
    /// projections of some layers. A matrix whose rows are no multiple of 256 gets affine4_32, affine5_32 or q8_0.
    ///
    /// auto:5 chooses for each matrix, 5 bits a weight on average with scales included: it measures what each format changes, and
    /// spends bits where that is most.
    ///
    /// The matrix of a router, which chooses experts, keeps its numbers unless an override names it or the format is not
    /// quantized.
    #[arg(long, default_value = "keep", value_name = "FORMAT")]
    pub(crate) quant: String,
    /// Another format for matrices by their names in the checkpoint, `*.mlp.down_proj=q8_0`.
    ///
    /// The format is keep or any of --quant's but mixes and auto. `*` stands for any characters, `?` for one, {a,b} for either. May be repeated; of several that match, the last one
    /// wins. A tied head that lm_head=FORMAT sets apart from its table is stored a second time.
    #[arg(long, value_name = "PATTERN=FORMAT")]
    pub(crate) quant_override: Vec<String>,
    /// Number format of cached keys and values: f32, f16 or q8_0 [default: f32 if every matrix is f32, else f16].
    ///
    /// q8_0 takes little more than half the memory of f16, and wants heads of a multiple of 32 channels.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) kv: Option<String>,
    /// Most positions of a conversation [default: what the model was made for].
    #[arg(long, value_name = "POSITIONS")]
    pub(crate) max_context: Option<usize>,
    /// Conversations that memory is stated for, at most 4096.
    ///
    /// In report.html and in what forge prints. The program makes room for as many as its own --slots says: for 1, and to serve
    /// for 4, unless told otherwise.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) slots: u16,
    /// Chip or card to lay kernels out for, such as m4-max or h200 [default: m4-max; with --target metal,cuda h200].
    ///
    /// Apple's chips from m1 to m5-max, NVIDIA's cards from rtx-3090 to h200. Predictions are made for it, too.
    #[arg(long, value_name = "CHIP")]
    pub(crate) chip: Option<String>,
    /// GPUs that the program is for. Metal is always among them.
    ///
    /// cuda: NVIDIA GPUs of compute capability 7.0 (Volta) or later; the same kernels, translated by a clang that can write PTX, as
    /// those of LLVM and of Linux can.
    #[arg(long, value_enum, value_name = "GPU", value_delimiter = ',', default_value = "metal")]
    pub(crate) target: Vec<Target>,
    /// Lay kernels out as a program's `tune` has measured.
    ///
    /// For the products and the attention that the table has; the program was compiled with --tunable.
    #[arg(long, value_name = "FILE")]
    pub(crate) tuned: Option<PathBuf>,
    /// Let the program's `tune` measure other layouts of its kernels.
    ///
    /// Of its products and of its attention, to find out which of them the user's GPU is fastest with. The program is as fast as
    /// without.
    #[arg(long)]
    pub(crate) tunable: bool,
    /// Leave a fusion out; may be repeated (see --help).
    ///
    /// To see what it is worth or whether it is to blame. One of gate_pair,
    /// experts_shared, merge_projections, rotate_append, delta_mixer, each, heads_gate, gate_first, two_sums, residual, norm_add,
    /// fold_gain, attention_prologue, delta_prologue, take, experts_choose, deferred_norm, head_argmax, or all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) disable_fusion: Vec<String>,
    /// What the program is called [default: the checkpoint's directory].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// A configuration key that has no effect, though forge does not know it. May be repeated.
    #[arg(long, value_name = "KEY")]
    pub(crate) allow_unknown: Vec<String>,
    /// Leave out golden.json, which `verify` compares with: compiles faster.
    #[arg(long)]
    pub(crate) no_golden: bool,
    /// List config keys and tensors that have no effect.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// What kind of GPU a program can compute on, beside the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// The GPUs of Macs.
    Metal,
    /// Those of NVIDIA.
    Cuda,
}

impl CompileArguments {
    /// Whether the program is for NVIDIA GPUs too.
    pub(crate) fn cuda(&self) -> bool {
        self.target.contains(&Target::Cuda)
    }
}

/// The stages of the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    /// The files and tensors found.
    Checkpoint,
    /// What the model computes.
    Graph,
    /// Which kernels, on which bytes, in which order.
    Plan,
    /// The text of kernels.metal.
    Kernels,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn short_help_is_a_screen_and_long_help_tells_more() {
        let mut command = Arguments::command();
        command.build();
        let compile = command.find_subcommand_mut("compile").expect("there is such a command");
        let (short, long) = (compile.render_help().to_string(), compile.render_long_help().to_string());
        assert!(short.lines().count() <= 45, "{} lines:\n{short}", short.lines().count());
        for line in short.lines().filter(|line| !line.contains("[default") && !line.contains("Usage")) {
            assert!(line.len() <= 130, "{line}");
        }
        assert!(long.lines().count() > 2 * short.lines().count(), "{long}");
        for word in ["HF_HUB_OFFLINE", "affine4_bf16", "gate_pair"] {
            assert!(long.contains(word) && !short.contains(word), "{word}");
        }
    }
}
