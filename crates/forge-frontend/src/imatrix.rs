//! Importance matrix files of llama.cpp's `imatrix` tool, in both of its formats.
//!
//! A GGUF file has two F32 tensors for each matrix: `NAME.in_sum2`, the sums of squared inputs of each column,
//! and `NAME.counts`, the number of inputs. A stack of experts has a row for each expert in both.
//!
//! The older binary format, usually named `imatrix.dat`, has the number of matrices, and for each matrix its
//! name, a number of calls, and the mean squares times that number. Integers and floats have 32 bits.
//!
//! Names are llama.cpp's tensor names. The tables of GGUF architectures translate them, also for a checkpoint
//! that is not a GGUF file: columns have the same order in both.

use crate::checkpoint::files::{Checkpoint, MemoryCheckpoint, unreadable};
use crate::gguf::families;
use crate::gguf::family::Family;
use crate::gguf::format::container;
use forge_ir::{ColumnSquares, Diagnostic, Graph, ImportanceMatrix, Weight};
use std::collections::BTreeMap;

/// Activation statistics read from a file.
#[derive(Debug)]
pub struct Imatrix {
    /// Those of the model's matrices.
    pub statistics: ImportanceMatrix,
    /// llama.cpp's names of those that no matrix of the model matches.
    pub unused: Vec<String>,
}

/// Statistics of one matrix: means or sums of squares, part by part, and the number of inputs of each part.
struct Entry {
    sums: Vec<f64>,
    counts: Vec<u64>,
}

/// Reads an importance matrix file for a model. `file` is its name, for messages.
///
/// # Errors
/// If the file is in neither format, is damaged, or is of another model.
pub fn read_imatrix(file: &str, bytes: Vec<u8>, graph: &Graph) -> Result<Imatrix, Diagnostic> {
    let class = &graph.model.architecture;
    let Some(family) = families::of_class(class) else {
        let message = format!("{file}: llama.cpp's tensor names are unknown for {class}");
        return Err(Diagnostic::new("F0112", message).note("use --calibrate with a text instead"));
    };
    let entries = if bytes.starts_with(b"GGUF") { gguf(file, bytes)? } else { legacy(file, &bytes)? };
    let mut found = Imatrix { statistics: ImportanceMatrix::default(), unused: Vec::new() };
    for (name, entry) in entries {
        let mut is_used = false;
        for weight in
            graph.weights.iter().filter(|weight| weight.is_matrix() && is_named(family, &name, weight))
        {
            if let Some(squares) = fit(&entry, weight) {
                found.statistics.insert(weight, squares);
                is_used = true;
            }
        }
        if !is_used {
            found.unused.push(name);
        }
    }
    if found.statistics.is_empty() {
        let message = format!("{file}: no entry matches a matrix of this model");
        let first = found.unused.first().map_or("nothing", |name| name);
        return Err(Diagnostic::new("F0112", message).note(format!("the file has {first}")));
    }
    Ok(found)
}

/// The statistics for a weight; `None` if the file has those of a matrix of another width.
fn fit(entry: &Entry, weight: &Weight) -> Option<ColumnSquares> {
    let squares = if entry.counts.len() == 1 {
        // The older format does not have the number of parts.
        let parts = entry.sums.len() / weight.columns().max(1);
        ColumnSquares::from_sums(entry.sums.clone(), vec![entry.counts[0]; parts])
    } else {
        ColumnSquares::from_sums(entry.sums.clone(), entry.counts.clone())
    };
    squares.filter(|squares| {
        squares.columns() == weight.columns() && weight.rows().is_multiple_of(squares.parts())
    })
}

/// Whether llama.cpp's name is that of a weight's tensor.
fn is_named(family: &Family, name: &str, weight: &Weight) -> bool {
    // Its columns have another order there.
    if family.conventions.tiled_value_heads && name.ends_with(".ssm_out.weight") {
        return false;
    }
    let of_experts = name.replace("_exps.", ".*.");
    let names = [family.tensor(name), family.tensor(&of_experts)];
    let own = module(&weight.tensor);
    names.iter().map(|name| module(name)).any(|name| {
        // A checkpoint may have one tensor for several of a GGUF file, which have the same inputs.
        own == name
            || name.strip_suffix(".gate_proj").is_some_and(|rest| own == format!("{rest}.gate_up_proj"))
            || name.strip_suffix(".q_proj").is_some_and(|rest| own == format!("{rest}.qkv_proj"))
    })
}

