//! Test models loaded into memory, and helpers that modify them.

use forge_frontend::{LoadedCheckpoint, MemoryCheckpoint, Options, read_model};
use forge_ir::{Diagnostic, Graph};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// Names of all models of tests/models.
pub(crate) fn models() -> Vec<String> {
    let folder = format!("{}/../../tests/models", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models = entries.filter(|path| path.join("config.json").is_file());
    models.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// A model of tests/models, tests/quantized, tests/encoded or tests/odd.
pub(crate) fn model(name: &str) -> MemoryCheckpoint {
    let folders = ["models", "quantized", "encoded", "odd"]
        .map(|kind| format!("{}/../../tests/{kind}", env!("CARGO_MANIFEST_DIR")));
    let mut paths = folders.iter().map(|folder| std::path::Path::new(folder).join(name));
    let files = std::fs::read_dir(paths.find(|path| path.is_dir()).unwrap()).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())
    });
    MemoryCheckpoint(files.collect())
}

/// The frontend's result for this model.
pub(crate) fn read(files: &MemoryCheckpoint) -> Result<LoadedCheckpoint, Vec<Diagnostic>> {
    read_model(files, &Options { name: "test".to_owned(), ..Options::default() })
}

/// The model after a change, which it accepts.
pub(crate) fn changed(name: &str, change: impl FnOnce(&mut MemoryCheckpoint)) -> LoadedCheckpoint {
    let mut files = model(name);
    change(&mut files);
    read(&files).unwrap_or_else(|faults| panic!("{name}: {faults:#?}"))
}

/// The diagnostics of the model after a change.
pub(crate) fn fault(name: &str, change: impl FnOnce(&mut MemoryCheckpoint)) -> String {
    let mut files = model(name);
    change(&mut files);
    read(&files).expect_err("the change breaks the model").iter().map(|fault| format!("{fault}\n")).collect()
}

/// The graph of a model after a change to its configuration.
pub(crate) fn configured(name: &str, change: impl FnOnce(&mut Value)) -> Graph {
    let mut files = model(name);
    edit(&mut files, "config.json", change);
    read(&files).unwrap_or_else(|faults| panic!("{name}: {faults:#?}")).graph
}

/// Changes a JSON file.
pub(crate) fn edit(files: &mut MemoryCheckpoint, file: &str, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&files.0[file]).unwrap();
    change(&mut value);
    files.0.insert(file.to_owned(), format!("{value:#}").into_bytes());
}

/// A tensor to write: type, shape and bytes, which may be inconsistent.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// The tensors of a safetensors file.
pub(crate) fn tensors(file: &[u8]) -> Vec<Raw> {
    let file = SafeTensors::deserialize(file).unwrap();
    let mut all: Vec<Raw> = file
        .iter()
        .map(|(name, view)| Raw {
            name: name.to_owned(),
            dtype: format!("{:?}", view.dtype()),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// A safetensors file of these tensors.
pub(crate) fn file(tensors: &[Raw]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry =
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()]});
        entries.push(format!("{}:{entry}", json!(tensor.name)));
    }
    raw_file(&format!("{{{}}}", entries.join(",")), &data)
}

/// A safetensors file of this header and data.
pub(crate) fn raw_file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Changes the weights of a model of one file.
pub(crate) fn edit_weights(files: &mut MemoryCheckpoint, change: impl FnOnce(&mut Vec<Raw>)) {
    let mut all = tensors(&files.0["model.safetensors"]);
    change(&mut all);
    files.0.insert("model.safetensors".to_owned(), file(&all));
}

/// Splits the weights of a model into shards, round robin.
pub(crate) fn shard(files: &mut MemoryCheckpoint, shards: usize) {
    let all = tensors(&files.0.remove("model.safetensors").unwrap());
    let name = |shard: usize| format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
    let mut map = serde_json::Map::new();
    for shard in 0..shards {
        let held: Vec<Raw> = all.iter().skip(shard).step_by(shards).cloned().collect();
        map.extend(held.iter().map(|tensor| (tensor.name.clone(), json!(name(shard)))));
        files.0.insert(name(shard), file(&held));
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    files.0.insert("model.safetensors.index.json".to_owned(), index.to_string().into_bytes());
}
