//! A GGUF file as a checkpoint: translated into what the model's authors would have published.
//!
//! One file has everything: numbers, sizes, vocabulary, chat template. It is read into what the rest of the compiler knows
//! already, so architectures, the check of keys and tensors, and whatever reads a tokenizer stay as they are:
//!
//! * the metadata becomes the texts of config.json, tokenizer.json, tokenizer_config.json and generation_config.json, which
//!   are held here and never written beside the file;
//! * tensors get the names that Hugging Face has for them, and stay where they are in the file;
//! * what llama.cpp's converter does to numbers is not undone but told, as [`Conventions`]: rows of queries and keys in the
//!   order in which neighbours turn together, gains with their 1, matrices with a row for each output.
//!
//! `container` reads headers, with `cursor`, `value` and `types`; `metadata` gives values by key and remembers which were
//! asked for; `family`, `configuration` and `positions`, `vocabulary`, `tokenizer`, `merges`, `pretokenizer` and `specials` translate.

pub(crate) mod configuration;
pub(crate) mod container;
pub(crate) mod family;
pub(crate) mod merges;
pub(crate) mod metadata;
pub(crate) mod pretokenizer;
pub(crate) mod reader;
pub(crate) mod reference;
pub(crate) mod rope;
pub(crate) mod special_tokens;
pub(crate) mod tokenizer;
pub(crate) mod types;
pub(crate) mod value;
pub(crate) mod vocabulary;

use crate::checkpoint::{Checkpoint, Memory, is_there, unreadable};
use crate::config::Conventions;
use crate::gguf::configuration::configuration;
use crate::gguf::container::{Container, Entry};
use crate::gguf::family::Family;
use crate::gguf::metadata::Metadata;
use crate::gguf::rope::Factors;
use crate::gguf::types::Type;
use crate::safetensors_header::Tensor;
use crate::tensors::Tensors;
use forge_ir::Diagnostic;

/// A file, translated.
pub(crate) struct Translated {
    /// The texts of the files that a folder would have.
    pub(crate) texts: Memory,
    /// The tensors by the names of Hugging Face.
    pub(crate) tensors: Tensors,
    /// How their numbers differ from those of Hugging Face.
    pub(crate) conventions: Conventions,
    /// The keys of its metadata.
    pub(crate) keys: Vec<String>,
    /// Those that have no effect.
    pub(crate) ignored_keys: Vec<String>,
    /// What a user should know of how the file was understood.
    pub(crate) notes: Vec<String>,
}

const END: &str = ".gguf";

/// Whether a file is one by its name.
pub(crate) fn is_one(file: &str) -> bool {
    file.ends_with(END)
}

/// Translates the file that a checkpoint is, or the parts that it is split into; none where a checkpoint has a config.json,
/// or no such file. Keys that are `allowed` may be there unknown.
pub(crate) fn translate(
    checkpoint: &dyn Checkpoint,
    allowed: &[String],
) -> Result<Option<Translated>, Vec<Diagnostic>> {
    let parts = parts(checkpoint).map_err(|fault| vec![fault])?;
    if parts.is_empty() { Ok(None) } else { whole(checkpoint, parts, allowed).map(Some) }
}

/// The tensors of such a file by the names that it has for them, whether or not a model can be made of them.
pub(crate) fn tensors(checkpoint: &dyn Checkpoint) -> Result<Option<Vec<Tensor>>, Diagnostic> {
    let parts = parts(checkpoint)?;
    let of_part = |(file, part): (String, Container)| {
        let tensor = move |Entry { name, shape, kind, offset, bytes }| {
            let (file, dtype) = (file.clone(), kind.name.to_owned());
            Tensor { name, file, dtype, shape, offset, bytes, blocks: kind.blocks() }
        };
        part.tensors.into_iter().map(tensor)
    };
    Ok((!parts.is_empty()).then(|| parts.into_iter().flat_map(of_part).collect()))
}

/// The headers of the file that a checkpoint is, or of its parts in their order; none where there is a config.json.
fn parts(checkpoint: &dyn Checkpoint) -> Result<Vec<(String, Container)>, Diagnostic> {
    if is_there(checkpoint, "config.json")? {
        return Ok(Vec::new());
    }
    let read = |file: String| crate::gguf::container::read(checkpoint, &file).map(|part| (file, part));
    files(checkpoint)?.into_iter().map(read).collect()
}

/// Whether a file has what sees pictures or hears, which llama.cpp keeps in a file of its own beside the text model's.
fn is_projector(file: &str) -> bool {
    file.to_ascii_lowercase().contains("mmproj")
}

/// The file that is meant, or its parts in their order.
fn files(checkpoint: &dyn Checkpoint) -> Result<Vec<String>, Diagnostic> {
    let mut files: Vec<String> = checkpoint.files().into_iter().filter(|file| is_one(file)).collect();
    if files.iter().any(|file| !is_projector(file)) {
        files.retain(|file| !is_projector(file));
    }
    files.sort();
    let count = files.len();
    let part = |index: usize| format!("-{:05}-of-{count:05}{END}", index + 1);
    let stem = |index: usize, file: &str| file.strip_suffix(&part(index)).map(str::to_owned);
    let stems: Vec<_> = files.iter().enumerate().map(|(index, file)| stem(index, file)).collect();
    if count <= 1 || stems[0].is_some() && stems.iter().all(|stem| *stem == stems[0]) {
        return Ok(files);
    }
    let fault =
        Diagnostic::new("F0109", format!("there are {count} GGUF files, which are not the parts of one"));
    Err(fault.note(format!("they are {}", files.join(", "))).note("name the one that is meant"))
}

