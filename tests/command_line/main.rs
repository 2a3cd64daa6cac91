//! Errors of the command line: each names its cause, and leaves no files behind.

mod rejected_inputs;

use crate::rejected_inputs::{assert_rejected, with_config};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;
use tests::{forge, forge_with, model, models};

/// Compiles into a new directory. Returns stderr, the exit code, and the number of directory entries left
/// behind.
pub(crate) fn compile(checkpoint: &Path, more: &[&str]) -> (String, Option<i32>, usize) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (from, to) = (checkpoint.display().to_string(), folder.path().join("out").display().to_string());
    let mut arguments = vec!["compile", from.as_str(), "-o", to.as_str()];
    arguments.extend(more);
    let output = forge_with(&arguments);
    let left = std::fs::read_dir(folder.path()).expect("it exists").count();
    (stderr(&output), output.status.code(), left)
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn omits_chat_if_the_chat_template_is_invalid() {
    let copy = with_config(|_| {});
    for (file, text) in [
        ("chat_template.jinja", "{% for %}"),
        ("chat_template.json", r#"{"chat_template": "{{ a"}"#),
        ("chat_template.json", "{"),
        ("tokenizer_config.json", r#"{"chat_template": "{% for %}"}"#),
    ] {
        let path = copy.path().join(file);
        std::fs::write(&path, text).expect("it is writable");
        let (stderr, code, left) = compile(copy.path(), &["--no-reference-logits"]);
        assert_eq!((code, left), (Some(0), 1), "{stderr}");
        assert!(stderr.contains("warning: ") && stderr.contains("chat"), "{stderr}");
        assert!(stderr.contains("-- generate -p"), "{stderr}");
        std::fs::remove_file(&path).expect("it was just written");
    }
    let (stderr, code, _) = compile(copy.path(), &["--no-reference-logits"]);
    assert!(code == Some(0) && !stderr.contains("warning: "), "{stderr}");
}

#[test]
fn reports_a_budget_above_the_largest_format() {
    let inspect = |quant: &str| {
        let llama = model("llama").display().to_string();
        stderr(&forge_with(&["inspect", &llama, "--quant", quant, "--stage", "plan"]))
    };
    let (far, near) = (inspect("auto:99"), inspect("auto:6"));
    assert!(far.contains("auto:99: the largest candidate is q8_0, 8.5"), "{far}");
    assert!(!near.contains("largest candidate"), "{near}");
}

#[test]
fn quant_mixes_choose_a_format_per_tensor() {
    let (stderr, code, _) = compile(&model("llama"), &["--quant", "Q4_K_M", "--no-reference-logits"]);
    assert_eq!(code, Some(0), "{stderr}");
    // Rows of 64 and 56 columns: the output and sensitive layers in q8_0 for q6_k, the others in affine4_32
    // for q4_k.
    assert!(stderr.contains("Q4_K_M (llama.cpp's mix): q8_0 × 3, affine4_32 × 13; 16 fall back"), "{stderr}");
    // The user's own overrides go before the mix.
    let more = ["--quant", "q4_k_m", "--quant-override", "*=f16", "--no-reference-logits", "--json"];
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (from, out) = (model("llama").display().to_string(), folder.path().join("out").display().to_string());
    let output = forge_with(&[&["compile", &from, "-o", &out][..], &more].concat());
    let summary: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let formats: Vec<&String> = summary["formats"].as_object().expect("bytes by format").keys().collect();
    assert!(!formats.iter().any(|format| format.contains("affine") || *format == "q8_0"), "{formats:?}");
}

#[test]
fn force_replaces_only_generated_crates() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("out").display().to_string();
    let llama = model("llama").display().to_string();
    let compile = |more: &[&str]| {
        let arguments: Vec<&str> = ["compile", &llama, "-o", &out, "--no-reference-logits"]
            .iter()
            .copied()
            .chain(more.iter().copied())
            .collect();
        let output = forge_with(&arguments);
        (output.status.code(), stderr(&output))
    };
    assert_eq!(compile(&[]).0, Some(0));
    let (code, stderr) = compile(&[]);
    assert!(code == Some(2) && stderr.contains("--force"), "{stderr}");
    assert_eq!(compile(&["--force"]).0, Some(0));
    std::fs::remove_file(folder.path().join("out/forge.json")).expect("forge marks what it makes");
    let (code, stderr) = compile(&["--force"]);
    assert!(code == Some(2) && stderr.contains("not written by forge"), "{stderr}");
}

#[test]
fn force_does_not_delete_a_checkpoint_inside_the_crate() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("out");
    let inside = out.join("models/llama");
    let compile = |from: &Path, more: &[&str]| {
        let (from, to) = (from.display().to_string(), out.display().to_string());
        let arguments: Vec<&str> =
            ["compile", &from, "-o", &to, "--no-reference-logits"].iter().chain(more).copied().collect();
        let output = forge_with(&arguments);
        (output.status.code(), stderr(&output))
    };
    assert_eq!(compile(&model("llama"), &[]).0, Some(0));
    std::fs::create_dir_all(&inside).expect("it is writable");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(model("llama").join(file), inside.join(file)).expect("models have these files");
    }
    let (code, stderr) = compile(&inside, &["--force"]);
    assert!(
        code == Some(2) && stderr.contains("out/models/llama is an input of the compilation"),
        "{stderr}"
    );
    assert!(inside.join("model.safetensors").is_file());
}

