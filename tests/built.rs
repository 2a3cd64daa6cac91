//! The generated crates of the end-to-end tests: compiled, and built once for each test binary.

use crate::emulated::{DRIVER, write_driver};
use crate::model_lists::{
    AFFINE, ALL_EXPERTS_SELECTED, CONVERTED, CONVERTED_TO_CODES, EXPERTS, FEW_FORMATS, FORMATS, FUSED,
    LATENTS, MIXED, MLX, MLX_SUFFIX, NO_ATTENTION, ODD, ODD_EXPERTS, ODD_LATENTS, Q8_KV_CACHE, QUANTIZED,
    SHARED, SUPERBLOCKS, TENSORS, TUNABLE, UNFUSED, WHOLE, WIDE_HEADS,
};
use crate::parallel::parallel_map;
use crate::workspace::{self, compile_member};
use crate::{graph, mixed_mlx, model, models, root, run, scratch};
use forge_ir::Graph;
use forge_ops::Format;
use forge_planner::{Fusion, Plan};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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

/// Every model, with and without fusions, some in every format, a model of odd sizes, and models of mixed
/// formats: compiled and built once for each test binary.
pub fn all_built() -> &'static [Built] {
    &all_with_driver().0
}

/// Those of [`all_built`] that contain a model of tests/models unchanged, in f32, and the program that runs
/// them on the emulated Metal. Linux only. With `FORGE_MODELS` set there may be none.
pub fn emulated() -> (Vec<&'static Built>, &'static Path) {
    let (built, driver) = all_with_driver();
    (built.iter().filter(|built| is_emulated(built)).collect(), driver)
}

/// Those of [`TENSORS`], which the same program runs.
pub fn emulated_with_tensors() -> Vec<&'static Built> {
    all_built().iter().filter(|built| has_tensors(built)).collect()
}

fn has_tensors(built: &Built) -> bool {
    is_plain(built) && TENSORS.contains(&(&built.model, &built.format))
}

fn is_emulated(built: &Built) -> bool {
    let source = built.model.strip_suffix(MLX_SUFFIX).unwrap_or(&built.model);
    is_plain(built) && built.format == "f32" && root().join("tests/models").join(source).is_dir()
}

fn is_plain(built: &Built) -> bool {
    built.overrides.is_empty() && built.kv.is_none() && built.disabled.is_empty()
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
    parallel_map(built.iter(), compile);
    let names: Vec<String> = built.iter().map(Built::name).collect();
    let driver = cfg!(any(target_os = "linux", target_os = "macos")).then(|| {
        let is_emulated = |built: &&Built| is_emulated(built) || has_tensors(built);
        let emulated: Vec<&Built> = built.iter().filter(is_emulated).collect();
        write_driver(&workspace, &emulated)
    });
    let other = driver.as_deref().map(|manifest| (DRIVER, manifest));
    let (mut programs, driver) = workspace::build_with(&workspace, &names, other);
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
    add(NO_ATTENTION, "f32", &[]);
    add(SHARED, "f32", &[]);
    add(SHARED, "q4_0", &Fusion::ALL);
    add(WIDE_HEADS, "f32", &[]);
    add(WIDE_HEADS, "q4_0", &Fusion::ALL);
    all.extend(ODD_EXPERTS.into_iter().chain(ODD_LATENTS).map(|model| Built::of(model, "f32")));
    all.extend(ALL_EXPERTS_SELECTED.map(|(model, format)| Built::of(model, format)));
    all.extend(QUANTIZED.into_iter().chain(CONVERTED_TO_CODES).map(|model| Built::of(model, "keep")));
    all.extend(CONVERTED.map(|(model, format)| Built::of(model, format)));
    all.extend(models().iter().map(|model| {
        let (format, kv) = UNFUSED;
        Built { kv, disabled: Fusion::ALL.into(), ..Built::of(model, format) }
    }));
    all.extend(Fusion::ALL.map(without));
    all.extend(Q8_KV_CACHE.map(|model| Built { kv: Some("q8_0"), ..Built::of(model, "f32") }));
    all.extend(
        MIXED
            .into_iter()
            .chain([SUPERBLOCKS])
            .map(|(model, format, overrides)| Built { overrides, ..Built::of(model, format) }),
    );
    // `FORGE_MODELS=qwen3,gemma2` builds only crates of these models. Models of tests/odd outside all lists
    // are only built this way.
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
pub(crate) fn without(fusion: Fusion) -> Built {
    let changed = FUSED.into_iter().find_map(|model| {
        let whole = Built::of(model, "f32");
        let without = Built { disabled: [fusion].into(), ..Built::of(model, "f32") };
        (whole.planned().1.kernels != without.planned().1.kernels).then_some(without)
    });
    changed.unwrap_or_else(|| panic!("{} changes no model of {FUSED:?}", fusion.name()))
}

/// A checkpoint with odd sizes, which no real model has, to test all bounds of the kernels.
pub(crate) fn odd() -> PathBuf {
    random_llama(
        ODD,
        &serde_json::json!({
            "hidden_size": 90, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 10,
            "intermediate_size": 51, "vocab_size": 301,
        }),
    )
}

/// A checkpoint whose sizes are multiples of 256.
pub(crate) fn superblocks() -> PathBuf {
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
    /// A crate to compile, with the format chosen and nothing else.
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

    /// Like [`Built::run`], with the default, quantized activations. Unless the arguments say otherwise with one thread, because
    /// tests run on all cores, where the threads of several programs would wait for each other.
    pub fn run_by_default(&self, arguments: &[&str]) -> String {
        let threads = if arguments.contains(&"--threads") { &[][..] } else { &["--threads", "1"] };
        let output = run(Command::new(&self.program).args(arguments).args(["--device", "cpu"]).args(threads));
        String::from_utf8(output.stdout).expect("programs print UTF-8")
    }

    /// Runs the program and parses its output as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }
}
