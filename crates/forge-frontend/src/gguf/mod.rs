//! GGUF files, translated into the Hugging Face representation.
//!
//! A GGUF file contains weights, configuration, vocabulary and chat template. Translating it lets the rest of
//! the compiler stay unchanged:
//!
//! * Metadata becomes config.json, tokenizer.json, tokenizer_config.json and generation_config.json, held in
//!   memory.
//! * Tensors get their Hugging Face names and stay in the file.
//! * Changes that llama.cpp's converter makes to tensors are described by [`Conventions`] instead of undone:
//!   query and key rows ordered for interleaved RoPE, gains that include the 1, matrices with one row per
//!   output.
//!
//! `format` reads headers. `metadata` returns values by key and records which were read; `reference` has the keys
//! that llama.cpp reads. `families` declares the architectures. `configuration`, `experts` and `rope` translate the
//! keys that they share, `tensors` their tensors, and `tokenizer` the vocabulary.

pub(crate) mod configuration;
pub(crate) mod experts;
pub(crate) mod families;
pub(crate) mod family;
pub(crate) mod format;
pub(crate) mod metadata;
pub(crate) mod reading;
pub(crate) mod reference;
pub(crate) mod rope;
pub(crate) mod tensors;
pub(crate) mod tokenizer;

use crate::checkpoint::files::{Checkpoint, GGUF, MemoryCheckpoint, exists, is_gguf};
use crate::checkpoint::safetensors_header::Tensor;
use crate::checkpoint::tensors::Tensors;
use crate::config::conventions::Conventions;
use crate::gguf::configuration::configuration;
use crate::gguf::family::Family;
use crate::gguf::format::container::{Container, Entry};
use crate::gguf::metadata::Metadata;
use crate::gguf::reading::Factors;
use crate::gguf::tensors::TranslatedTensors;
use forge_ir::Diagnostic;
use serde_json::Value;

