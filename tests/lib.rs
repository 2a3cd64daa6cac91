//! Helpers of the end-to-end tests: models, the compiler as a command, and generated crates.
//!
//! A model is a directory of `tests/models`, `tests/quantised` (quantized checkpoints) or `tests/odd`. It has a checkpoint, and
//! `golden.json` or `golden.safetensors` with logits that Hugging Face transformers computed in f32. All directories are tested;
//! adding one adds its tests. Crates are generated in `target/tests` and built as one workspace, so that cargo builds dependencies
//! once and models in parallel.

pub mod emulated;
mod mlx;
mod shared_out;
mod workspace;

use forge_ir::Graph;
use forge_ops::Format;
use forge_planner::{Fusion, Plan, RowsOf, Scratch, Workload};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use shared_out::shared_out;
pub use workspace::{Work, build_together, compile_member, compile_server};

/// Formats in which the models of [`WHOLE`] are compiled. `keep` gives the same crate as the checkpoint's own format, byte for
/// byte, which `command_line` tests; so it is not built again.
pub const FORMATS: [&str; 5] = ["f32", "f16", "bf16", "q8_0", "q4_0"];

/// Formats in which every model is compiled, besides [`UNFUSED`]. There are hundreds of crates, and a format's kernels do not
/// depend on the architecture: f32 checks the program, and q8_0 and q4_0 check the packing. The models of [`WHOLE`] cover the
/// other formats.
pub const FEW_FORMATS: [&str; 2] = ["f32", "q8_0"];

/// Format in which every model is compiled without fusions. The KV cache is f32, so that only arithmetic can differ.
pub const UNFUSED: (&str, Option<&str>) = ("q4_0", Some("f32"));

/// Mixture-of-experts models. The first are packed in several formats. The others test routing and shared experts, for which f32
/// is enough.
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

/// Models whose tokens use all experts, so that quantization cannot change the selection; with the format in which they are
/// compared.
pub const WITHOUT_CHOICE: [(&str, &str); 2] = [("mixtral_all", "q4_0"), ("qwen3_moe_all", "q8_0")];

/// Odd ones of these: groups of experts; a row that has all experts; more experts than lanes, and layers without any; clamped
/// gates and sinks where nothing else has a bias; a gated network that every row has, three times as wide as an expert; and one
/// that is not as wide as any number of them.
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

/// Odd MLA models: queries with and without a low-rank projection, biases, odd head widths, and both RoPE pairings.
pub const ODD_LATENTS: [&str; 3] = ["deepseek_v2_groups", "deepseek_v3_groups", "deepseek_v3_further"];

/// Formats that differ only in bits and group size; one model covers all of them.
pub const AFFINE: [&str; 6] =
    ["affine8_32", "affine6", "affine5_32", "affine4_128", "affine3_bf16", "affine2"];

/// Models whose layers differ in formats, whose projections cannot all be merged, and whose tied head is stored separately from
/// the embedding. The first has exactly the checkpoint's values.
pub const MIXED: [(&str, &str, &[&str]); 2] = [
    ("llama3_rope", "bf16", &["lm_head=f32", "*.1.self_attn.v_proj=f32", "*.0.mlp.up_proj=f32"]),
    ("qwen3", "q4_0", &["lm_head=q8_0", "*.v_proj=q8_0", "*.{0.mlp.up,1.mlp.down}_proj=affine4_32"]),
];

/// Models with a q8_0 KV cache: one with QK norm, one with a sliding window.
pub const CODED: [&str; 2] = ["qwen3", "gemma2"];

/// A model whose rows are whole superblocks, in every K-quant format: mixed as in common GGUF files, with one layer in another
/// format.
pub const SUPERBLOCKS: (&str, &str, &[&str]) =
    ("superblocks", "q4_k", &["*.{v,down}_proj=q6_k", "lm_head=q6_k", "*.1.mlp.*=q5_k"]);

/// A model of tests/odd whose last layers share the KV cache of earlier ones, with two head widths and per-layer inputs.
pub const SHARED: &str = "gemma4_text_shared";

/// A model of tests/odd with full-attention heads of 512 channels and sliding-window heads of 32.
pub const WIDE_HEADS: &str = "gemma4_text_wide";

