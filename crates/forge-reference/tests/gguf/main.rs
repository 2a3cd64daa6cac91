//! GGUF files written by llama.cpp's converter: their logits, compared with transformers.
//!
//! The files and the script that makes them are in `tests/gguf`. `FORGE_GGUF=folder` also checks the files of
//! another directory, because all architectures in all types are too large to commit.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../forge-frontend/tests/frontend/gguf/file.rs"]
mod file;
mod other_layouts;

use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, Options, read_model};
use forge_ir::Diagnostic;
use forge_reference::{Positions, evaluate};
use forge_weights::CheckpointWeights;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file, by its path without extension.
fn files() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gguf");
    let more = std::env::var_os("FORGE_GGUF").map(PathBuf::from);
    let of = |folder: PathBuf| {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect::<Vec<_>>()
    };
    let mut files: Vec<PathBuf> = [here].into_iter().chain(more).flat_map(of).collect();
    files.sort();
    files
}

fn memory(file: &Path) -> MemoryCheckpoint {
    let bytes = std::fs::read(file).expect("it can be read");
    MemoryCheckpoint(BTreeMap::from([("model.gguf".to_owned(), bytes)]))
}

fn open(memory: &MemoryCheckpoint) -> Result<LoadedCheckpoint, Vec<Diagnostic>> {
    read_model(memory, &Options { name: "test".to_owned(), ..Options::default() })
}

fn name(file: &Path) -> String {
    file.file_stem().expect("a name").to_string_lossy().into_owned()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The largest difference of a model's logits from those of transformers beside a file, over their standard
/// deviation.
fn distance(memory: &MemoryCheckpoint, file: &Path) -> f64 {
    let opened = open(memory).unwrap_or_else(|faults| panic!("{}: {faults:#?}", file.display()));
    let stored = CheckpointWeights::new(&opened.graph, |tensor, offset, out| {
        opened.tensors.read(memory, tensor, offset, out)
    });
    let golden = std::fs::read(file.with_extension("safetensors")).expect("its logits lie beside it");
    let golden = SafeTensors::deserialize(&golden).expect("it is a safetensors file");
    let mut worst = 0.0_f64;
    for (index, want) in [Positions::Last, Positions::All, Positions::Last].into_iter().enumerate() {
        let tensor = |name: &str| golden.tensor(&format!("{name}_{index}")).expect("it is there");
        let ids = tensor("ids");
        let ids: Vec<u32> =
            ids.data().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let expected = floats(tensor("logits").data());
        let logits = evaluate(&opened.graph, &stored, &ids, want).expect("it can be evaluated").concat();
        assert_eq!(logits.len(), expected.len(), "{}", file.display());
        let mean = expected.iter().map(|x| f64::from(*x)).sum::<f64>() / expected.len() as f64;
        let variance =
            expected.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / expected.len() as f64;
        let difference =
            logits.iter().zip(&expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        worst = worst.max(difference / variance.sqrt());
    }
    worst
}

#[test]
fn gguf_logits_match_transformers() {
    let mut wrong = Vec::new();
    for file in files() {
        let distance = distance(&memory(&file), &file);
        println!("{:<24} {distance:.1e} of a standard deviation from transformers", name(&file));
        if distance.is_nan() || distance > 2e-4 {
            wrong.push((name(&file), distance));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
