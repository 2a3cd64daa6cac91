//! Snapshots of each compiler stage, for a few small models.

use tests::{forge_with, model};

fn stage(name: &str, stage: &str, quant: &str) -> String {
    let path = model(name).display().to_string();
    let output = forge_with(&["inspect", &path, "--stage", stage, "--quant", quant]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Removes the path of the repository.
    String::from_utf8_lossy(&output.stdout).replace(&path, "[model]")
}

#[test]
fn llama_stages() {
    insta::assert_snapshot!("llama-checkpoint", stage("llama", "checkpoint", "keep"));
    insta::assert_snapshot!("llama-graph", stage("llama", "graph", "keep"));
    insta::assert_snapshot!("llama-plan-q4_0", stage("llama", "plan", "q4_0"));
    insta::assert_snapshot!("llama-kernels-q4_0", stage("llama", "kernels", "q4_0"));
}

#[test]
fn llama_bias_stages() {
    insta::assert_snapshot!("llama_bias-checkpoint", stage("llama_bias", "checkpoint", "keep"));
    insta::assert_snapshot!("llama_bias-graph", stage("llama_bias", "graph", "keep"));
    insta::assert_snapshot!("llama_bias-plan", stage("llama_bias", "plan", "keep"));
    insta::assert_snapshot!("llama_bias-kernels", stage("llama_bias", "kernels", "keep"));
}

#[test]
fn moe_stages() {
    insta::assert_snapshot!("qwen3_moe-plan-q4_0", stage("qwen3_moe", "plan", "q4_0"));
    insta::assert_snapshot!("qwen3_moe-kernels-q4_0", stage("qwen3_moe", "kernels", "q4_0"));
    // Sinks, expert biases, clamped gates, and quantized weights that are kept.
    insta::assert_snapshot!("gpt_oss_mxfp4-plan", stage("gpt_oss_mxfp4", "plan", "keep"));
    // Shared experts with a gate.
    insta::assert_snapshot!("qwen2_moe-plan", stage("qwen2_moe", "plan", "keep"));
}

#[test]
fn mla_stages() {
    insta::assert_snapshot!("deepseek_v3-plan-q4_0", stage("deepseek_v3", "plan", "q4_0"));
    // Without a low-rank query projection.
    insta::assert_snapshot!("deepseek_v2-plan", stage("deepseek_v2", "plan", "keep"));
}

#[test]
fn llama_generated_files() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let out = scratch.path().join("llama").display().to_string();
    let path = model("llama").display().to_string();
    let output = forge_with(&["compile", &path, "-o", &out, "--quant", "q8_0", "--no-reference-logits"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for file in ["Cargo.toml", "README.md", "src/lib.rs", "src/main.rs", "src/model.rs", "src/kernels.rs"] {
        let text = std::fs::read_to_string(format!("{out}/{file}")).expect("a crate has this file");
        insta::assert_snapshot!(
            format!("llama-q8_0-{}", file.replace(['/', '.'], "-")),
            text.replace(&path, "[model]")
        );
    }
}

#[test]
fn every_stage_has_json_output() {
    let path = model("llama").display().to_string();
    for stage in ["checkpoint", "graph", "plan", "kernels"] {
        let output = forge_with(&["inspect", &path, "--stage", stage, "--json"]);
        let value: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
        assert!(value.is_ok(), "{stage}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