/// Models that are quantised already: kept as they are, with a cache that keeps everything too.
pub const QUANTISED: [&str; 5] = ["llama_mlx4", "qwen3_mlx8", "qwen3_moe_mlxmix", "gpt_oss_mxfp4", MLX];

/// The one of these that is quantised in every number of bits.
pub const MLX: &str = "mlx";

/// Suffix of the name of a model of tests/models or tests/odd that is stored in the format of MLX converters.
pub const MOVED: &str = "_mlx";

/// Such models and their formats: recurrent state with norm weights plus 1; the same in a multimodal checkpoint; transposed
/// per-head key matrices; mxfp4 experts with separate gate and up.
pub const CONVERTED: [(&str, &str); 4] = [
    ("qwen3_next_mlx", "f32"),
    ("qwen3_5_moe_old_mlx", "f32"),
    ("deepseek_v3_mlx", "f32"),
    ("gpt_oss_mxfp4_mlx", "keep"),
];

/// Random models of such families as converters write them that make codes of most.
pub const CONVERTED_TO_CODES: [&str; 3] = ["gpt_oss_mlxmix", "qwen3_next_mlxmix", "deepseek_v3_mlx4"];

/// The models that are compiled to every format: between them they have everything that layers share.
pub const WHOLE: [&str; 2] = ["llama", "qwen3"];

/// Models with single fusions disabled: each from the first model whose plan it changes. Together they cover all fusions.
pub const FUSED: [&str; 7] =
    ["llama", "qwen3", "gemma2", "qwen3_5_text", "qwen2_moe", "gemma4_text", "qwen2_moe_windows"];

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Names of all models, in order.
pub fn models() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("tests/models")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("golden.json").is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    assert!(!names.is_empty(), "tests/models has no models");
    names
}

/// The directory of a model.
pub fn model(name: &str) -> PathBuf {
    if let Some(source) = name.strip_suffix(MOVED) {
        return mlx::converted(&scratch(), name, || model(source));
    }
    if CONVERTED_TO_CODES.contains(&name) {
        return converted_to_codes(name)[0].clone();
    }
    let folders =
        ["tests/models", "tests/quantised", "tests/odd"].map(|folder| root().join(folder).join(name));
    folders.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| panic!("there is no model {name}"))
}

/// The graph of a model.
pub fn graph(name: &str) -> Graph {
    let files = std::fs::read_dir(model(name)).expect("a model is a folder").flatten();
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        (name, std::fs::read(entry.path()).expect("its files can be read"))
    };
    let checkpoint = forge_frontend::Memory(files.map(file).collect());
    let options = forge_frontend::Options::default();
    forge_frontend::read_model(&checkpoint, &options).expect("models can be read").graph
}

/// A checkpoint that is quantized with every number of bits, and its dequantized copy.
pub fn mixed_mlx() -> &'static [PathBuf; 2] {
    static MIXED: OnceLock<[PathBuf; 2]> = OnceLock::new();
    MIXED.get_or_init(|| mlx::mixed(&scratch()))
}

/// A random model of [`CONVERTED_TO_CODES`], and its dequantized copy.
pub fn converted_to_codes(name: &str) -> [PathBuf; 2] {
    mlx::families(&scratch(), name)
}

/// How many rows a buffer of a pass has.
pub fn rows_of(scratch: &Scratch, load: Workload) -> usize {
    let rows = match scratch.per {
        RowsOf::Pass => 1,
        RowsOf::Row => load.rows,
        RowsOf::Wanted => load.wanted,
        RowsOf::Position => load.length,
        RowsOf::Share => load.rows * load.splits,
    };
    scratch.rows.min(rows as usize)
}

/// Whether tests create the model from random numbers, so that only the reference implementation has its logits.
pub fn is_random(name: &str) -> bool {
    [ODD, MLX, SUPERBLOCKS.0].contains(&name) || CONVERTED_TO_CODES.contains(&name)
}

/// Where tests write.
pub fn scratch() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("tests")
}

/// The compiler, built.
pub fn forge() -> &'static Path {
    static FORGE: OnceLock<PathBuf> = OnceLock::new();
    FORGE.get_or_init(|| {
        // As in `cargo test --workspace`: the same features, so nothing is compiled again.
        let arguments =
            ["build", "--workspace", "--bin", "forge", "--message-format=json-render-diagnostics"];
        let output = run(Command::new(env!("CARGO")).args(arguments).current_dir(root()));
        executables(&output).remove("forge").expect("cargo names the program it built")
    })
}

