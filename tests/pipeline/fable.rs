//! The included model: its loss on held-out text, compared with transformers.
//!
//! `training/results.json` has the loss that transformers computes in f32. A compiled program may only differ by the error of its
//! weight format.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use tests::{build_together, compile_member, root, run, scratch};

/// Formats with the maximum deviation of the perplexity from transformers: for f32 and bf16, which keep all weights, the effect of
/// summation order and the f16 KV cache; for the others the quantization error of a model of this size.
const FORMATS: [(&str, f64); 4] = [("f32", 0.001), ("bf16", 0.001), ("q8_0", 0.005), ("q4_0", 0.04)];

/// The program in each format, in the order of [`FORMATS`].
fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let (fable, workspace) = (root().join("examples/fable"), scratch().join("fable"));
        let names = FORMATS.map(|(format, _)| format!("fable-{}", format.replace('_', "-")));
        for ((format, _), name) in FORMATS.iter().zip(&names) {
            compile_member(&fable, &["--quant", format], &workspace.join(name));
        }
        let mut programs = build_together(&workspace, names.iter().cloned());
        names.iter().map(|name| programs.remove(name).expect("it was built")).collect()
    })
}

#[test]
fn perplexity_of_held_out_stories_matches_transformers() {
    let training = root().join("examples/fable/training/results.json");
    let results: Value = serde_json::from_slice(&std::fs::read(training).unwrap()).unwrap();
    let expected = &results["held_out"]["float32"];
    for ((format, bound), program) in FORMATS.iter().zip(programs()) {
        let file = root().join("examples/fable/held-out.txt");
        let mut command = Command::new(program);
        command.arg("perplexity").arg(file).args(["--separator", "* * *", "--append-eos", "--json"]);
        let found: Value = serde_json::from_slice(&run(&mut command).stdout).unwrap();
        assert_eq!(found["tokens"], expected["tokens"], "{format}");
        let ratio = found["perplexity"].as_f64().unwrap() / expected["perplexity"].as_f64().unwrap();
        assert!((ratio - 1.0).abs() <= *bound, "{format}: {ratio} of transformers' perplexity");
    }
}

#[test]
fn fable_stories_contain_the_requested_words() {
    for ((format, _), program) in FORMATS.iter().zip(programs()) {
        for (request, words) in [
            ("Tell me a story about a fox and a lantern", ["fox", "lantern"]),
            ("Please tell me a happy story about a troll and a goat.", ["troll", "goat"]),
            ("Tell me a sad story about a sailor and a compass.", ["sailor", "compass"]),
        ] {
            let mut command = Command::new(program);
            let output = run(command.args(["chat", "-p", request, "--temperature", "0"]));
            let story = String::from_utf8(output.stdout).unwrap();
            assert!(story.split_whitespace().count() >= 100, "{format}: {story}");
            assert!(
                story.trim_end().ends_with(['.', '"', '!', '?']),
                "{format}: a story has an end: {story}"
            );
            for word in words {
                assert!(story.contains(word), "{format}: no {word} in {story}");
            }
        }
    }
}
