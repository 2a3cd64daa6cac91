//! The tensors of a checkpoint and their locations.
//!
//! Weights are in `model.safetensors`, in the shards listed by `model.safetensors.index.json`, or in a GGUF
//! file. Other safetensors files in the directory are ignored.

use crate::checkpoint::files;
use crate::checkpoint::files::Checkpoint;
use crate::checkpoint::safetensors_header;
use crate::checkpoint::safetensors_header::Tensor;
use crate::json;
use forge_ir::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const SINGLE: &str = "model.safetensors";
const ADAPTER: &str = "adapter_model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a checkpoint, by name.
///
/// A quantized matrix that is stored as several tensors counts as one tensor. Its parts can be read by their
/// names.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(transparent)]
pub struct Tensors {
    all: BTreeMap<String, Tensor>,
    /// Parts of quantized matrices.
    #[serde(skip)]
    parts: BTreeMap<String, Tensor>,
    /// Bytes of tensors that differ from those in the file.
    #[serde(skip)]
    computed: BTreeMap<String, Vec<u8>>,
}

impl Tensors {
    /// Like [`Tensors::open`], for a checkpoint that is not a GGUF file.
    pub(crate) fn open_directory(checkpoint: &dyn Checkpoint) -> Result<Tensors, Vec<Diagnostic>> {
        if files::exists(checkpoint, SINGLE).map_err(|fault| vec![fault])? {
            return Tensors::gather(safetensors_header::read(checkpoint, SINGLE)?);
        }
        let Some(text) = files::text(checkpoint, INDEX).map_err(|fault| vec![fault])? else {
            return Err(vec![no_weights(checkpoint)]);
        };
        let index = parse_index(&text)?;
        let mut faults = Vec::new();
        let mut all = Vec::new();
        for file in index.values().collect::<BTreeSet<_>>() {
            match safetensors_header::read(checkpoint, file) {
                Ok(tensors) => all.extend(tensors),
                Err(more) => faults.extend(more),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let tensors = Tensors::gather(all)?;
        for (name, file) in &index {
            let found = tensors.get(name);
            if found.is_none_or(|tensor| tensor.file != *file) {
                let held = found
                    .map_or("no file contains it".to_owned(), |tensor| format!("it is in {}", tensor.file));
                faults.push(
                    Diagnostic::new(
                        "F0107",
                        format!("{file} does not contain the tensor {name}, contrary to {INDEX}"),
                    )
                    .note(held),
                );
            }
        }
        if faults.is_empty() { Ok(tensors) } else { Err(faults) }
    }

    pub(crate) fn gather(all: Vec<Tensor>) -> Result<Tensors, Vec<Diagnostic>> {
        let mut tensors = BTreeMap::new();
        let mut faults = Vec::new();
        for tensor in all {
            let (name, file) = (tensor.name.clone(), tensor.file.clone());
            if let Some(other) = tensors.insert(name.clone(), tensor) {
                faults.push(Diagnostic::new(
                    "F0106",
                    format!("duplicate tensor {name}: in {} and in {file}", other.file),
                ));
            }
        }
        if faults.is_empty() { Ok(Tensors { all: tensors, ..Tensors::default() }) } else { Err(faults) }
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.all.get(name)
    }

    /// Replaces the parts of a quantized matrix by the matrix. Parts that do not exist are passed over.
    pub(crate) fn replace(&mut self, parts: &[String], matrix: Tensor) {
        let removed: Vec<Tensor> = parts.iter().filter_map(|part| self.all.remove(part)).collect();
        self.parts.extend(removed.into_iter().map(|part| (part.name.clone(), part)));
        self.all.insert(matrix.name.clone(), matrix);
    }

    /// Sets the bytes of a tensor, instead of those in its file.
    pub(crate) fn set_bytes(&mut self, name: &str, bytes: Vec<u8>) {
        self.computed.insert(name.to_owned(), bytes);
    }

    /// All tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.all.values()
    }

    /// Names of the weight files.
    pub fn files(&self) -> BTreeSet<&str> {
        self.iter().map(|tensor| tensor.file.as_str()).collect()
    }

    /// Fills `out` with a tensor's bytes from its byte `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such tensor, [`io::ErrorKind::UnexpectedEof`] past its end,
    /// and errors of [`Checkpoint::read`].
    pub fn read(
        &self,
        checkpoint: &dyn Checkpoint,
        name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let tensor = self.parts.get(name).or_else(|| self.get(name)).ok_or(io::ErrorKind::NotFound)?;
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > tensor.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(bytes) = self.computed.get(name) {
            out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
            return Ok(());
        }
        checkpoint.read(&tensor.file, tensor.offset + offset, out)
    }
}

fn no_weights(checkpoint: &dyn Checkpoint) -> Diagnostic {
    let mut fault = Diagnostic::new("F0102", format!("no weights found: expected {SINGLE} or {INDEX}"));
    let mut is_pickled = false;
    for file in checkpoint.files() {
        if file.starts_with("consolidated") && file.ends_with(".safetensors") {
            fault = fault.note(format!(
                "{file} has non-standard tensor names: download the files that transformers reads, {SINGLE} or {INDEX} and its shards"
            ));
        } else if file == ADAPTER {
            fault = fault.note(format!(
                "{file} is a LoRA adapter: merge it into its base model (peft's merge_and_unload, then save_pretrained)"
            ));
        } else if file.ends_with(".safetensors") {
            fault = fault.note(format!("{file} is ignored because there is no {INDEX}"));
        } else if files::is_gguf(&file) {
            fault = fault.note(format!("{file} is a complete model: pass that file instead"));
        } else if [".bin", ".pth", ".pt"].iter().any(|end| file.ends_with(end)) {
            is_pickled = true;
            fault = fault.note(format!("{file}: pickled checkpoints are unsupported"));
        }
    }
    if is_pickled {
        fault = fault.note(
            "convert it with transformers: AutoModelForCausalLM.from_pretrained(DIR, dtype=\"auto\").save_pretrained(OUT)",
        );
    }
    fault.note("expected a Hugging Face model directory: config.json, weights, tokenizer")
}

/// The file of every tensor.
fn parse_index(text: &str) -> Result<BTreeMap<String, String>, Vec<Diagnostic>> {
    let document = json::parse(INDEX, text)?;
    let bad = |message: String| vec![Diagnostic::new("F0107", message)];
    let Some(map) = document.value.get("weight_map").and_then(serde_json::Value::as_object) else {
        return Err(bad(format!("{INDEX}: missing object weight_map")));
    };
    let mut index = BTreeMap::new();
    for (name, file) in map {
        match file.as_str() {
            // Reject names that lead out of the directory.
            Some(file) if !file.contains(['/', '\\']) && file.ends_with(".safetensors") => {
                index.insert(name.clone(), file.to_owned());
            }
            _ => {
                return Err(bad(format!("{INDEX}: invalid shard name {file} for {name}")));
            }
        }
    }
    if index.is_empty() {
        return Err(bad(format!("{INDEX} lists no tensors")));
    }
    Ok(index)
}