/// Programs that a `cargo build` made, by name.
fn executables(output: &Output) -> BTreeMap<String, PathBuf> {
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter_map(|message| {
            let path = PathBuf::from(message["executable"].as_str()?);
            Some((message["target"]["name"].as_str()?.to_owned(), path))
        })
        .collect()
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    output
}

/// Runs the compiler with these arguments; whether it succeeds is the caller's business.
pub fn forge_with(arguments: &[&str]) -> Output {
    Command::new(forge()).args(arguments).output().unwrap_or_else(|error| panic!("forge: {error}"))
}

/// A compiled and built crate.
pub struct Built {
    /// The model's name.
    pub model: String,
    /// The value of `--quant`.
    pub format: String,
    /// The value of `--quant-override`.
    pub overrides: &'static [&'static str],
    /// The value of `--kv-cache-type`.
    pub kv: Option<&'static str>,
    /// The value of `--disable-fusion`.
    pub disabled: BTreeSet<Fusion>,
    /// The crate.
    pub directory: PathBuf,
    /// Its program.
    pub program: PathBuf,
}

/// Every model, with and without fusions, some in every format, a model of odd sizes, and models of mixed formats: compiled
/// and built once for each test binary.
pub fn all_built() -> &'static [Built] {
    &all_with_driver().0
}

/// Those of [`all_built`] that hold a model of tests/models as it is, in f32, and the program that runs them over the emulated
/// Metal, which there is on Linux. Where `FORGE_MODELS` is set there may be none.
pub fn emulated() -> (Vec<&'static Built>, &'static Path) {
    let (built, driver) = all_with_driver();
    (built.iter().filter(|built| is_emulated(built)).collect(), driver)
}

fn is_emulated(built: &Built) -> bool {
    let plain = built.overrides.is_empty() && built.kv.is_none() && built.disabled.is_empty();
    let source = built.model.strip_suffix(MOVED).unwrap_or(&built.model);
    plain && built.format == "f32" && root().join("tests/models").join(source).is_dir()
}

fn all_with_driver() -> &'static (Vec<Built>, PathBuf) {
    static BUILT: OnceLock<Option<(Vec<Built>, PathBuf)>> = OnceLock::new();
    // A failed build takes minutes, so it is attempted once; the first test reports the error.
    let built = BUILT.get_or_init(|| std::panic::catch_unwind(build_all_with_driver).ok());
    built.as_ref().expect("the programs cannot be built: see the first failed test")
}

fn build_all_with_driver() -> (Vec<Built>, PathBuf) {
    let workspace = scratch().join("crates");
    let mut built = all_to_build();
    for crate_ in &mut built {
        crate_.directory = workspace.join(crate_.name());
    }
    shared_out(built.iter(), compile);
    let names: Vec<String> = built.iter().map(Built::name).collect();
    let driver = cfg!(target_os = "linux").then(|| {
        let emulated: Vec<&Built> = built.iter().filter(|built| is_emulated(built)).collect();
        emulated::write_driver(&workspace, &emulated)
    });
    let other = driver.as_deref().map(|manifest| (emulated::DRIVER, manifest));
    let (mut programs, driver) = workspace::build_with(&workspace, &names, Work::Little, other);
    for crate_ in &mut built {
        let name = crate_.name();
        crate_.program = programs.remove(&name).unwrap_or_else(|| panic!("{name} was not built"));
    }
    (built, driver.unwrap_or_default())
}

