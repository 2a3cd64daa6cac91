//! What can be typed.

use super::super::experts::{Residence, speed};
use super::super::failure::Failure;
use super::super::open::{DeviceKind, Setup};
use super::super::sampler::Sampling;
use super::output::remark;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "model", version, disable_help_subcommand = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
    #[command(flatten)]
    pub(super) common: Common,
}

/// More than any machine runs at once; each takes a stack and waits for all others.
const MOST_THREADS: i64 = 1024;

/// What is understood everywhere.
#[derive(Debug, Args)]
pub(super) struct Common {
    /// Where to compute
    #[arg(long, global = true, value_enum, default_value_t = DeviceKind::Auto, help_heading = "Everywhere")]
    pub(super) device: DeviceKind,
    /// Threads of the CPU device [default: as many as the machine runs at once]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_THREADS), help_heading = "Everywhere")]
    pub(super) threads: Option<u16>,
    /// Read weights on the CPU from the mapped file, whose pages programs share [default: on Linux first
    /// ids come of the file, and meanwhile a copy is made, laid out for the CPU and in huge pages, which is read faster; the file's pages
    /// are let go]
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(super) mapped: bool,
    /// Where a model's experts are: `resident` in memory, `streamed:20G` from disk, where those chosen lately have so much memory
    /// (`streamed`: what is free), or, on a CPU, `mapped`, which leaves it to the system [default: resident]
    ///
    /// Which of them texts ask for is counted in experts.json beside the weights, and the next run begins with those.
    #[arg(long, global = true, value_name = "WHERE", help_heading = "Everywhere")]
    pub(super) experts: Option<Residence>,
    /// Multiply on the CPU by numbers as they are, also where weights are codes
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(super) exact: bool,
    /// Positions to make room for [default: what the command needs; info: the model's, up to 8192]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Everywhere")]
    pub(super) context: Option<u32>,
    /// Conversations to make room for [default: 1; serve: 4]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Everywhere")]
    pub(super) slots: Option<u32>,
    /// The directory of weights.safetensors, tokenizer.json and golden.json
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    pub(super) model_dir: Option<PathBuf>,
}

impl Common {
    /// How the program is to be run.
    pub(super) fn setup(&self) -> Setup {
        Setup {
            directory: self.model_dir.clone(),
            device: self.device,
            threads: self.threads.map(usize::from),
            mapped: self.mapped,
            experts: self.experts.unwrap_or_default(),
            exact: self.exact,
            context: self.context,
            slots: self.slots.unwrap_or(1),
            told: |what| remark(&what),
        }
    }
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Continue a text
    Generate(Generate),
    /// Hold a conversation
    Chat(Chat),
    /// Answer requests over HTTP, as OpenAI's server does
    #[cfg(feature = "serve")]
    Serve(super::serve::Serve),
    /// Measure how well the model foretells a text
    Perplexity(Perplexity),
    /// Print the logits after some ids
    Logits(Logits),
    /// Measure speed
    Bench(Bench),
    /// Measure how long each step of a pass takes
    Profile(Profile),
    /// Find out which layouts of its products and of its attention this GPU is fastest with
    Tune(Tune),
    /// Compare this device's logits with the reference's, and on a CPU int8 activations with f32
    Verify(Verify),
    /// Say what the model is and what memory it takes
    Info(Info),
    /// Print a script that lets a shell finish what is typed
    Completions(Completions),
    /// Write down what a device is told to do, for a simulator to replay
    #[command(hide = true)]
    Record(Record),
}

/// How far the device may be ahead.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Ahead {
    /// Where ids are chosen on the device, have it write N of them before it is looked at what they are [default:
    /// what the device gains by; where a model's memories cannot go back, 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(super) chain: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct Generate {
    /// The text to continue; `-` reads it from standard input
    #[arg(
        short,
        long,
        value_name = "TEXT",
        required_unless_present = "ids",
        conflicts_with = "ids",
        allow_hyphen_values = true
    )]
    pub(super) prompt: Option<String>,
    /// The ids to continue, as they are
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',')]
    pub(super) ids: Vec<u32>,
    /// How many ids to generate at most
    #[arg(short = 'n', long = "count", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) count: u32,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
    /// End the text before this string (may be given several times)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) stop: Vec<String>,
    /// Go on after the id that ends a text
    #[arg(long)]
    pub(super) ignore_eos: bool,
    #[command(flatten)]
    pub(super) ahead: Ahead,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Chat {
    /// Say this, print the answer, and end; `-` reads it from standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,
    /// What the model is to keep in mind, if its template has a place for that
    #[arg(short, long, value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Go on with a conversation that /save wrote
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(super) load: Option<PathBuf>,
    /// How many ids an answer has at most [default: as many as the context has room for]
    #[arg(short = 'n', long = "count", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) count: Option<u32>,
    /// A variable of the chat template, such as enable_thinking=false (may be given several times)
    #[arg(long = "variable", value_name = "NAME=VALUE")]
    pub(super) variables: Vec<String>,
    #[command(flatten)]
    pub(super) ahead: Ahead,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
}

