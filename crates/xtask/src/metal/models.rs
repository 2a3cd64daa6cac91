//! The models that `cargo xtask metal` runs.

/// Models of `tests/models` that are run, with weight formats. Together they have all kinds of layers.
pub(super) const MODELS: [(&str, &[&str]); 8] = [
    ("llama", &["f32", "f16", "bf16", "q8_0", "q4_0"]),
    ("qwen3", &["f32", "q4_0"]),
    ("gemma2", &["f32"]),
    ("gpt2", &["f32"]),
    ("qwen3_moe", &["f32", "q8_0"]),
    ("deepseek_v3", &["f32"]),
    ("qwen3_next", &["f32"]),
    ("gpt_oss", &["f32"]),
];