/// The crates of [`all_built`], before the build.
fn all_to_build() -> Vec<Built> {
    let mut all = Vec::new();
    let mut add = |model: &str, format: &str, disabled: &[Fusion]| {
        let disabled = disabled.iter().copied().collect();
        all.push(Built { disabled, ..Built::of(model, format) });
    };
    for model in models() {
        let formats: &[&str] = match EXPERTS.iter().position(|name| *name == model) {
            _ if WHOLE.contains(&model.as_str()) => &FORMATS,
            Some(1..) => &FEW_FORMATS[..1],
            _ => &FEW_FORMATS,
        };
        formats.iter().for_each(|format| add(&model, format, &[]));
    }
    AFFINE.iter().chain(&["mxfp4"]).for_each(|format| add("qwen2", format, &[]));
    ["f32", "q4_0", "affine4"].iter().for_each(|format| add(ODD, format, &[]));
    add(ODD, "q4_0", &Fusion::ALL);
    LATENTS.1.iter().for_each(|fusion| add(LATENTS.0, "f32", &[*fusion]));
    add(SHARED, "f32", &[]);
    add(SHARED, "q4_0", &Fusion::ALL);
    add(WIDE_HEADS, "f32", &[]);
    add(WIDE_HEADS, "q4_0", &Fusion::ALL);
    all.extend(ODD_EXPERTS.into_iter().chain(ODD_LATENTS).map(|model| Built::of(model, "f32")));
    all.extend(WITHOUT_CHOICE.map(|(model, format)| Built::of(model, format)));
    all.extend(QUANTISED.into_iter().chain(CONVERTED_TO_CODES).map(|model| Built::of(model, "keep")));
    all.extend(CONVERTED.map(|(model, format)| Built::of(model, format)));
    all.extend(models().iter().map(|model| {
        let (format, kv) = UNFUSED;
        Built { kv, disabled: Fusion::ALL.into(), ..Built::of(model, format) }
    }));
    all.extend(Fusion::ALL.map(without));
    all.extend(CODED.map(|model| Built { kv: Some("q8_0"), ..Built::of(model, "f32") }));
    all.extend(
        MIXED
            .into_iter()
            .chain([SUPERBLOCKS])
            .map(|(model, format, overrides)| Built { overrides, ..Built::of(model, format) }),
    );
    // `FORGE_MODELS=qwen3,gemma2` builds only crates of these models. Models of tests/odd outside all lists are only built this
    // way.
    if let Ok(wanted) = std::env::var("FORGE_MODELS") {
        let wanted: BTreeSet<&str> = wanted.split(',').collect();
        let unlisted: Vec<&str> =
            wanted.iter().copied().filter(|name| all.iter().all(|built| built.model != *name)).collect();
        for model in unlisted {
            let (format, kv) = UNFUSED;
            all.push(Built::of(model, "f32"));
            all.push(Built { kv, disabled: Fusion::ALL.into(), ..Built::of(model, format) });
        }
        all.retain(|built| wanted.contains(built.model.as_str()));
        assert!(!all.is_empty(), "FORGE_MODELS={wanted:?} names no model");
    }
    all
}

/// A crate without a fusion.
fn without(fusion: Fusion) -> Built {
    let changed = FUSED.into_iter().find_map(|model| {
        let whole = Built::of(model, "f32");
        let without = Built { disabled: [fusion].into(), ..Built::of(model, "f32") };
        (whole.planned().1.kernels != without.planned().1.kernels).then_some(without)
    });
    changed.unwrap_or_else(|| panic!("{} changes no model of {FUSED:?}", fusion.name()))
}

/// Models whose emulated crates include candidate layouts: one with experts, and one without.
pub const TUNABLE: [&str; 2] = ["llama", "qwen3_moe"];

/// The model of odd sizes.
pub const ODD: &str = "odd";

/// A checkpoint with odd sizes, which no real model has, to test all bounds of the kernels.
fn odd() -> PathBuf {
    random_llama(
        ODD,
        &serde_json::json!({
            "hidden_size": 90, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 10,
            "intermediate_size": 51, "vocab_size": 301,
        }),
    )
}

/// A checkpoint whose sizes are multiples of 256.
fn superblocks() -> PathBuf {
    random_llama(
        SUPERBLOCKS.0,
        &serde_json::json!({
            "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "intermediate_size": 512, "vocab_size": 320,
        }),
    )
}

/// A random checkpoint of a Llama of these sizes.
fn random_llama(name: &str, sizes: &Value) -> PathBuf {
    let directory = scratch().join(name);
    let mut config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "num_hidden_layers": 2, "max_position_embeddings": 320, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
        "bos_token_id": 256, "eos_token_id": 257,
    });
    for (key, size) in sizes.as_object().into_iter().flatten() {
        config[key] = size.clone();
    }
    xtask::random_model::write(&config, None, &directory).unwrap_or_else(|error| panic!("{error}"));
    directory
}

