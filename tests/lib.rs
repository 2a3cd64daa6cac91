//! Helpers of the end-to-end tests: models, the compiler as a command, and generated crates.
//!
//! A model is a directory of `tests/models`, `tests/quantized` (quantized checkpoints) or `tests/odd`. It has
//! a checkpoint, and `golden.json` or `golden.safetensors` with logits that Hugging Face transformers
//! computed in f32. All directories are tested; adding one adds its tests. Crates are generated in
//! `target/tests` and built as one workspace, so that cargo builds dependencies once and models in parallel.

mod built;
pub mod emulated;
mod mlx;
mod model_lists;
mod numbers;
mod parallel;
mod workspace;

pub use built::{Built, all_built, emulated, emulated_with_tensors};
pub use model_lists::*;
pub use numbers::{deviation, distance, id_list, ids, numbers, rms_distance};
pub use parallel::parallel_map;
pub use workspace::{
    PROGRAMS, build_directory, build_together, compile_member, share_lock_file, write_programs,
};

use forge_ir::Graph;
use forge_planner::{RowsOf, Scratch, Workload};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

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
    if let Some(source) = name.strip_suffix(MLX_SUFFIX) {
        return mlx::converted(&scratch(), name, || model(source));
    }
    if CONVERTED_TO_CODES.contains(&name) {
        return converted_to_codes(name)[0].clone();
    }
    let folders =
        ["tests/models", "tests/quantized", "tests/odd"].map(|folder| root().join(folder).join(name));
    folders.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| panic!("there is no model {name}"))
}

/// The graph of a model.
pub fn graph(name: &str) -> Graph {
    let files = std::fs::read_dir(model(name)).expect("a model is a folder").flatten();
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        (name, std::fs::read(entry.path()).expect("its files can be read"))
    };
    let checkpoint = forge_frontend::MemoryCheckpoint(files.map(file).collect());
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

/// Number of rows of a buffer in a pass.
pub fn rows_of(scratch: &Scratch, load: Workload) -> usize {
    let rows = match scratch.per {
        RowsOf::Pass => 1,
        RowsOf::Row | RowsOf::DecodeRow => load.rows,
        RowsOf::Wanted => load.wanted,
        RowsOf::Position => load.length,
        RowsOf::Split => load.rows * load.splits,
    };
    scratch.rows.min(rows as usize)
}

/// Whether tests create the model from random numbers, so that only the reference implementation has its
/// logits.
pub fn is_random(name: &str) -> bool {
    [ODD, MLX, SUPERBLOCKS.0].contains(&name) || CONVERTED_TO_CODES.contains(&name)
}

/// The directory that tests write to.
pub fn scratch() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("tests")
}

/// The path of the compiler; builds it first.
pub fn forge() -> &'static Path {
    static FORGE: OnceLock<PathBuf> = OnceLock::new();
    FORGE.get_or_init(|| {
        // With a test among its targets, cargo enables what dev-dependencies enable, as `cargo test --workspace`
        // does. Otherwise it compiles the runtime a second time.
        let targets = ["--workspace", "--bin", "forge", "--test", "workflow"];
        let output = run(Command::new(env!("CARGO"))
            .arg("build")
            .args(targets)
            .arg("--message-format=json-render-diagnostics")
            .current_dir(root()));
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

/// Runs the compiler with these arguments. The caller checks whether it succeeded.
pub fn forge_with(arguments: &[&str]) -> Output {
    Command::new(forge()).args(arguments).output().unwrap_or_else(|error| panic!("forge: {error}"))
}