/// The part of a tensor's name that checkpoints have in common: without prefixes of multimodal models, the
/// place of an expert's number, and the ending.
fn module(tensor: &str) -> String {
    let name = match tensor.find("layers.") {
        Some(place) => &tensor[place..],
        None if tensor.contains("embed_tokens") => "embed_tokens",
        None => tensor,
    };
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let name = name.strip_suffix("_blocks").unwrap_or(name);
    name.replace(".experts.*.", ".experts.")
}

/// The entries of a GGUF file.
fn gguf(file: &str, bytes: Vec<u8>) -> Result<Vec<(String, Entry)>, Diagnostic> {
    const SUMS: &str = ".in_sum2";
    const COUNTS: &str = ".counts";
    let held = MemoryCheckpoint(BTreeMap::from([(file.to_owned(), bytes)]));
    let container = container::read(&held, file)?;
    let values = |tensor: &container::Entry| -> Result<Vec<f32>, Diagnostic> {
        if tensor.kind.name != "F32" {
            let message = format!("{file}: {} has type {}, expected F32", tensor.name, tensor.kind.name);
            return Err(Diagnostic::new("F0112", message));
        }
        let mut bytes = vec![0; tensor.bytes as usize];
        held.read(file, tensor.offset, &mut bytes).map_err(|error| unreadable(file, &error))?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    };
    let mut entries = Vec::new();
    for tensor in &container.tensors {
        let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
        let counts = container.tensors.iter().find(|other| other.name.strip_suffix(COUNTS) == Some(name));
        let Some(counts) = counts else {
            return Err(Diagnostic::new("F0112", format!("{file}: {name} has no counts")));
        };
        let sums = values(tensor)?.into_iter().map(f64::from).collect();
        let counts = values(counts)?.into_iter().map(|count| count as u64).collect();
        entries.push((name.to_owned(), Entry { sums, counts }));
    }
    if entries.is_empty() {
        let message = format!("{file}: a GGUF file without importance matrix entries");
        return Err(Diagnostic::new("F0112", message).note("expected tensors that end in .in_sum2"));
    }
    Ok(entries)
}

/// The entries of a file in the older format.
fn legacy(file: &str, bytes: &[u8]) -> Result<Vec<(String, Entry)>, Diagnostic> {
    let mut reader = Reader(bytes);
    let mut read = || -> Option<Vec<(String, Entry)>> {
        let count = reader.count().filter(|count| *count > 0)?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let length = reader.count()?;
            let name = String::from_utf8(reader.bytes(length)?.to_vec()).ok()?;
            let calls = reader.count()?;
            let length = reader.count()?.checked_mul(4)?;
            let values = reader.bytes(length)?.as_chunks::<4>().0;
            let sums = values.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
            entries.push((name, Entry { sums, counts: vec![calls.max(1) as u64] }));
        }
        Some(entries)
    };
    read().ok_or_else(|| {
        Diagnostic::new("F0112", format!("{file}: not an importance matrix of llama.cpp, or cut short"))
    })
}

/// The bytes that are left of a file in the older format.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// An integer that is not negative.
    fn count(&mut self) -> Option<usize> {
        let bytes = self.bytes(4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(bytes)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_checkpoints_have_one_module() {
        for (tensor, expected) in [
            ("model.layers.3.mlp.experts.*.gate_proj.weight", "layers.3.mlp.experts.gate_proj"),
            ("model.layers.3.mlp.experts.gate_proj.weight", "layers.3.mlp.experts.gate_proj"),
            ("model.language_model.layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_proj"),
            ("model.layers.1.mlp.experts.down_proj_blocks", "layers.1.mlp.experts.down_proj"),
            ("model.language_model.embed_tokens.weight", "embed_tokens"),
            ("lm_head.weight", "lm_head"),
        ] {
            assert_eq!(module(tensor), expected, "{tensor}");
        }
    }
}