#[test]
fn interrupted_compilation_leaves_no_files() {
    let llama = model("llama");
    let begun = Instant::now();
    let (stderr, code, _) = compile(&llama, &[]);
    assert_eq!(code, Some(0), "{stderr}");
    let whole = begun.elapsed();
    // At different times, because the compiler's state at the signal differs.
    for part in 1..=20 {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(forge());
        command.arg("compile").arg(&llama).arg("-o").arg(folder.path().join("out"));
        let child = command.stderr(Stdio::piped()).spawn().expect("forge was built");
        std::thread::sleep(whole * part / 20);
        // A process that has ended and was not waited for accepts a signal without an error.
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(sent.expect("there is kill").success());
        let output = child.wait_with_output().expect("it was started");
        let (status, stderr) = (output.status, String::from_utf8_lossy(&output.stderr).into_owned());
        match status.code() {
            Some(130) => {
                let last = stderr.lines().last();
                let is_removed = last == Some("interrupted; nothing was written");
                assert!(is_removed || last == Some("interrupted"), "{stderr}");
                assert!(!(is_removed && folder.path().join("out").exists()), "{stderr}");
            }
            // It ended before the signal, or had not started.
            code => assert!(code.is_none_or(|code| code == 0), "{status}: {stderr}"),
        }
        let entries = std::fs::read_dir(folder.path()).expect("it exists").flatten();
        let left: Vec<_> = entries.map(|entry| entry.file_name()).filter(|name| name != "out").collect();
        assert!(left.is_empty(), "{status} after {part}/20 of {whole:?}: {left:?}");
    }
}

#[test]
fn json_is_the_only_output_on_stdout() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("out").display().to_string();
    let llama = model("llama").display().to_string();
    let output = forge_with(&["compile", &llama, "-o", &out, "--json", "--quant", "q8_0"]);
    let summary: Value = serde_json::from_slice(&output.stdout).expect("standard output is JSON");
    assert_eq!(summary["decode"]["dispatches_per_layer"], json!([5, 5]));
    let weights = summary["weights"].as_array().expect("a list");
    let named = |name: &str| weights.iter().find(|weight| weight["name"] == name).expect("it is stored");
    assert_eq!(named("layers.1.down")["format"], "q8_0");
    let worst = weights.iter().filter_map(|weight| weight["error"].as_f64()).fold(0.0, f64::max);
    assert!(stderr(&output).contains(&format!("{:.2}% (q8_0)", 100.0 * worst)), "{}", stderr(&output));
    let layers = summary["errors"]["layers"].as_array().expect("a list");
    let names: Vec<&Value> = layers.iter().map(|layer| &layer[0]).collect();
    assert_eq!(names, ["embed", "layer 0", "layer 1", "head"]);
    assert!(layers.iter().all(|layer| layer[1].as_f64().is_some_and(|error| error > 0.0 && error <= worst)));
    let file =
        std::fs::metadata(folder.path().join("out/weights.safetensors")).expect("it was written").len();
    let weights = summary["memory"]["weights_bytes"].as_u64().expect("a number");
    assert!(weights <= file && file < weights + 64 * 1024, "{weights} bytes of weights in a file of {file}");
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).expect("it was written");
    assert!(
        page.contains("predicted") && page.contains("4 sequences") && page.ends_with("</html>"),
        "{page}"
    );
}

#[test]
fn full_stdout_is_an_error_and_closed_stdout_is_not() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let out = folder.path().join("out").display().to_string();
    let llama = model("llama").display().to_string();
    let compile = ["compile", &llama, "-o", &out, "--no-reference-logits", "--force", "--json"];
    for arguments in [&compile[..], &["doctor"], &["completions", "bash"], &["--help"], &["--version"]] {
        let run = |stdout: Stdio| {
            let output = Command::new(forge()).args(arguments).stdout(stdout).output();
            output.expect("forge was built")
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let closed = run(writer.into());
        assert_eq!(closed.status.code(), Some(0), "{arguments:?}: {}", stderr(&closed));
        assert!(!stderr(&closed).contains("error"), "{arguments:?}: {}", stderr(&closed));
        // Linux has a file that is always full.
        if let Ok(full) = std::fs::File::options().write(true).open("/dev/full") {
            let full = run(full.into());
            assert_eq!(full.status.code(), Some(1), "{arguments:?}: {}", stderr(&full));
            assert!(stderr(&full).contains("error: standard output: "), "{arguments:?}: {}", stderr(&full));
        }
    }
}