/// Puts the parts together: the first has the metadata, all have tensors.
fn whole(
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
        let message = format!("{file} is one of {split} parts, of which {count} are here");
        metadata.fault(message, &["fetch all of them into one folder, and name the first"]);
    }
    if metadata.word("general.type").is_some_and(|kind| kind != "model") {
        let why = match metadata.word("general.type") {
            Some("adapter") => {
                "it is a LoRA adapter: merge it into its base model first (llama.cpp's llama-export-lora)"
            }
            Some("mmproj") => "it sees pictures or hears for a text model: name the text model's file",
            _ => "forge compiles a whole model",
        };
        metadata.refuse("general.type", why);
    }
    if metadata.count("general.quantization_version").is_some_and(|version| version != 2) {
        metadata.refuse("general.quantization_version", "forge knows blocks of version 2 alone");
    }
    let family = crate::gguf::family::ALL.iter().find(|family| family.name == metadata.architecture);
    let Some(family) = family else {
        let names: Vec<&str> = crate::gguf::family::ALL.iter().map(|family| family.name).collect();
        let name = &metadata.architecture;
        let fault =
            Diagnostic::new("F0202", format!("forge does not know the architecture {name:?} of {file}"));
        return Err(vec![fault.note(format!("it knows {}", names.join(", ")))]);
    };
    let (texts, tensors) = translated(checkpoint, &metadata, family, entries);
    let keys = metadata.keys("").map(str::to_owned).collect();
    let notes = metadata.notes();
    let (ignored_keys, mut faults) = metadata.finish(allowed);
    match tensors {
        Ok(tensors) if faults.is_empty() => {
            Ok(Translated { texts, tensors, conventions: family.conventions, keys, ignored_keys, notes })
        }
        tensors => {
            faults.extend(tensors.err().into_iter().flatten());
            Err(faults)
        }
    }
}

/// The texts and the tensors of a family's file.
fn translated(
    checkpoint: &dyn Checkpoint,
    metadata: &Metadata,
    family: &Family,
    mut entries: Vec<(String, Entry)>,
) -> (Memory, Result<Tensors, Vec<Diagnostic>>) {
    let rows = entries.iter().find(|(_, entry)| entry.name == "token_embd.weight");
    let vocabulary = rows.and_then(|(_, entry)| entry.shape.first()).copied().unwrap_or(0);
    if vocabulary == 0 {
        metadata.fault(format!("{} lacks the tensor token_embd.weight", metadata.file), &[]);
    }
    let mut take = |name: &str| {
        let at = entries.iter().position(|(_, entry)| entry.name == name)?;
        factors(checkpoint, metadata, &entries.remove(at))
    };
    let mut found = Factors::default();
    if family.conventions.neighbours_turn {
        found.all = take("rope_freqs.weight");
    }
    if family.name == "phi3" {
        found.both = take("rope_factors_short.weight").zip(take("rope_factors_long.weight")).map(Into::into);
    }
    let has = |name: &str| entries.iter().any(|(_, entry)| entry.name == name);
    let told =
        crate::gguf::configuration::Tensors { count: entries.len(), vocabulary, has: &has, factors: found };
    let config = configuration(metadata, family, &told);
    let mut texts = crate::gguf::tokenizer::files(metadata);
    texts.0.insert("config.json".to_owned(), format!("{config:#}\n").into_bytes());
    let mut faults = Vec::new();
    let mut tensors = Vec::new();
    for (file, entry) in entries {
        match tensor(family, &file, entry) {
            Ok(tensor) => tensors.push(tensor),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { (texts, Tensors::gather(tensors)) } else { (texts, Err(faults)) }
}

/// A tensor under its other name.
fn tensor(family: &Family, file: &str, entry: Entry) -> Result<Tensor, Diagnostic> {
    let Entry { name, shape, kind, offset, bytes } = entry;
    let refuse = |message: String| {
        Diagnostic::new("F0304", message)
            .note(format!("forge reads {}, and blocks of codes in matrices alone", Type::readable()))
            .note("make a file of such a type, Q8_0 or Q4_0 say, or compile the original model with --quant")
    };
    if !kind.is_read() || kind.blocks().is_some() && shape.len() != 2 {
        return Err(refuse(format!("{name} {shape:?} of {file} is stored as {}", kind.name)));
    }
    let (name, blocks) = (family.tensor(&name), kind.blocks());
    Ok(Tensor { name, file: file.to_owned(), dtype: kind.name.to_owned(), shape, offset, bytes, blocks })
}

/// More pairs no head has.
const MOST_PAIRS: u64 = 1 << 15;

/// The numbers of a tensor of factors.
fn factors(
    checkpoint: &dyn Checkpoint,
    metadata: &Metadata,
    (file, entry): &(String, Entry),
) -> Option<Vec<f32>> {
    if entry.kind.name != "F32" || entry.shape.len() != 1 || entry.bytes > 4 * MOST_PAIRS {
        let message = format!(
            "{} of {file} is {:?} {}, and has to be a list in F32",
            entry.name, entry.shape, entry.kind.name
        );
        metadata.fault(message, &[]);
        return None;
    }
    let mut bytes = vec![0; entry.bytes as usize];
    if let Err(error) = checkpoint.read(file, entry.offset, &mut bytes) {
        metadata.fault(unreadable(file, &error).message, &[]);
        return None;
    }
    let numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if numbers.iter().any(|factor| !factor.is_finite() || *factor <= 0.0) {
        metadata.fault(format!("{} of {file} has factors that are not positive", entry.name), &[]);
        return None;
    }
    Some(numbers)
}