#[derive(Debug, Args)]
pub(super) struct Perplexity {
    /// The text; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// The file holds several texts, between which a line has this and nothing else; each is measured by itself
    #[arg(long, value_name = "LINE", allow_hyphen_values = true)]
    pub(super) separator: Option<String>,
    /// Each text ends with the id that ends texts, which is to be foretold too
    #[arg(long)]
    pub(super) end: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How ids are chosen. What is not given is as generation_config.json has it, or else plain.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling [default: the model's generation_config.json]")]
pub(super) struct SamplingArguments {
    /// 0 always takes the most probable id; higher is wilder
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(super) temperature: Option<f32>,
    /// Choose among the K most probable ids; 0 among all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(super) top_k: Option<usize>,
    /// Choose among ids about as surprising as is to be expected that have this share of probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) typical_p: Option<f32>,
    /// Choose among the fewest ids that have this share of probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) top_p: Option<f32>,
    /// Choose among ids at least P times as probable as the most probable
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) min_p: Option<f32>,
    /// Divide the logits of ids that the prompt or the answer has
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(super) repetition_penalty: Option<f32>,
    /// Take from the logits of ids that the answer has
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(super) presence_penalty: Option<f32>,
    /// Take from the logits of ids that the answer has, for each time
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(super) frequency_penalty: Option<f32>,
    /// Add to the logit of an id (may be given several times)
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    pub(super) logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text [default: a new one, printed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,
}

/// An id and what is added to its logit.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| "an id and a number are wanted, such as 12=-3.5".to_owned())
}

impl SamplingArguments {
    /// As the sampler takes them, where `models` is what the model's makers would have.
    pub(super) fn sampling(&self, models: Sampling, vocabulary: u32) -> Result<Sampling, Failure> {
        if let Some((id, _)) = self.logit_bias.iter().find(|(id, _)| *id >= vocabulary) {
            let message = format!("--logit-bias: id {id} is outside the vocabulary of {vocabulary}");
            return Err(Failure::Misuse(message));
        }
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(models.temperature),
            top_k: self.top_k.unwrap_or(models.top_k),
            typical_p: self.typical_p.unwrap_or(models.typical_p),
            top_p: self.top_p.unwrap_or(models.top_p),
            min_p: self.min_p.unwrap_or(models.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(models.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(models.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(models.frequency_penalty),
            bias: self.logit_bias.clone(),
        };
        sampling.check().map_err(Failure::Misuse)?;
        Ok(sampling)
    }

    /// The seed that was given, or one that nobody has used: the time, in nanoseconds.
    pub(super) fn seed(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        self.seed.unwrap_or_else(now)
    }
}

#[derive(Debug, Args)]
pub(super) struct Logits {
    /// The ids
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', required = true)]
    pub(super) ids: Vec<u32>,
    /// The logits after every id, one row each, not only after the last
    #[arg(long)]
    pub(super) all: bool,
    /// Print JSON, which is what this command always prints
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Lengths of prompts to measure; 0 measures none
    #[arg(short, long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [512])]
    pub(super) prompt: Vec<u32>,
    /// How many ids to generate; 0 measures none
    #[arg(short = 'n', long = "count", value_name = "N", default_value_t = 128)]
    pub(super) count: u32,
    /// Measure behind texts of so many ids, which are read before
    #[arg(short, long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [0])]
    pub(super) depth: Vec<u32>,
    /// How often each is measured
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeat: u32,
    #[command(flatten)]
    pub(super) ahead: Ahead,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "An id is measured where a text fills --context N positions [default: 512]. What is measured by itself is slower than \
                  as a part of the whole: the time of the whole pass stands beside the sum."
)]
pub(super) struct Profile {
    /// Measure the passes of a prompt of N ids, too
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub(super) prompt: u32,
    /// Rounds, of which the middle counts
    #[arg(short = 'n', long = "count", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) count: u32,
    /// Write what was measured as a trace for Perfetto (ui.perfetto.dev) or Chrome, an event for each step
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The program has to be compiled with `forge compile --tunable`. What comes of it is a table for `forge compile --tuned \
                  tuned.json`, which lays kernels out so; this program stays as it is. Ctrl-C writes what was measured so far."
)]
pub(super) struct Tune {
    /// How often each layout is timed; the middle counts
    #[arg(short = 'n', long = "count", value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) count: u32,
    /// Where the table goes [default: tuned.json beside the weights]
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Print the table, too
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Info {
    /// Say how fast a disk of this speed lets the model write, where its experts are streamed
    #[arg(long, value_name = "BYTES/S", value_parser = speed)]
    pub(super) disk: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "bash:  source <(PROGRAM completions bash)\nfish:  PROGRAM completions fish | source\nzsh:   PROGRAM completions zsh > \"${fpath[1]}/_PROGRAM\""
)]
pub(super) struct Completions {
    /// The shell
    pub(super) shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct Record {
    /// The ids
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', required = true)]
    pub(super) ids: Vec<u32>,
    /// One sequence: rows of each of its passes. It takes as many of the ids as their sum [default: all in one pass]
    #[arg(long, value_name = "N,N,..")]
    pub(super) chunks: Vec<String>,
    /// Cores of the device: of many, few rows share out even short caches; of 0, none
    #[arg(long, default_value_t = 64)]
    pub(super) cores: u32,
    /// Ask for the logits of every position, not only of each sequence's last
    #[arg(long)]
    pub(super) all: bool,
    /// After each sequence have the device write N ids in one pass
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=8))]
    pub(super) chain: u32,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_typed_is_understood_or_refused() {
        for (line, accepted) in [
            ("generate -p Hello", true),
            ("generate -p -", true),
            ("generate --ids 1,2,3 -n 5 --temperature 0 --seed 7 --ignore-eos --json", true),
            ("generate --ids 1 --top-k 5 --top-p 0.9 --min-p 0.1 --stop a --stop b", true),
            ("generate", false),
            ("generate -p Hello --ids 1", false),
            ("generate --ids 1,x", false),
            ("generate -p Hello -n 0", false),
            ("generate -p Hello --device tpu", false),
            ("logits --ids 1,2 --all --json --context 64 --threads 2 --slots 3", true),
            ("logits", false),
            ("bench -p 16,32 -n 4 -r 2 --chain 8 --json", true),
            ("profile -p 64 -n 3 --context 128 --trace F --json", true),
            ("profile -n 0", false),
            ("tune -n 3 -o F --json", true),
            ("tune -n 0", false),
            ("generate --ids 1 --chain 8", true),
            ("generate --chain 8", false),
            ("generate --ids 1 --chain 9", false),
            ("chat --chain 2", true),
            ("--device cpu verify --json", true),
            ("info --json --model-dir elsewhere", true),
            ("info --experts streamed:20G --disk 6GB/s", true),
            ("info --disk fast", false),
            ("generate --ids 1 --experts elsewhere", false),
            ("serve", cfg!(feature = "serve")),
            ("serve --port 70000", false),
            ("record --ids 1,2,3 --chunks 3 --chunks 2,1 --chain 3 -o F", true),
            (
                "generate --ids 1 --typical-p 0.9 --repetition-penalty 1.1 --presence-penalty -1 --logit-bias 3=-2.5",
                true,
            ),
            ("generate --ids 1 --logit-bias 3", false),
            ("chat", true),
            ("chat -p Hello --system Short -n 20 --temperature 0 --variable enable_thinking=false", true),
            ("chat -p Hello --load F", false),
            ("perplexity F --separator --- --end --json", true),
            ("perplexity", false),
            ("completions zsh", true),
            ("completions perl", false),
            ("talk", false),
            ("", false),
        ] {
            let words = std::iter::once("model").chain(line.split_whitespace());
            assert_eq!(Arguments::try_parse_from(words).is_ok(), accepted, "{line}");
        }
    }
}
