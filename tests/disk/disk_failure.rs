//! A disk that fails while experts are streamed from it: running requests get an error, and the server
//! continues.

use crate::fuse_disk::Disk;
use crate::http::OpenResponse;
use crate::server::Server;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;
use tests::{build_together, compile_member, model, run, scratch};

const MODEL: &str = "qwen3_moe";
const WEIGHTS: &str = "weights.safetensors";
/// The other files of the model.
const OTHER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "golden.json"];
/// Tokens to generate: as many as fit the context, so that the failure comes in the middle.
const COUNT: usize = 240;

struct Program {
    directory: PathBuf,
    program: PathBuf,
    /// A server with the minimum of expert cache slots.
    experts: String,
    /// The output for [`request`] with resident experts.
    text: String,
}

fn built() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| {
        let workspace = scratch().join("disk").join("served");
        let name = format!("{}-served", MODEL.replace('_', "-"));
        let directory = workspace.join(&name);
        compile_member(&model(MODEL), &["--quant", "f32"], &directory);
        let mut programs = build_together(&workspace, [name.clone()].into_iter());
        let program = programs.remove(&name).expect("it was built");
        let experts = format!("stream:{}", minimum_cache_bytes(&program));
        let ids = request(false)["prompt"].to_string();
        let count = COUNT.to_string();
        let mut command = Command::new(&program);
        command.args(["generate", "--token-ids", ids.trim_matches(['[', ']']), "-n", &count]);
        command.args(["--temperature", "0", "--ignore-eos", "--json", "--device", "cpu"]);
        let output: Value = serde_json::from_slice(&run(&mut command).stdout).expect("it is JSON");
        let text = output["text"].as_str().expect("it is text").to_owned();
        Program { directory, program, experts, text }
    })
}

/// The minimum expert memory that the program's error names.
fn minimum_cache_bytes(program: &Path) -> u64 {
    let output = Command::new(program).args(["info", "--device", "cpu", "--experts", "stream:1"]).output();
    let stderr = String::from_utf8(output.expect("the program runs").stderr).expect("it is text");
    let number = stderr.split_once(" bytes are enough").and_then(|(before, _)| before.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{stderr}"))
}

fn request(stream: bool) -> Value {
    json!({
        "prompt": [1, 2, 3], "max_tokens": COUNT, "temperature": 0, "ignore_eos": true, "stream": stream,
    })
}

/// A directory with the model's files except the weights.
fn folder(built: &Program) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in OTHER_FILES.iter().filter(|name| built.directory.join(name).exists()) {
        std::fs::copy(built.directory.join(name), folder.path().join(name)).expect("it can be copied");
    }
    folder
}

/// Appends the text of a stream and returns the error that it ends with.
fn read_stream(mut stream: OpenResponse, text: &mut String) -> Option<String> {
    while let Some(data) = stream.event().filter(|data| data != "[DONE]") {
        let event: Value = serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}"));
        if let Some(message) = event["error"]["message"].as_str() {
            assert_eq!(stream.event(), None, "an error must be the last event");
            return Some(message.to_owned());
        }
        text.push_str(event["choices"][0]["text"].as_str().expect("a piece has text"));
    }
    None
}

/// Asserts that a stream started, did not complete, and ends with an error about the weights.
fn assert_stream_failed(built: &Program, text: &str, error: Option<String>, reason: &str) {
    let error = error.unwrap_or_else(|| panic!("the text is whole: {text}"));
    println!("after {} of {} bytes of text: {error}", text.len(), built.text.len());
    assert!(!text.is_empty() && text.len() < built.text.len(), "in the middle of the text: {text}");
    assert!(built.text.starts_with(text), "the text before the error must be correct: {text}");
    for part in ["experts cannot be read", WEIGHTS, reason] {
        assert!(error.contains(part), "{part:?} should be in {error:?}");
    }
}

/// Asserts that requests on the dead disk get an error, and that the server stays alive.
fn assert_server_survives(server: &Server, reason: &str) {
    let response = server.post(&request(false)).response();
    assert_eq!(response.status, 500, "{}", response.body);
    let error = response.json()["error"]["message"].to_string();
    assert!(error.contains(reason), "{reason:?} should be in {error}");
    assert_eq!(server.get("/health").json(), json!({ "status": "ok" }));
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.metric("requests_failed_total"), 2.0);
}

