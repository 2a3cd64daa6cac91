//! All tensors of a checkpoint: which file holds each, and where.
//!
//! The weights are `model.safetensors`, or the shards that `model.safetensors.index.json` names, or what a GGUF file has.
//! Other safetensors files may lie beside them and are none of our business.

use crate::checkpoint;
use crate::checkpoint::Checkpoint;
use crate::gguf;
use crate::json;
use crate::safetensors_header;
use crate::safetensors_header::Tensor;
use forge_ir::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const SINGLE: &str = "model.safetensors";
const ADAPTER: &str = "adapter_model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a checkpoint, by name.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(transparent)]
pub struct Tensors(BTreeMap<String, Tensor>);

impl Tensors {
    /// Finds the weight files and reads their headers. Those of a GGUF file have the names that they have there.
    ///
    /// # Errors
    /// Every file that is missing, truncated or malformed, and every disagreement of index and shards.
    pub fn open(checkpoint: &dyn Checkpoint) -> Result<Tensors, Vec<Diagnostic>> {
        match gguf::tensors(checkpoint).map_err(|fault| vec![fault])? {
            Some(tensors) => Tensors::gather(tensors),
            None => Tensors::of_folder(checkpoint),
        }
    }

    /// The same of a checkpoint that is no GGUF file.
    pub(crate) fn of_folder(checkpoint: &dyn Checkpoint) -> Result<Tensors, Vec<Diagnostic>> {
        if checkpoint::is_there(checkpoint, SINGLE).map_err(|fault| vec![fault])? {
            return Tensors::gather(safetensors_header::read(checkpoint, SINGLE)?);
        }
        let Some(text) = checkpoint::text(checkpoint, INDEX).map_err(|fault| vec![fault])? else {
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
                let held =
                    found.map_or("no file has it".to_owned(), |tensor| format!("{} has it", tensor.file));
                faults.push(
                    Diagnostic::new(
                        "F0107",
                        format!("{file} lacks the tensor {name} that {INDEX} says it holds"),
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
                    format!("the tensor {name} is in {} and in {file}", other.file),
                ));
            }
        }
        if faults.is_empty() { Ok(Tensors(tensors)) } else { Err(faults) }
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// All tensors in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.0.values()
    }

    /// The files that hold them.
    pub fn files(&self) -> BTreeSet<&str> {
        self.iter().map(|tensor| tensor.file.as_str()).collect()
    }

    /// Fills `out` with a tensor's bytes from its byte `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where there is no such tensor, [`io::ErrorKind::UnexpectedEof`] past its end, and
    /// whatever the checkpoint's [`Checkpoint::read`] says.
    pub fn read(
        &self,
        checkpoint: &dyn Checkpoint,
        name: &str,
        offset: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let tensor = self.get(name).ok_or(io::ErrorKind::NotFound)?;
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > tensor.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        checkpoint.read(&tensor.file, tensor.offset + offset, out)
    }
}

fn no_weights(checkpoint: &dyn Checkpoint) -> Diagnostic {
    let mut fault = Diagnostic::new("F0102", format!("there is neither {SINGLE} nor {INDEX}"));
    let mut is_pickled = false;
    for file in checkpoint.files() {
        if file.starts_with("consolidated") && file.ends_with(".safetensors") {
            fault = fault.note(format!(
                "{file} has its authors' own names of tensors: fetch the files that transformers reads, {SINGLE} or {INDEX} and its shards"
            ));
        } else if file == ADAPTER {
            fault = fault.note(format!(
                "{file} is a LoRA adapter: merge it into its base model first (peft's merge_and_unload, then save_pretrained)"
            ));
        } else if file.ends_with(".safetensors") {
            fault = fault.note(format!("there is {file}, which is not read unless {INDEX} names it"));
        } else if gguf::is_one(&file) {
            fault =
                fault.note(format!("there is {file}: compile that file by itself, it has all that it needs"));
        } else if [".bin", ".pth", ".pt"].iter().any(|end| file.ends_with(end)) {
            is_pickled = true;
            fault = fault.note(format!("{file} is a pickled checkpoint, which forge does not read"));
        }
    }
    if is_pickled {
        fault = fault.note(
            "convert it with transformers: AutoModelForCausalLM.from_pretrained(DIR, dtype=\"auto\").save_pretrained(OUT)",
        );
    }
    fault.note("a folder as Hugging Face keeps it is expected: config.json, weights, tokenizer")
}

/// The file of every tensor.
fn parse_index(text: &str) -> Result<BTreeMap<String, String>, Vec<Diagnostic>> {
    let document = json::parse(INDEX, text)?;
    let bad = |message: String| vec![Diagnostic::new("F0107", message)];
    let Some(map) = document.value.get("weight_map").and_then(serde_json::Value::as_object) else {
        return Err(bad(format!("{INDEX} has no object weight_map")));
    };
    let mut index = BTreeMap::new();
    for (name, file) in map {
        match file.as_str() {
            // A name that leads out of the folder is not a shard's.
            Some(file) if !file.contains(['/', '\\']) && file.ends_with(".safetensors") => {
                index.insert(name.clone(), file.to_owned());
            }
            _ => {
                return Err(bad(format!(
                    "{INDEX} says that {name} is in {file}, which is no safetensors file"
                )));
            }
        }
    }
    if index.is_empty() {
        return Err(bad(format!("{INDEX} names no tensor")));
    }
    Ok(index)
}
