//! What is rejected: configurations, texts, links, damaged weights, and arguments.

use crate::compile;
use serde_json::{Value, json};
use std::path::Path;
use tests::model;

/// A copy of a model with its configuration changed.
pub(crate) fn with_config(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"] {
        std::fs::copy(model("llama").join(file), copy.path().join(file)).expect("models have these files");
    }
    let path = copy.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("it was just copied");
    let mut config = serde_json::from_str(&text).expect("it is JSON");
    change(&mut config);
    std::fs::write(&path, format!("{config:#}")).expect("it is writable");
    copy
}

/// Asserts that compiling fails with this exit code, that the message contains these texts, and that no files
/// are left.
#[track_caller]
pub(crate) fn assert_rejected(checkpoint: &Path, more: &[&str], code: i32, named: &[&str]) {
    let (stderr, exit, left) = compile(checkpoint, more);
    assert_eq!(exit, Some(code), "{stderr}");
    for name in named {
        assert!(stderr.contains(name), "should name {name}:\n{stderr}");
    }
    assert_eq!(left, 0, "nothing is left behind");
}

#[test]
fn rejects_unsupported_configs() {
    let cases: [(Value, &[&str]); 4] = [
        (json!({"attention_chunk_size": 4}), &["attention_chunk_size", "--ignore-config-key"]),
        (json!({"hidden_act": "quick_gelu"}), &["hidden_act", "quick_gelu"]),
        (json!({"rope_scaling": {"rope_type": "wavy", "factor": 2.0}}), &["wavy"]),
        (json!({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}), &["Mamba"]),
    ];
    for (change, named) in cases {
        let copy = with_config(|config| {
            for (key, value) in change.as_object().expect("cases are objects") {
                config[key] = value.clone();
            }
        });
        assert_rejected(copy.path(), &[], 1, named);
    }
}

#[test]
fn ignore_config_key_accepts_unknown_keys() {
    let copy = with_config(|config| config["attention_chunk_size"] = json!(4));
    let (stderr, code, left) =
        compile(copy.path(), &["--ignore-config-key", "attention_chunk_size", "--no-reference-logits"]);
    assert_eq!((code, left), (Some(0), 1), "{stderr}");
}