#[test]
fn cuda_files_are_generated_on_request() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let llama = model("llama").display().to_string();
    let crate_for = |target: &str| {
        let out = folder.path().join(target);
        let shown = out.display().to_string();
        let output = forge_with(&[
            "compile",
            &llama,
            "-o",
            &shown,
            "--name",
            "llama",
            "--no-reference-logits",
            "--chip",
            "m4-max",
            "--target",
            target,
        ]);
        assert!(output.status.success(), "{}", stderr(&output));
        let mut texts = BTreeMap::new();
        read(&out, &out, &mut texts);
        // Removes the path of the repository, plain and as HTML.
        let places = [llama.clone(), llama.replace('/', "&#x2f;")];
        for text in texts.values_mut() {
            *text = places.iter().fold(text.clone(), |text, place| text.replace(place, "llama"));
        }
        texts
    };
    let plain = crate_for("metal");
    assert!(!plain["Cargo.toml"].contains("cuda"), "{}", plain["Cargo.toml"]);
    let both = crate_for("metal,cuda");
    let more: Vec<&str> = both.keys().filter(|name| !plain.contains_key(*name)).map(String::as_str).collect();
    insta::assert_snapshot!(more.join("\n"), @r"
    src/kernels_70.ptx
    src/kernels_80.ptx
    src/kernels_90.ptx
    ");
    let differ = both.iter().filter(|(name, text)| plain.get(*name).is_some_and(|plain| plain != *text));
    insta::assert_snapshot!(differ.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("\n"), @r"
    Cargo.toml
    README.md
    forge.json
    report.html
    src/kernels.rs
    src/lib.rs
    ");
    assert_eq!(crate_for("cuda"), both, "Metal is always among them");
}

/// The text files of a directory, by relative path.
pub(crate) fn read(root: &Path, folder: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("it was written").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(root, &path, texts);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let name = path.strip_prefix(root).expect("it is inside").display().to_string();
            texts.insert(name, text);
        }
    }
}

#[test]
fn predicts_times_for_a_chip() {
    let llama = model("llama").display().to_string();
    let inspect = |more: &[&str]| {
        let arguments: Vec<&str> =
            ["inspect", &llama, "--stage", "plan"].iter().chain(more).copied().collect();
        let output = forge_with(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = inspect(&["--chip", "m4-max"]);
    assert!(text.contains("predicted") && text.contains("layer.qkv"), "{text}");
    let one: Value = serde_json::from_str(&inspect(&["--chip", "m1", "--json"])).expect("it is JSON");
    assert_eq!(one["chip"]["cores"], 8);
    assert!(one["decode"][0]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    let table = inspect(&["--chip", "all"]);
    assert!(table.contains("m3-max-30") && table.contains("launches"), "{table}");
    let all: Value = serde_json::from_str(&inspect(&["--chip", "all", "--json"])).expect("it is JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(21));
}

#[test]
fn quant_keep_uses_the_checkpoint_format() {
    // All are bf16 except one with quantized experts.
    for name in models().into_iter().filter(|name| name != "gpt_oss_mxfp4") {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let checkpoint = model(&name).display().to_string();
        let compiled = ["keep", "bf16"].map(|format| {
            let out = folder.path().join(format);
            let to = out.display().to_string();
            let output =
                forge_with(&["compile", &checkpoint, "-o", &to, "--quant", format, "--name", "same"]);
            assert!(output.status.success(), "{}", stderr(&output));
            out
        });
        for file in
            ["src/model.rs", "src/kernels.rs", "src/kernels.metal", "weights.safetensors", "golden.json"]
        {
            let [keep, bf16] =
                compiled.each_ref().map(|out| std::fs::read(out.join(file)).expect("crates have this file"));
            assert!(keep == bf16, "{name}: {file} differs between keep and bf16");
        }
    }
}

#[test]
fn completions_list_commands_and_options() {
    for shell in ["bash", "zsh", "fish"] {
        let output = forge_with(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        for word in ["compile", "quant-override", "doctor"] {
            assert!(output.status.success() && script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(forge_with(&["completions", "teletype"]).status.code(), Some(2));
}

#[test]
fn compiles_a_gguf_file_like_a_directory() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gguf");
    let to = tempfile::tempdir().expect("a temporary directory");
    let (from, out) = (folder.join("llama-q4_0.gguf").display().to_string(), to.path().join("out"));
    let output = forge_with(&["compile", &from, "-o", &out.display().to_string(), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(summary["name"], "llama-q4_0");
    assert_eq!(summary["errors"]["all"], 0.0, "every number is what it was");
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "golden.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    // One name for several files is ambiguous.
    assert_rejected(&folder, &[], 1, &["llama-q4_0.gguf", "pass the path of one file"]);
}
