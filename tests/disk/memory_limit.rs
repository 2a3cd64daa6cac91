//! A model that is larger than the memory of its program. With streamed experts it generates the same tokens
//! as with all experts in memory, and uses the memory that `info` prints.
//!
//! The limit is `ulimit -d` (RLIMIT_DATA), which counts private writable memory, touched or not: weights,
//! expert cache slots, KV cache, scratch, heap, and the stacks of all threads. The ten compute and I/O
//! threads have stacks of 2 MiB each, nearly half as much as the memory that `info` prints. Mapped files are
//! not counted, because their pages can be dropped; the test checks them against the same bound with figures
//! of the system.

use serde_json::{Value, json};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tests::{build_together, compile_member, run, scratch};

/// Memory of the expert cache. All experts have 241 MB: one in six is cached, seven times as many as a token
/// of a layer uses.
const EXPERT_CACHE: &str = "stream:40M";

/// Context length: the prompt and the generated tokens.
const CONTEXT: &str = "128";

/// A Qwen3-MoE that consists almost entirely of experts: 384 of 627 kB in q8_0, of which a token uses 48. A
/// third of its 246 MB is 82 MB. That must exceed the 53 MB printed by `info` plus 20 MB of stacks, so the
/// model cannot be much smaller.
fn config() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
        "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 512, "moe_intermediate_size": 384, "num_experts": 64, "num_experts_per_tok": 8,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 512,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "tie_word_embeddings": true, "attention_bias": false, "bos_token_id": 256, "eos_token_id": 257,
    })
}

struct Program {
    path: PathBuf,
    /// Bytes of its weight file.
    weights: u64,
}

fn built() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| {
        let workspace = scratch().join("disk").join("large");
        let (checkpoint, name) = (tempfile::tempdir().expect("a temporary folder"), "qwen3-moe-large");
        xtask::random_model::write(&config(), None, checkpoint.path())
            .unwrap_or_else(|error| panic!("{error}"));
        let directory = workspace.join(name);
        compile_member(checkpoint.path(), &["--quant", "q8_0"], &directory);
        let mut programs = build_together(&workspace, [name.to_owned()].into_iter());
        let weights = directory.join("weights.safetensors").metadata().expect("a crate has weights").len();
        Program { path: programs.remove(name).expect("it was built"), weights }
    })
}

/// The command line of the program with this expert placement, and the same context length in every case.
fn program(experts: &str, command: &str) -> Command {
    let mut command_line = Command::new(&built().path);
    command_line.args([command, "--json", "--device", "cpu", "--threads", "2", "--ctx-size", CONTEXT]);
    command_line.args(["--experts", experts]);
    command_line
}

/// The result of a run, and its peak memory.
struct RunResult {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    /// Peak bytes of anonymous memory.
    anonymous: u64,
    /// Peak bytes of mapped files.
    mapped: u64,
    /// Peak bytes of both.
    total: u64,
}

impl RunResult {
    fn token_ids(&self) -> Value {
        assert!(self.status.success(), "{}", self.stderr);
        let output: Value = serde_json::from_str(&self.stdout).expect("it is JSON");
        assert_eq!(output["token_ids"].as_array().map(Vec::len), Some(24), "{output}");
        output["token_ids"].clone()
    }
}

/// Processes a prompt of a few passes and generates tokens, with the data limit.
fn generate(experts: &str, limit: Option<u64>) -> RunResult {
    let prompt: Vec<String> = (0..60).map(|index| (index * index * 31 % 509).to_string()).collect();
    let mut command = program(experts, "generate");
    command.args(["--token-ids", &prompt.join(","), "-n", "24", "--temperature", "0", "--ignore-eos"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(limit) = limit {
        let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        // SAFETY: setrlimit may be called between fork and exec, and its argument is owned by the closure.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_DATA, &limits) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
    }
    let mut child = command.spawn().expect("the program runs");
    let (mut anonymous, mut mapped, mut total) = (0, 0, 0);
    // The whole output fits a pipe.
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is a child") {
            break status;
        }
        let table = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        anonymous = anonymous.max(line_of(&table, "RssAnon:"));
        mapped = mapped.max(line_of(&table, "RssFile:"));
        total = total.max(line_of(&table, "VmHWM:"));
        std::thread::sleep(Duration::from_millis(1));
    };
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().expect("it is piped").read_to_string(&mut stdout).expect("it is text");
    child.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("it is text");
    RunResult { status, stdout, stderr, anonymous, mapped, total }
}

/// A value in bytes of a process's status table; `None` if the process has ended.
fn line_of(table: &str, name: &str) -> u64 {
    let line = table.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |number| number * 1024)
}

/// The memory that `info` reports.
fn reported_memory(experts: &str) -> u64 {
    let info: Value = serde_json::from_slice(&run(&mut program(experts, "info")).stdout).expect("it is JSON");
    println!("{experts}: {} {}", info["memory"], info["experts"]);
    info["memory"]["total_bytes"].as_u64().expect("it is a number")
}

fn show(what: &str, result: &RunResult) {
    println!(
        "{what}: {} bytes anonymous, {} mapped, {} in total: {}",
        result.anonymous, result.mapped, result.total, result.status
    );
}

#[test]
fn generates_the_same_tokens_with_memory_for_a_third_of_the_weights() {
    let limit = built().weights / 3;
    let resident = generate("resident", None);
    show("resident", &resident);
    // The amount of repacked weights depends on the speed; the rest is still mapped.
    assert!(resident.total > 2 * limit, "with resident experts, memory must exceed the limit");

    let streamed = generate(EXPERT_CACHE, Some(limit));
    show("streamed, limited", &streamed);
    assert_eq!(streamed.token_ids(), resident.token_ids());
    let reported = reported_memory(EXPERT_CACHE);
    println!("{} bytes of weights, {limit} permitted, {reported} reported", built().weights);
    assert!(
        streamed.anonymous * 100 <= reported * 105,
        "{} bytes, and {reported} are reported",
        streamed.anonymous
    );
    assert!(
        streamed.total <= limit,
        "{} bytes with what is mapped, and {limit} are permitted",
        streamed.total
    );
}

/// The limit must fail without expert streaming, and with more cache slots than fit.
#[test]
fn memory_limit_rejects_resident_experts_and_large_caches() {
    let limit = built().weights / 3;
    let rejected = generate(&format!("stream:{limit}"), Some(limit));
    show("a cache as large as the limit", &rejected);
    assert!(!rejected.status.success(), "{}", rejected.stdout);
    assert!(rejected.stderr.contains("for the expert cache"), "{}", rejected.stderr);

    // Without memory for a copy of the weights, the program uses the mapped file.
    let resident = generate("resident", Some(limit));
    show("resident, limited", &resident);
    assert!(resident.anonymous <= limit, "{} bytes of {limit}", resident.anonymous);
    assert!(resident.total > limit, "streaming must take less memory: {}", resident.total);
}