/// Compiles the checkpoint of a crate to be built.
fn compile(built: &Built) {
    static ODD_CHECKPOINT: OnceLock<PathBuf> = OnceLock::new();
    static OF_SUPERBLOCKS: OnceLock<PathBuf> = OnceLock::new();
    let checkpoint = match built.model.as_str() {
        ODD => ODD_CHECKPOINT.get_or_init(odd).clone(),
        MLX => mixed_mlx()[0].clone(),
        name if name == SUPERBLOCKS.0 => OF_SUPERBLOCKS.get_or_init(superblocks).clone(),
        name => model(name),
    };
    let mut arguments = vec!["--quant", &built.format];
    if let Some(format) = built.kv.or((built.format == "keep").then_some("f32")) {
        arguments.extend(["--kv-cache-type", format]);
    }
    for it in built.overrides {
        arguments.extend(["--quant-override", it]);
    }
    for fusion in &built.disabled {
        arguments.extend(["--disable-fusion", fusion.name()]);
    }
    if TUNABLE.contains(&built.model.as_str()) && is_emulated(built) {
        arguments.push("--with-tuning");
    }
    compile_member(&checkpoint, &arguments, &built.directory);
}

impl Built {
    /// A crate that is still to be compiled, nothing but the format chosen.
    fn of(model: &str, format: &str) -> Built {
        Built {
            model: model.to_owned(),
            format: format.to_owned(),
            overrides: &[],
            kv: None,
            disabled: BTreeSet::new(),
            directory: PathBuf::new(),
            program: PathBuf::new(),
        }
    }

    /// The graph and the plan of a crate.
    pub fn planned(&self) -> (Graph, Plan) {
        let quant = |name| forge_planner::Quant::from_name(name).expect("it is a format");
        let overrides = self.overrides.iter().map(|text| {
            let (pattern, name) = text.split_once('=').expect("it is PATTERN=FORMAT");
            forge_planner::Override::new(pattern, quant(name)).expect("it is a pattern")
        });
        let options = forge_planner::Options {
            quant: quant(&self.format),
            overrides: overrides.collect(),
            disabled: self.disabled.clone(),
            cache: Some(self.cache()),
            ..Default::default()
        };
        let graph = forge_planner::untie(graph(&self.model), &options).expect("patterns match");
        let plan = forge_planner::plan(&graph, &options).expect("it compiles");
        (graph, plan)
    }

    /// The KV cache type.
    pub fn cache(&self) -> Format {
        match self.kv.and_then(Format::from_name) {
            Some(format) => format,
            None if ["f32", "keep"].contains(&self.format.as_str()) => Format::F32,
            None => Format::F16,
        }
    }

    /// The name of the crate.
    pub fn name(&self) -> String {
        let left_out = match self.disabled.iter().map(|fusion| fusion.name()).collect::<Vec<_>>()[..] {
            [] => String::new(),
            [one] => format!("-without-{one}"),
            _ => "-unfused".to_owned(),
        };
        let mixed = if self.overrides.is_empty() { "" } else { "-mixed" };
        let cached = self.kv.map_or_else(String::new, |format| format!("-kv-{format}"));
        format!("{}-{}{mixed}{cached}{left_out}", self.model, self.format).replace('_', "-")
    }

    /// Runs the program with f32 activations on the CPU, asserts success, and returns its output.
    pub fn run(&self, arguments: &[&str]) -> String {
        self.run_by_default(&[arguments, &["--f32-activations"]].concat())
    }

    /// Like [`Built::run`], with the default, quantized activations.
    pub fn run_by_default(&self, arguments: &[&str]) -> String {
        let output =
            run(Command::new(&self.program).args(arguments).args(["--device", "cpu", "--threads", "2"]));
        String::from_utf8(output.stdout).expect("programs print UTF-8")
    }

    /// Runs the program and parses its output as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }
}

/// A JSON array of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|number| number.as_f64().unwrap_or(f64::NAN)).collect()
}

/// A JSON array of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().map(|id| id.as_u64().unwrap_or(u64::MAX) as u32).collect()
}

/// Token ids as a command-line argument.
pub fn id_list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The standard deviation.
pub fn deviation(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / numbers.len() as f64).sqrt()
}

/// The largest difference of two lists, in standard deviations of the second. NaN is as far as can be.
pub fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many logits as tokens");
    let worst = found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
    worst / deviation(expected)
}