#[test]
fn verbose_lists_keys_without_effect() {
    let copy = with_config(|config| config["is_llama_config"] = json!(true));
    let (stderr, code, _) = compile(copy.path(), &["--no-reference-logits", "-v"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("no effect: is_llama_config"), "{stderr}");
    let (stderr, code, _) = compile(copy.path(), &["--no-reference-logits"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!stderr.contains("is_llama_config"), "{stderr}");
}

#[test]
fn rejects_absent_ignored_keys() {
    assert_rejected(
        &model("llama"),
        &["--ignore-config-key", "nope"],
        1,
        &["--ignore-config-key nope: config.json has no such key"],
    );
}

#[test]
fn rejects_invalid_tokenizer_and_generation_config() {
    let copy = with_config(|_| {});
    let assert_file_rejected = |file: &str, bytes: &[u8], named: &[&str]| {
        let path = copy.path().join(file);
        let before = std::fs::read(&path).expect("it was copied");
        std::fs::write(&path, bytes).expect("it is writable");
        assert_rejected(copy.path(), &[], 1, named);
        std::fs::write(&path, before).expect("it is writable");
    };
    for tokenizer in [&b"{\"a\":"[..], b"{}", b"\xff\x00\x01", b"", b"null"] {
        assert_file_rejected("tokenizer.json", tokenizer, &["F0201", "tokenizer.json cannot be used: "]);
    }
    let settings = [
        (r#"{"temperature": -5, "top_p": 7, "top_k": 3}"#, "temperature"),
        (r#"{"temperature": "hot"}"#, "temperature"),
        (r#"{"top_k": -3}"#, "top_k"),
        (r#"{"do_sample": 1}"#, "do_sample"),
        (r#"{"eos_token_id": "</s>"}"#, "eos_token_id"),
    ];
    for (text, key) in settings {
        assert_file_rejected(
            "generation_config.json",
            text.as_bytes(),
            &["F0204", "generation_config.json", key],
        );
    }
}

#[test]
fn rejects_dangling_links() {
    for file in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors",
        "chat_template.jinja",
    ] {
        let copy = with_config(|_| {});
        let path = copy.path().join(file);
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink("../../blobs/gone", &path).expect("it was removed");
        assert_rejected(copy.path(), &[], 1, &[file, "dangling link to ../../blobs/gone"]);
    }
}

#[test]
fn rejects_models_with_nan_reference_logits() {
    let copy = with_config(|_| {});
    let path = copy.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("it was just copied");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    // The largest finite bf16: it can be packed, but its products overflow.
    bytes[8 + header..].fill(0x7f);
    std::fs::write(&path, bytes).expect("it is writable");
    assert_rejected(copy.path(), &[], 1, &["golden.json", "F0403", "NaN or infinite"]);
}

#[test]
fn rejects_damaged_weights() {
    let copy = with_config(|_| {});
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).expect("it was just copied");
    std::fs::write(&path, &bytes[..bytes.len() - 100]).expect("it is writable");
    assert_rejected(copy.path(), &[], 1, &["model.safetensors"]);
    std::fs::write(&path, &bytes[..5]).expect("it is writable");
    assert_rejected(copy.path(), &[], 1, &["model.safetensors"]);
    std::fs::remove_file(&path).expect("it is there");
    assert_rejected(copy.path(), &[], 1, &["model.safetensors"]);
    let wider = with_config(|config| config["intermediate_size"] = json!(60));
    assert_rejected(wider.path(), &[], 1, &["gate_proj", "60", "56"]);
    let deeper = with_config(|config| config["num_hidden_layers"] = json!(3));
    assert_rejected(deeper.path(), &[], 1, &["model.layers.2."]);
    let shallower = with_config(|config| config["num_hidden_layers"] = json!(1));
    assert_rejected(shallower.path(), &[], 1, &["model.layers.1."]);
}

#[test]
fn usage_errors_and_model_errors_have_different_exit_codes() {
    let llama = model("llama");
    assert_rejected(&llama, &["--quant", "q9_9"], 2, &["q9_9", "q4_0"]);
    assert_rejected(&llama, &["--quant", "q80"], 2, &["did you mean q8_0?"]);
    assert_rejected(&llama, &["--quant", "q4_1"], 2, &["affine4_32"]);
    assert_rejected(&llama, &["--quant", "auto:many"], 2, &["auto:many", "auto:5"]);
    assert_rejected(&llama, &["--quant", "auto:1"], 1, &["too few", "the minimum"]);
    assert_rejected(&llama, &["--quant-override", "lm_head=q9_9"], 2, &["lm_head=q9_9", "q4_0"]);
    assert_rejected(&llama, &["--quant-override", "q8_0"], 2, &["PATTERN=FORMAT"]);
    assert_rejected(&llama, &["--quant-override", "{lm_head=q8_0"], 2, &["brace"]);
    assert_rejected(&llama, &["--quant-override", "lm_hed=q8_0"], 1, &["lm_hed", "matrices: lm_head, "]);
    assert_rejected(&llama, &["--quant-override", "model.norm=q8_0"], 1, &["model.norm", "vectors"]);
    assert_rejected(&llama, &["--kv-cache-type", "q4_0"], 2, &["--kv-cache-type"]);
    assert_rejected(&llama, &["--quants", "f32"], 2, &["--quant"]);
    assert_rejected(&llama, &["--report-slots", "0"], 2, &["slots"]);
    assert_rejected(&llama, &["--report-slots", "4097"], 2, &["slots", "4096"]);
    assert_rejected(&llama, &["--name", "llama\nfn main() {}"], 2, &["--name", "unprintable"]);
    assert_rejected(&llama, &["--name", ""], 2, &["--name", "neither a letter nor a digit"]);
    assert_rejected(&llama, &["--chip", "m4-mx"], 2, &["m4-mx", "did you mean m4-max", "m1-ultra"]);
    assert_rejected(&llama, &["--chip", "all"], 2, &["unknown chip"]);
    assert_rejected(&llama, &["--tuned", "nowhere/tuned.json"], 1, &["nowhere/tuned.json"]);
    let config = llama.join("config.json").display().to_string();
    assert_rejected(&llama, &["--tuned", &config], 2, &[&config, "tune", "line "]);
    assert_rejected(&llama, &["--max-context", "100000"], 1, &["100000", "256"]);
    assert_rejected(Path::new("/nowhere/at/all"), &[], 1, &["/nowhere/at/all"]);
    assert_rejected(Path::new("no-such-owner/no-such-model"), &[], 1, &["no-such-owner/no-such-model"]);
}
