//! Which models the end-to-end tests compile, and in which formats.

use forge_planner::Fusion;

/// Formats in which the models of [`WHOLE`] are compiled. `keep` gives the same crate as the checkpoint's own
/// format, byte for byte, which `command_line` tests; so it is not built again.
pub const FORMATS: [&str; 5] = ["f32", "f16", "bf16", "q8_0", "q4_0"];

/// Formats in which every model is compiled, besides [`UNFUSED`]. There are hundreds of crates, and a
/// format's kernels do not depend on the architecture: f32 checks the program, and q8_0 and q4_0 check the
/// packing. The models of [`WHOLE`] cover the other formats.
pub const FEW_FORMATS: [&str; 2] = ["f32", "q8_0"];

/// Programs that also run on the emulated Metal 4, which multiplies tensors of 16-bit factors.
pub const TENSORS: [(&str, &str); 3] = [("llama", "q4_0"), ("llama", "bf16"), ("qwen2_moe", "q8_0")];

/// Format in which every model is compiled without fusions. The KV cache is f32, so that only arithmetic can
/// differ.
pub const UNFUSED: (&str, Option<&str>) = ("q4_0", Some("f32"));

/// Mixture-of-experts models. The first are packed in several formats. The others test routing and shared
/// experts, for which f32 is enough.
pub const EXPERTS: [&str; 10] = [
    "qwen2_moe",
    "glm4_moe",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "deepseek_v2",
    "qwen3_next",
    "qwen3_5_moe_text",
    "gemma4_moe",
];

/// Models whose tokens use all experts, so that quantization cannot change the selection; with the format in
/// which they are compared.
pub const ALL_EXPERTS_SELECTED: [(&str, &str); 2] = [("mixtral_all", "q4_0"), ("qwen3_moe_all", "q8_0")];

/// Unusual mixture-of-experts models: expert groups; rows that use all experts; more experts than lanes, and
/// layers without experts; clamped gates and sinks where nothing else has a bias; a gated shared expert three
/// times as wide as a routed one; and a shared expert whose width is no multiple of a routed one's.
pub const ODD_EXPERTS: [&str; 6] = [
    "glm4_moe_groups",
    "mixtral_all",
    "qwen3_moe_listed",
    "gpt_oss_listed",
    "qwen2_moe_listed",
    "qwen2_moe_windows",
];

/// An MLA model, and the fusions specific to MLA; each is disabled in turn.
pub const LATENTS: (&str, [Fusion; 4]) = (
    "deepseek_v3",
    [Fusion::FuseQkv, Fusion::FuseRopeKvAppend, Fusion::AttentionPrologue, Fusion::DeferredNorm],
);

/// Odd MLA models: queries with and without a low-rank projection, biases, odd head widths, and both RoPE
/// pairings.
pub const ODD_LATENTS: [&str; 3] = ["deepseek_v2_groups", "deepseek_v3_groups", "deepseek_v3_further"];

/// A model of one layer, whose mixer is Gated DeltaNet: it has no attention and no KV cache.
pub const NO_ATTENTION: &str = "qwen3_5_tied";

/// Formats that differ only in bits and group size; one model covers all of them.
pub const AFFINE: [&str; 6] =
    ["affine8_32", "affine6", "affine5_32", "affine4_128", "affine3_bf16", "affine2"];

/// Models whose layers differ in formats, whose projections cannot all be merged, and whose tied head is
/// stored separately from the embedding. The first has exactly the checkpoint's values.
pub const MIXED: [(&str, &str, &[&str]); 2] = [
    ("llama3_rope", "bf16", &["lm_head=f32", "*.1.self_attn.v_proj=f32", "*.0.mlp.up_proj=f32"]),
    ("qwen3", "q4_0", &["lm_head=q8_0", "*.v_proj=q8_0", "*.{0.mlp.up,1.mlp.down}_proj=affine4_32"]),
];

/// Models with a q8_0 KV cache: one with QK norm, one with a sliding window.
pub const Q8_KV_CACHE: [&str; 2] = ["qwen3", "gemma2"];

/// A model whose rows are whole superblocks, in every K-quant format: mixed as in common GGUF files, with one
/// layer in another format.
pub const SUPERBLOCKS: (&str, &str, &[&str]) =
    ("superblocks", "q4_k", &["*.{v,down}_proj=q6_k", "lm_head=q6_k", "*.1.mlp.*=q5_k"]);

/// A model of tests/odd whose last layers share the KV cache of earlier ones, with two head widths and
/// per-layer inputs.
pub const SHARED: &str = "gemma4_text_shared";

/// A model of tests/odd with full-attention heads of 512 channels and sliding-window heads of 32.
pub const WIDE_HEADS: &str = "gemma4_text_wide";

/// Models with quantized weights, which are kept, and a lossless KV cache.
pub const QUANTIZED: [&str; 5] = ["llama_mlx4", "qwen3_mlx8", "qwen3_moe_mlxmix", "gpt_oss_mxfp4", MLX];

/// The one of these that is quantized with every number of bits.
pub const MLX: &str = "mlx";

/// Suffix of the name of a model of tests/models or tests/odd that is stored in the format of MLX converters.
pub const MLX_SUFFIX: &str = "_mlx";

/// Such models and their formats: recurrent state with norm weights plus 1; the same in a multimodal
/// checkpoint; transposed per-head key matrices; mxfp4 experts with separate gate and up.
pub const CONVERTED: [(&str, &str); 4] = [
    ("qwen3_next_mlx", "f32"),
    ("qwen3_5_moe_old_mlx", "f32"),
    ("deepseek_v3_mlx", "f32"),
    ("gpt_oss_mxfp4_mlx", "keep"),
];

/// Random models of these families as converters write them, mostly quantized.
pub const CONVERTED_TO_CODES: [&str; 3] = ["gpt_oss_mlxmix", "qwen3_next_mlxmix", "deepseek_v3_mlx4"];

/// The models that are compiled to every format. Together they have every feature that layers share.
pub const WHOLE: [&str; 2] = ["llama", "qwen3"];

/// Models with single fusions disabled: each from the first model whose plan it changes. Together they cover
/// all fusions.
pub const FUSED: [&str; 7] =
    ["llama", "qwen3", "gemma2", "qwen3_5_text", "qwen2_moe", "gemma4_text", "qwen2_moe_windows"];

/// Models whose emulated crates include candidate layouts: one with experts, and one without.
pub const TUNABLE: [&str; 2] = ["llama", "qwen3_moe"];

/// The model of odd sizes.
pub const ODD: &str = "odd";