/// Asserts that the metrics have the disk-bound limit and its utilisation, for the requests of this test
/// only.
fn assert_disk_metrics(server: &Server) {
    let [disk, rows, miss_bytes, seconds, bound, ratio] = [
        "expert_disk_bytes_per_second",
        "batch_tokens_total",
        "expert_cache_miss_bytes_total",
        "forward_seconds_total",
        "expert_disk_bound_tokens_per_second",
        "expert_disk_bound_ratio",
    ]
    .map(|name| server.metric(name));
    println!("{disk} B/s permit {bound} tok/s; the ratio is {ratio}");
    assert!(disk > 0.0 && miss_bytes > 0.0 && rows >= COUNT as f64);
    let near = |actual: f64, expected: f64| {
        assert!((actual / expected - 1.0).abs() < 1e-9, "{actual}, not {expected}")
    };
    near(bound, disk * rows / miss_bytes);
    near(ratio, rows / seconds / bound);
}

#[test]
fn disk_failure_fails_the_request_and_the_server_continues() {
    let built = built();
    let folder = folder(built);
    let mounted = tempfile::tempdir().expect("a temporary folder");
    let weights = std::fs::read(built.directory.join(WEIGHTS)).expect("a crate has weights");
    let disk = match Disk::mount(mounted.path(), weights) {
        Ok(disk) => disk,
        Err(why) => {
            // Written past the test harness, which hides the output of passing tests.
            let written = writeln!(
                std::io::stdout(),
                "NOT CHECKED: a server on a disk with read errors, because no FUSE disk can be mounted: {why}. The other test truncates \
                 the weight file."
            );
            return written.expect("standard output is open");
        }
    };
    std::os::unix::fs::symlink(disk.path(), folder.path().join(WEIGHTS)).expect("a link can be made");
    let server = Server::start(&built.program, folder.path(), &built.experts);

    // Number of reads for this output; direct I/O bypasses the page cache.
    let before = disk.reads();
    assert_eq!(server.text(&request(false)), built.text);
    let reads = disk.reads() - before;
    println!("{COUNT} tokens take {reads} reads");
    assert!(reads > COUNT as u64, "experts are read again and again: {reads} reads");

    disk.fail_after(reads / 2);
    let mut text = String::new();
    let error = read_stream(server.post(&request(true)), &mut text);
    assert_stream_failed(built, &text, error, "Input/output error");
    assert_server_survives(&server, "Input/output error");

    disk.recover();
    assert_eq!(server.text(&request(false)), built.text);
    let mut text = String::new();
    assert_eq!(read_stream(server.post(&request(true)), &mut text), None);
    assert_eq!(text, built.text);
    server.stop();
}

/// A substitute for a failing disk where FUSE is missing: the file is truncated in place, so reads past its
/// new end fail.
#[test]
fn truncated_weights_fail_the_request_and_the_server_continues() {
    let built = built();
    let folder = folder(built);
    let path = folder.path().join(WEIGHTS);
    std::fs::copy(built.directory.join(WEIGHTS), &path).expect("it can be copied");
    let whole = std::fs::read(&path).expect("it was copied");
    let file = File::options().write(true).open(&path).expect("it was copied");
    let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("files have a time");
    let server = Server::start(&built.program, folder.path(), &built.experts);
    assert_eq!(
        server.metric("expert_cache_read_bytes_total"),
        0.0,
        "reads before the first request do not count"
    );
    assert_eq!(server.text(&request(false)), built.text);
    assert_disk_metrics(&server);

    let mut stream = server.post(&request(true));
    let mut text = String::new();
    for _ in 0..3 {
        let data = stream.event().expect("the text has begun");
        let event: Value = serde_json::from_str(&data).expect("it is JSON");
        text.push_str(event["choices"][0]["text"].as_str().expect("a piece has text"));
    }
    file.set_len(whole.len() as u64 / 3).expect("it can be cut");
    let error = read_stream(stream, &mut text);
    assert_stream_failed(built, &text, error, "changed since the program started");
    assert_server_survives(&server, "changed since the program started");

    file.write_all_at(&whole, 0).expect("it is writable");
    file.set_modified(modified).expect("it is its owner's");
    assert_eq!(server.text(&request(false)), built.text);
    server.stop();
}
