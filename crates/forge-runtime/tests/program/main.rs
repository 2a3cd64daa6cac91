//! The program of the tiny model: output and exit code of every command.

#[path = "../support/mod.rs"]
mod support;

#[cfg(unix)]
mod cut_short;
#[cfg(feature = "serve")]
mod served;

mod chat;
mod measurements;
mod verification;

use crate::chat::say;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use support::reference::{Reference, write_tokenizer};
use tempfile::TempDir;

/// A directory with the files that the compiler writes.
pub(crate) fn directory(error: f64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let reference = Reference::new();
    reference.write_weights(&folder.path().join("weights.safetensors"));
    reference.write_golden(&folder.path().join("golden.json"), error);
    write_tokenizer(&folder.path().join("tokenizer.json"));
    folder
}

pub(crate) fn program(folder: &TempDir, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiny-model"));
    command.args(line.split_whitespace()).arg("--model-dir").arg(folder.path());
    command.env_remove("FORGE_ISA");
    command
}

pub(crate) fn run(folder: &TempDir, line: &str) -> Output {
    program(folder, line).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that must succeed, and returns the JSON that it prints.
pub(crate) fn json(folder: &TempDir, line: &str) -> Value {
    let output = run(folder, line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    serde_json::from_str(&text(&output.stdout)).unwrap()
}

#[test]
fn logits_are_json() {
    let folder = directory(0.0);
    let wanted = Reference::new().logits(&[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let all =
        json(&folder, "logits --token-ids 3,4,5,6,7,8,9,10,11,12 --all --json --threads 2 --f32-activations");
    let last = json(&folder, "logits --token-ids 3,4,5,6,7,8,9,10,11,12 --device cpu --f32-activations");
    assert_eq!(last["token_ids"].as_array().unwrap().len(), 10);
    assert_eq!(all["logits"].as_array().unwrap().len(), 10);
    for (row, wanted) in wanted.iter().enumerate() {
        for (id, wanted) in wanted.iter().enumerate() {
            assert!((all["logits"][row][id].as_f64().unwrap() - wanted).abs() < 3e-3);
        }
    }
    for (id, wanted) in wanted[9].iter().enumerate() {
        assert!((last["logits"][id].as_f64().unwrap() - wanted).abs() < 3e-3);
    }
}

#[test]
fn generate_continues_ids_and_text() {
    let folder = directory(0.0);
    let prompt = [1, 5, 6, 7];
    let ids = Reference::new().greedy(&prompt, 12);
    let words: Vec<String> = ids.iter().map(|id| format!("w{id}")).collect();
    assert!(ids.iter().all(|&id| id > 2), "the test wants ids that are words: {ids:?}");
    // With f32 activations: the reference does not quantize, and in such a small model the difference
    // matters.
    let line = "generate --f32-activations --temperature 0 -n 12 --json";
    let by_text = {
        let mut command = program(&folder, line);
        let output = command.args(["-p", "w5 w6 w7"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let by_ids = json(&folder, &format!("{line} --token-ids 1,5,6,7"));
    for result in [&by_text, &by_ids] {
        assert_eq!(result["token_ids"], serde_json::json!(ids));
        assert_eq!(result["text"], words.join(" "));
        assert_eq!(result["finish_reason"], "length");
        assert_eq!(result["timings"]["prompt_tokens"], 4);
        assert_eq!(result["timings"]["tokens"], 12);
    }
    // Streamed, from standard input, ended by a stop string that spans several tokens.
    let mut command = program(&folder, "generate --f32-activations -p - --temperature 0 -n 12");
    command.args(["--stop", &format!("{} {}", words[4], words[5])]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"w5 w6 w7").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), format!("{} \n", words[..4].join(" ")));
    let stats = text(&output.stderr);
    assert!(stats.contains("prefill 4 tokens") && stats.contains("stop string"), "{stats}");
    // Without a tokenizer the output consists of token ids.
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let output = run(&folder, "generate --token-ids 1,5,6,7 --temperature 0 -n 3");
    assert_eq!(text(&output.stdout), format!("{} {} {} \n", ids[0], ids[1], ids[2]));
}

#[test]
fn generate_stops_at_the_context_length() {
    let folder = directory(0.0);
    let full =
        json(&folder, "generate --token-ids 3,4 --temperature 0 -n 100 --ctx-size 10 --ignore-eos --json");
    assert_eq!(full["finish_reason"], "context full");
    // Eight tokens fill positions 2 to 9; the ninth is sampled from the last of them.
    assert_eq!(full["token_ids"].as_array().unwrap().len(), 9);
    // End of text: sample until a seed gives token 2.
    let ended = (0..200).find_map(|seed| {
        let line = format!("generate --token-ids 3,4 --temperature 3 -n 40 --seed {seed} --json");
        let result = json(&folder, &line);
        (result["finish_reason"] == "end of text").then_some((seed, result))
    });
    let (seed, result) = ended.expect("one of 200 texts ends");
    assert_eq!(result["token_ids"].as_array().unwrap().last().unwrap(), 2);
    assert!(!result["text"].as_str().unwrap().contains("</s>"));
    let line = format!("generate --token-ids 3,4 --temperature 3 -n 40 --seed {seed} --json");
    assert_eq!(json(&folder, &line)["token_ids"], result["token_ids"]);
    let longer = json(&folder, &format!("{line} --ignore-eos"));
    assert_eq!(longer["token_ids"].as_array().unwrap().len(), 40);
}

#[test]
fn sampling_defaults_come_from_the_checkpoint() {
    let folder = directory(0.0);
    let config = |text: &str| std::fs::write(folder.path().join("generation_config.json"), text).unwrap();
    let ids = |line: &str| {
        json(&folder, &format!("generate --token-ids 3,4 -n 12 --seed 5 --ignore-eos --json {line}"))["token_ids"]
            .clone()
    };
    let greedy = ids("--temperature 0");
    config(r#"{ "do_sample": false, "temperature": 1.5 }"#);
    assert_eq!(ids(""), greedy);
    config(r#"{ "do_sample": true, "temperature": 3.0, "top_k": 40, "repetition_penalty": 1.2 }"#);
    let drawn = ids("");
    assert_ne!(drawn, greedy);
    assert_eq!(ids("--temperature 3 --top-k 40 --repetition-penalty 1.2"), drawn);
    assert_eq!(ids("--top-k 1 --repetition-penalty 1"), greedy);
    config(r#"{ "top_p": 7 }"#);
    let output = run(&folder, "generate --token-ids 3");
    assert!(
        text(&output.stderr).contains("generation_config.json: top-p must be"),
        "{}",
        text(&output.stderr)
    );
    config(r#"{ "temperature": "hot" }"#);
    let output = run(&folder, "generate --token-ids 3");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("generation_config.json: temperature must be a number"), "{stderr}");
}

#[test]
fn info_counts_memory_to_the_byte() {
    let folder = directory(0.0);
    let weights = std::fs::metadata(folder.path().join("weights.safetensors")).unwrap().len();
    let info = json(&folder, "info --json --ctx-size 32 --slots 2");
    let memory = &info["memory"];
    assert_eq!(memory["weights_bytes"], weights);
    assert_eq!(memory["kv_bytes"], 2 * 32 * 160);
    let arena = memory["arena_bytes"].as_u64().unwrap();
    assert_eq!(memory["total_bytes"], weights + 2 * 32 * 160 + arena);
    assert_eq!((&memory["context"], &memory["slots"]), (&32.into(), &2.into()));
    assert_eq!(info["model"], "tiny");
    assert_eq!(info["decode"]["dispatches"], 22);
    assert_eq!(info["decode"]["dispatches_per_layer"], serde_json::json!([9, 9]));
    assert_eq!(info["formats"]["q8_0"], 19_400);
    assert_eq!(info["kernels"].as_array().unwrap().len(), 15);
    assert_eq!(json(&folder, "info --json")["memory"]["context"], 64);
    let text = text(&run(&folder, "info").stdout);
    assert!(text.contains("22 dispatches (9 a layer and 4), 21 barriers"), "{text}");
    assert!(text.contains("1 × 64 positions of 80 bytes and 64 of 80 bytes in f16"), "{text}");
}

#[test]
fn completions_list_all_commands() {
    let folder = directory(0.0);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&run(&folder, &format!("completions {shell}")).stdout);
        for word in ["tiny-model", "generate", "temperature"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn without_an_nvidia_gpu_the_error_names_what_is_missing() {
    let Err(why) = forge_runtime::gpu::cuda::find_gpu(&[]) else { return };
    let folder = directory(0.0);
    let output = run(&folder, "logits --token-ids 3 --device cuda");
    assert_eq!(output.status.code(), Some(2));
    assert!(why.contains("NVIDIA"), "{why}");
    assert!(text(&output.stderr).contains(&format!("{why}: use --device cpu")), "{}", text(&output.stderr));
    assert_eq!(run(&folder, "logits --token-ids 3 --device auto").status.code(), Some(0));
    assert!(text(&run(&folder, "info").stdout).contains(&format!("cuda     {why}")));
}

#[test]
fn errors_are_printed_and_counted() {
    let folder = directory(0.0);
    for (line, code, part) in [
        ("generate", 2, "--prompt"),
        ("generate --token-ids 3 --temperature -1", 2, "temperature must be at least 0, not -1"),
        ("generate --token-ids 3 --seed -1", 2, "--seed"),
        ("generate --token-ids 3 --stop=", 2, "--stop"),
        (
            "generate --token-ids 3 --logit-bias 50=1",
            2,
            "--logit-bias: token id 50 is not below the vocabulary size 50",
        ),
        ("generate --token-ids 3 --threads 1025", 2, "1025 is not in 1..=1024"),
        ("generate --token-ids 3 --top-p 0", 2, "top-p must be above 0"),
        ("generate --token-ids 3 --min-p 2", 2, "min-p must be between 0 and 1"),
        ("generate --token-ids 3,50", 2, "token id 50 is out of range: tiny has token ids 0 to 49"),
        ("generate --token-ids 3,4,5 --ctx-size 2", 2, "of 2; tiny supports --ctx-size up to 64"),
        (
            "logits --token-ids 3 --ctx-size 65",
            2,
            "compiled for contexts up to 64: --ctx-size 65 is too large",
        ),
        ("logits --token-ids 3 --device metal", 2, "no Metal device found"),
        ("logits --token-ids 3 --device gpu", 2, "[possible values: auto, metal, cuda, cpu]"),
        ("logits --token-ids 3 --ctx-siz 4", 2, "--ctx-size"),
        ("record --token-ids 3,4 --chunks 2,1 -o unwritten", 2, "3 rows exceed the 2 token ids"),
        ("record --token-ids 3,4 --chunks 2,x -o unwritten", 2, "expected numbers of rows"),
        ("talk", 2, "unrecognized subcommand"),
        ("chat", 2, "no chat template"),
        ("chat -p Hello --load F", 2, "cannot be used with"),
        ("perplexity nowhere", 2, "nowhere: "),
    ] {
        if cfg!(target_vendor = "apple") && part.contains("Metal") {
            continue;
        }
        let output = run(&folder, line);
        assert_eq!(output.status.code(), Some(code), "{line}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{line}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "", "{line}");
    }
    for (line, code, part) in
        [("--help", 0, "generate"), ("--version", 0, "tiny "), ("generate --help", 0, "--top-k")]
    {
        let output = run(&folder, line);
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(text(&output.stdout).contains(part), "{line}");
        assert!(!text(&output.stdout).contains("record"), "{line}");
    }
    let output = say(&folder, "perplexity - --ctx-size 1", "w5 w6 w7");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--ctx-size 2 or more"), "{}", text(&output.stderr));
    let output = program(&folder, "logits --token-ids 3").env("FORGE_ISA", "mmx").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("FORGE_ISA=mmx is not available: this machine supports"),
        "{}",
        text(&output.stderr)
    );
    for name in ["golden.json", "tokenizer.json", "weights.safetensors"] {
        std::fs::write(folder.path().join(name), "no").unwrap();
        for line in ["verify", "generate -p hello"] {
            let output = run(&folder, line);
            if name != "golden.json" || line == "verify" {
                assert_eq!(output.status.code(), Some(1), "{name} {line}");
                assert!(
                    text(&output.stderr).contains(".json: ")
                        || text(&output.stderr).contains(".safetensors: ")
                );
            }
        }
    }
}
