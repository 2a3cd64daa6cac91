//! The arguments of each command.

use crate::cli::arguments::common::RunAheadArguments;
use crate::cli::arguments::sampling::SamplingArguments;
use clap::{Args, value_parser};
use clap_complete::Shell;
use forge_device::offload::parse_bandwidth;
use std::path::PathBuf;

/// Generate text from a prompt
#[derive(Debug, Args)]
pub struct Generate {
    /// Prompt; - reads standard input
    #[arg(
        short,
        long,
        value_name = "TEXT",
        required_unless_present = "token_ids",
        conflicts_with = "token_ids",
        allow_hyphen_values = true
    )]
    pub(crate) prompt: Option<String>,
    /// Token ids to continue
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',')]
    pub(crate) token_ids: Vec<u32>,
    /// Generate at most N tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    /// Stop before this string (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
    /// Continue after the end-of-text token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) run_ahead: RunAheadArguments,
    /// Print one JSON object when done
    #[arg(long)]
    pub(crate) json: bool,
}

/// Chat with the model in the terminal
#[derive(Debug, Args)]
pub struct Chat {
    /// Send one message, print the reply and exit; - reads standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// System prompt
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Continue a conversation saved with /save
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) load: Option<PathBuf>,
    /// Generate at most N tokens per reply [default: the rest of the context]
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Variable for the chat template, such as enable_thinking=false (repeatable)
    #[arg(long = "chat-template-kwarg", value_name = "NAME=VALUE")]
    pub(crate) template_variables: Vec<String>,
    #[command(flatten)]
    pub(crate) run_ahead: RunAheadArguments,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
}

/// Serve the model over HTTP with the OpenAI API
#[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "defined for the reference page only"))]
#[derive(Debug, Args)]
#[command(after_help = "\
OpenAI clients work with the base URL http://127.0.0.1:8080/v1.

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Each of the --slots holds --ctx-size tokens, prompt and output together. A longer prompt is rejected, never truncated.
Requests beyond --slots wait; beyond --queue they get status 429. Ctrl-C finishes running requests, then exits; a second
Ctrl-C exits at once.")]
pub struct Serve {
    /// Address to listen on; a public address needs --api-key or --no-api-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Accepted bearer token (repeatable) [default: MODEL_API_KEY]
    ///
    /// Clients send `Authorization: Bearer KEY`. Unlike --api-key, the environment variable MODEL_API_KEY is not visible in the
    /// process list.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// Allow requests without an API key on a public address
    #[arg(long)]
    pub(crate) no_api_key: bool,
    /// Maximum number of requests that wait for a slot
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u32).range(..=65536))]
    pub(crate) queue: u32,
    /// Browser origin that may send requests, such as https://example.org, or * for all (repeatable)
    // Help text: the URL is shown in a terminal.
    #[allow(rustdoc::bare_urls)]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// Additional model name to accept (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
}

/// Measure perplexity on a text file
#[derive(Debug, Args)]
pub struct Perplexity {
    /// Text file; - reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Line that separates texts; each text is evaluated on its own
    #[arg(long, value_name = "LINE", allow_hyphen_values = true)]
    pub(crate) separator: Option<String>,
    /// Append the end-of-text token and score it too
    #[arg(long)]
    pub(crate) append_eos: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print logits for a token sequence
#[derive(Debug, Args)]
pub struct Logits {
    /// Input token ids
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', required = true)]
    pub(crate) token_ids: Vec<u32>,
    /// Print logits of every position, one row each
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON (the only output format)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Benchmark prefill and decode
#[derive(Debug, Args)]
pub struct Bench {
    /// Prompt lengths to measure; 0 skips prefill
    #[arg(short = 'p', long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [512])]
    pub(crate) n_prompt: Vec<u32>,
    /// Tokens to generate per run; 0 skips decode
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub(crate) n_gen: u32,
    /// Measure with N tokens already in the context
    #[arg(short = 'd', long, value_name = "N,N,..", value_delimiter = ',', default_values_t = [0])]
    pub(crate) n_depth: Vec<u32>,
    /// Measure N sequences in parallel instead, in the columns of llama-batched-bench
    #[arg(short = 'b', long, value_name = "N,N,..", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) n_parallel: Vec<u32>,
    /// Decode for N minutes instead, and print the speed of each minute
    #[arg(long, value_name = "N", conflicts_with = "n_parallel", value_parser = value_parser!(u32).range(1..))]
    pub(crate) minutes: Option<u32>,
    /// Seconds in a minute of --minutes
    #[arg(long, hide = true, value_name = "N", default_value_t = 60, value_parser = value_parser!(u32).range(1..))]
    pub(crate) interval: u32,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..))]
    pub(crate) repetitions: u32,
    #[command(flatten)]
    pub(crate) run_ahead: RunAheadArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure the time of each kernel in a forward pass