/// A translated file.
pub(crate) struct Translated {
    /// Text files of the equivalent Hugging Face directory.
    pub(crate) texts: MemoryCheckpoint,
    /// Tensors by their Hugging Face names.
    pub(crate) tensors: Tensors,
    /// GGUF names of tensors that the model does not use.
    pub(crate) ignored: Vec<String>,
    /// How tensor data differs from Hugging Face's.
    pub(crate) conventions: Conventions,
    /// Metadata keys.
    pub(crate) keys: Vec<String>,
    /// Metadata keys without effect.
    pub(crate) ignored_keys: Vec<String>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

/// Translates a GGUF checkpoint, which may be split into parts; `None` if there is a config.json or no GGUF
/// file. `allowed` keys may be unsupported.
pub(crate) fn translate(
    checkpoint: &dyn Checkpoint,
    allowed: &[String],
) -> Result<Option<Translated>, Vec<Diagnostic>> {
    let parts = parts(checkpoint).map_err(|fault| vec![fault])?;
    if parts.is_empty() { Ok(None) } else { combine(checkpoint, parts, allowed).map(Some) }
}

/// The tensors of a GGUF checkpoint by their GGUF names, even if the model is unsupported.
pub(crate) fn tensors_of_file(checkpoint: &dyn Checkpoint) -> Result<Option<Vec<Tensor>>, Diagnostic> {
    let parts = parts(checkpoint)?;
    let of_part = |(file, part): (String, Container)| {
        let tensor = move |Entry { name, shape, kind, offset, bytes }| {
            let (file, dtype) = (file.clone(), kind.name.to_owned());
            Tensor { name, file, dtype, shape, offset, bytes, blocks: kind.blocks(), encoded: None }
        };
        part.tensors.into_iter().map(tensor)
    };
    Ok((!parts.is_empty()).then(|| parts.into_iter().flat_map(of_part).collect()))
}

/// The headers of the file or of its parts, in order; empty if there is a config.json.
fn parts(checkpoint: &dyn Checkpoint) -> Result<Vec<(String, Container)>, Diagnostic> {
    if exists(checkpoint, "config.json")? {
        return Ok(Vec::new());
    }
    let read =
        |file: String| crate::gguf::format::container::read(checkpoint, &file).map(|part| (file, part));
    files(checkpoint)?.into_iter().map(read).collect()
}

/// Whether a file is a multimodal projector, which llama.cpp stores separately from the text model.
fn is_projector(file: &str) -> bool {
    file.to_ascii_lowercase().contains("mmproj")
}

/// The GGUF file, or its parts in order.
fn files(checkpoint: &dyn Checkpoint) -> Result<Vec<String>, Diagnostic> {
    let mut files: Vec<String> = checkpoint.files().into_iter().filter(|file| is_gguf(file)).collect();
    if files.iter().any(|file| !is_projector(file)) {
        files.retain(|file| !is_projector(file));
    }
    files.sort();
    let parts: Vec<_> = files.iter().filter_map(|file| part_of(file)).collect();
    let Some((stem, _, count)) = parts.first().copied().filter(|_| parts.len() == files.len()) else {
        return if files.len() <= 1 { Ok(files) } else { Err(several_models(&files)) };
    };
    if parts.iter().any(|part| (part.0, part.2) != (stem, count)) {
        return Err(several_models(&files));
    }
    let missing = (1..=count).filter(|index| parts.iter().all(|part| part.1 != *index));
    let missing: Vec<String> = missing.take(8).map(|index| part_name(stem, index, count)).collect();
    if missing.is_empty() {
        return Ok(files);
    }
    let message = format!("found {} of {count} parts of {stem}{GGUF}", parts.len());
    let fault = Diagnostic::new("F0109", message).note(format!("missing: {}", missing.join(", ")));
    Err(fault.note("download all parts into one directory and pass any of them"))
}

/// Name of a part.
fn part_name(stem: &str, index: usize, count: usize) -> String {
    format!("{stem}-{index:05}-of-{count:05}{GGUF}")
}

/// Name without the part's number, number from 1, and number of parts, if it is named as a part of a split
/// file.
fn part_of(file: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = file.strip_suffix(GGUF)?.rsplit_once("-of-")?;
    let (stem, index) = rest.rsplit_once('-')?;
    let (index, count) = (index.parse().ok()?, count.parse().ok()?);
    (count < 100_000 && part_name(stem, index, count) == file).then_some((stem, index, count))
}

/// The error for GGUF files that are not parts of one model.
fn several_models(files: &[String]) -> Diagnostic {
    let message = format!("found {} GGUF files that are not parts of one model", files.len());
    let fault = Diagnostic::new("F0109", message).note(format!("files: {}", files.join(", ")));
    fault.note("pass the path of one file")
}

/// Combines the parts: the first has the metadata, all have tensors.
fn combine(
    checkpoint: &dyn Checkpoint,
    parts: Vec<(String, Container)>,
    allowed: &[String],
) -> Result<Translated, Vec<Diagnostic>> {
    let count = parts.len();
    let (mut first, mut entries) = (None, Vec::new());
    for (file, part) in parts {
        first.get_or_insert((file.clone(), part.values));
        entries.extend(part.tensors.into_iter().map(|entry| (file.clone(), entry)));
    }
    let (file, values) = first.unwrap_or_default();
    let metadata = Metadata::new(&file, values);
    let split = metadata.count("split.count").unwrap_or(1).max(1);
    let tensors = metadata.count("split.tensors.count");
    if split != count as u64 || tensors.is_some_and(|count| count != entries.len() as u64) {
        let message = format!("{file} is one of {split} parts; found {count}");
        metadata.fault(message, &["download all parts into one directory and pass the first"]);
    }
    if metadata.word("general.type").is_some_and(|kind| kind != "model") {
        let why = match metadata.word("general.type") {
            Some("adapter") => {
                "it is a LoRA adapter: merge it into its base model (llama.cpp's llama-export-lora)"
            }
            Some("mmproj") => "it is a multimodal projector: pass the text model's file",
            _ => "expected a complete model",
        };
        metadata.reject("general.type", why);
    }
    if metadata.count("general.quantization_version").is_some_and(|version| version != 2) {
        metadata.reject("general.quantization_version", "expected version 2");
    }
    let Some(family) = families::from_name(&metadata.architecture) else {
        let names: Vec<&str> = families::ALL.into_iter().map(|family| family.name).collect();
        let name = &metadata.architecture;
        let fault = Diagnostic::new("F0202", format!("unsupported architecture {name:?} in {file}"));
        return Err(vec![fault.note(format!("supported: {}", names.join(", ")))]);
    };
    let (texts, tensors) = translated(checkpoint, &metadata, family, entries);
    let keys = metadata.keys("").map(str::to_owned).collect();
    let notes = metadata.notes();
    let (ignored_keys, mut faults) = metadata.finish(allowed);
    match tensors {
        Ok(TranslatedTensors { tensors, ignored }) if faults.is_empty() => {
            let conventions = family.conventions;
            Ok(Translated { texts, tensors, ignored, conventions, keys, ignored_keys, notes })
        }
        tensors => {
            faults.extend(tensors.err().into_iter().flatten());
            Err(faults)
        }
    }
}

/// Text files and tensors of a supported architecture's file.
fn translated(
    checkpoint: &dyn Checkpoint,
    metadata: &Metadata,
    family: &'static Family,
    mut entries: Vec<(String, Entry)>,
) -> (MemoryCheckpoint, Result<TranslatedTensors, Vec<Diagnostic>>) {
    let rows = entries.iter().find(|(_, entry)| entry.name == "token_embd.weight");
    let vocabulary = rows.and_then(|(_, entry)| entry.shape.first()).copied().unwrap_or(0);
    if vocabulary == 0 {
        metadata.fault(format!("{}: missing tensor token_embd.weight", metadata.file), &[]);
    }
    let mut take = |name: &str| {
        let at = entries.iter().position(|(_, entry)| entry.name == name)?;
        tensors::factors(checkpoint, metadata, &entries.remove(at))
    };
    let mut found = Factors::default();
    if family.conventions.interleaved_rope || family.name == "gemma4" {
        found.all = take("rope_freqs.weight");
    }
    if family.name == "phi3" {
        found.both = take("rope_factors_short.weight").zip(take("rope_factors_long.weight")).map(Into::into);
    }
    let has = |name: &str| entries.iter().any(|(_, entry)| entry.name == name);
    let tensor_info =
        crate::gguf::reading::Tensors { count: entries.len(), vocabulary, has: &has, factors: found };
    let config = configuration(metadata, family, &tensor_info);
    let mut texts = crate::gguf::tokenizer::files::files(metadata);
    texts.0.insert("config.json".to_owned(), format!("{config:#}\n").into_bytes());
    let layers = config.get("num_hidden_layers").and_then(Value::as_u64);
    let tensors = tensors::translated(checkpoint, metadata, family, entries, layers.unwrap_or(u64::MAX));
    (texts, tensors)
}