#[derive(Debug, Args)]
#[command(
    after_help = "Decode is measured with --ctx-size tokens in the context [default: 512]. Kernels measured in isolation are slower \
                  than in the pass; the time of the whole pass is printed next to the sum."
)]
pub struct Profile {
    /// Also measure prefill of N tokens
    #[arg(short = 'p', long, value_name = "N", default_value_t = 0)]
    pub(crate) n_prompt: u32,
    /// Also measure decode of N sequences in parallel
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    pub(crate) n_parallel: u32,
    /// Repetitions; the median is reported
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..))]
    pub(crate) repetitions: u32,
    /// Write a trace for Perfetto (ui.perfetto.dev) or Chrome
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Find the fastest kernel layouts for this GPU
#[cfg_attr(not(feature = "tune"), allow(dead_code, reason = "defined for the reference page only"))]
#[derive(Debug, Args)]
#[command(
    after_help = "Needs a program compiled with `forge compile --with-tuning`. The result is a table for `forge compile --tuned \
                  tuned.json`; this program does not change. Ctrl-C writes what was measured so far."
)]
pub struct Tune {
    /// Repetitions of each layout; the median is used
    #[arg(short, long, value_name = "N", default_value_t = 9, value_parser = value_parser!(u32).range(1..))]
    pub(crate) repetitions: u32,
    /// Output file [default: tuned.json beside the weights]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the table as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare logits with the reference
#[derive(Debug, Args)]
pub struct Verify {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print model, memory and cost information
#[derive(Debug, Args)]
pub struct Info {
    /// Predict decode speed for this disk bandwidth, with --experts stream
    #[arg(long, value_name = "BYTES/S", value_parser = parse_bandwidth)]
    pub(crate) disk_bandwidth: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Generate a shell completion script
#[derive(Debug, Args)]
#[command(
    after_help = "Load the script:\n  bash:  source <(PROGRAM completions bash)\n  fish:  PROGRAM completions fish | source\n  zsh:   PROGRAM completions zsh > \"${fpath[1]}/_PROGRAM\""
)]
pub struct Completions {
    /// Shell to generate for
    pub(crate) shell: Shell,
}

/// Record dispatches for the kernel checker
#[derive(Debug, Args)]
pub struct Record {
    /// Input token ids
    #[arg(long, value_name = "ID,ID,..", value_delimiter = ',', required = true)]
    pub(crate) token_ids: Vec<u32>,
    /// Rows of each pass of one sequence (repeatable) [default: all tokens in one pass]
    #[arg(long, value_name = "N,N,..")]
    pub(crate) chunks: Vec<String>,
    /// GPU cores assumed; with many, short KV caches are split; with 0, none is
    #[arg(long, default_value_t = 64)]
    pub(crate) cores: u32,
    /// Start each slot N tokens after the one before
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) stagger: u32,
    /// Compute logits of every position
    #[arg(long)]
    pub(crate) all: bool,
    /// Decode N more tokens in one pass after each sequence
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u32).range(0..=8))]
    pub(crate) tokens_per_pass: u32,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[cfg(test)]
mod tests {
    use crate::cli::COMMANDS;
    use crate::cli::command::definition;

    #[test]
    fn the_command_line_is_consistent() {
        definition("model", "ModelForCausalLM", COMMANDS).debug_assert();
    }

    #[test]
    fn command_lines_are_accepted_or_rejected() {
        for (line, accepted) in [
            ("generate -p Hello", true),
            ("generate -p -", true),
            ("generate --token-ids 1,2,3 -n 5 --temperature 0 --seed 7 --ignore-eos --json", true),
            ("generate --token-ids 1 --top-k 5 --top-p 0.9 --min-p 0.1 --stop a --stop b", true),
            ("generate", false),
            ("generate -p Hello --token-ids 1", false),
            ("generate --token-ids 1,x", false),
            ("generate -p Hello -n 0", false),
            ("generate -p Hello --device tpu", false),
            ("logits --token-ids 1,2 --all --json --ctx-size 64 --threads 2 --slots 3", true),
            ("logits", false),
            ("bench -p 16,32 -n 4 -r 2 --tokens-per-pass 8 --json", true),
            ("profile -p 64 -r 3 --ctx-size 128 --trace F --json", true),
            ("profile -r 0", false),
            ("tune -r 3 -o F --json", true),
            ("tune -r 0", false),
            ("generate --token-ids 1 --tokens-per-pass 8", true),
            ("generate --tokens-per-pass 8", false),
            ("generate --token-ids 1 --tokens-per-pass 9", false),
            ("chat --tokens-per-pass 2", true),
            ("--device cpu verify --json", true),
            ("info --json --model-dir elsewhere", true),
            ("info --experts stream:20G --disk-bandwidth 6GB/s", true),
            ("info --disk-bandwidth fast", false),
            ("generate --token-ids 1 --experts elsewhere", false),
            ("serve", cfg!(feature = "serve")),
            ("serve --port 70000", false),
            ("record --token-ids 1,2,3 --chunks 3 --chunks 2,1 --tokens-per-pass 3 -o F", true),
            (
                "generate --token-ids 1 --typical-p 0.9 --repetition-penalty 1.1 --presence-penalty -1 --logit-bias 3=-2.5",
                true,
            ),
            ("generate --token-ids 1 --logit-bias 3", false),
            ("chat", true),
            (
                "chat -p Hello --system Short -n 20 --temperature 0 --chat-template-kwarg enable_thinking=false",
                true,
            ),
            ("chat -p Hello --load F", false),
            ("perplexity F --separator --- --append-eos --json", true),
            ("perplexity", false),
            ("completions zsh", true),
            ("completions perl", false),
            ("talk", false),
            ("", false),
        ] {
            let words = std::iter::once("model").chain(line.split_whitespace());
            let parsed = definition("model", "ModelForCausalLM", COMMANDS).try_get_matches_from(words);
            assert_eq!(parsed.is_ok(), accepted, "{line}");
        }
    }
}
