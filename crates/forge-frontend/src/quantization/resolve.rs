//! Replaces the tensors of every quantized module by one tensor: the matrix that they store.

use crate::checkpoint::files::Checkpoint;
use crate::checkpoint::safetensors_header::{EncodedAs, Tensor};
use crate::checkpoint::tensors::Tensors;
use crate::quantization::exactness::Exactness;
use crate::quantization::module::Module;
use crate::quantization::scheme::{Scheme, unreadable};
use crate::quantization::target::{Change, format};
use forge_ir::units::size;
use forge_ir::{Diagnostic, Encoding, Format};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Matrices of a checkpoint that are stored in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredMatrices {
    /// How they are stored, such as `FP8, blocks of 128x128`.
    pub stored: String,
    /// The format that they are repacked or dequantized to.
    pub format: Format,
    /// Whether the values are the same in that format.
    pub exact: bool,
    /// How many.
    pub matrices: usize,
    /// Bytes in the checkpoint.
    pub bytes: u64,
    /// Bytes in that format.
    pub format_bytes: u64,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Resolved {
    /// Matrices by storage.
    pub(crate) matrices: Vec<StoredMatrices>,
    /// Names of tensors of quantized modules that do not affect weights.
    pub(crate) unused: BTreeSet<String>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

/// Replaces the tensors of quantized modules. Matrices that are dequantized get the format `float`.
pub(crate) fn resolve(
    scheme: &dyn Scheme,
    checkpoint: &dyn Checkpoint,
    tensors: &mut Tensors,
    float: Format,
) -> Result<Resolved, Vec<Diagnostic>> {
    let mut resolved = Resolved::default();
    let mut modules = Vec::new();
    let mut faults = Vec::new();
    let mut common: BTreeMap<String, Exactness> = BTreeMap::new();
    for name in names(scheme, tensors) {
        let module = Module { name: &name, tensors, checkpoint };
        let Some(stored) = scheme.stored(&module) else { continue };
        let judged = stored.and_then(|(encoding, shape)| {
            Exactness::of(&module, &encoding).map(|exactness| (encoding, shape, exactness))
        });
        match judged {
            Ok((encoding, shape, exactness)) => {
                resolved.unused.extend(unused(scheme, &module));
                let found = common.entry(encoding.to_string()).or_insert(Exactness::NONE);
                *found = found.and(exactness);
                modules.push((name, encoding, shape));
            }
            Err(message) => faults.push(unreadable(&module, message)),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    if modules.is_empty() {
        resolved.notes.extend(scheme.note_without_modules());
        return Ok(resolved);
    }
    let mut groups: BTreeMap<(String, Change, Format), (StoredMatrices, u64)> = BTreeMap::new();
    for (name, encoding, shape) in modules {
        let stored = encoding.to_string();
        let columns = shape.last().copied().unwrap_or(0);
        let (format, change) = format(&encoding, &common[&stored], columns, float);
        let bytes = replace(scheme, tensors, &name, encoding, (format, shape.clone()));
        let exact = !matches!(change, Change::Rounded | Change::KeptByInverse);
        let none = StoredMatrices { stored, format, exact, matrices: 0, bytes: 0, format_bytes: 0 };
        let (group, q8_0) = groups.entry((none.stored.clone(), change, format)).or_insert((none, 0));
        group.matrices += 1;
        group.bytes += bytes;
        let rows = shape.iter().product::<usize>() / columns.max(1);
        group.format_bytes += format.matrix_bytes(rows, columns);
        *q8_0 += Format::Q8_0.matrix_bytes(rows, columns);
    }
    resolved.notes =
        groups.iter().map(|((_, change, _), (group, q8_0))| note(*change, group, *q8_0)).collect();
    if resolved.unused.iter().any(|name| name.contains("scale")) {
        resolved.notes.push(
            "scales of activations are not used: activations are not quantized as in the checkpoint"
                .to_owned(),
        );
    }
    resolved.matrices = groups.into_values().map(|(group, _)| group).collect();
    Ok(resolved)
}

/// Matrices in ggml blocks whose codes are not kept, with notes for the user.
pub(crate) fn resolve_blocks(tensors: &Tensors) -> Resolved {
    let mut groups: BTreeMap<(&str, Change), (StoredMatrices, u64)> = BTreeMap::new();
    for tensor in tensors.iter() {
        let Some(blocks) = tensor.blocks.filter(|blocks| !blocks.has_same_codes()) else { continue };
        let change = match (blocks.format().is_quantized(), blocks.has_same_values()) {
            (true, _) => Change::Repacked,
            (false, true) => Change::Dequantized,
            (false, false) => Change::Rounded,
        };
        let (stored, format) = (blocks.name().to_owned(), blocks.format());
        let exact = change != Change::Rounded;
        let none = StoredMatrices { stored, format, exact, matrices: 0, bytes: 0, format_bytes: 0 };
        let (group, q8_0) = groups.entry((blocks.name(), change)).or_insert((none, 0));
        group.add(tensor, format);
        *q8_0 += matrix_bytes(tensor, Format::Q8_0);
    }
    let notes = groups.iter().map(|((_, change), (group, q8_0))| note(*change, group, *q8_0)).collect();
    let matrices = groups.into_values().map(|(group, _)| group).collect();
    Resolved { matrices, notes, ..Resolved::default() }
}

/// Bytes of a tensor's matrices in a format.
fn matrix_bytes(tensor: &Tensor, format: Format) -> u64 {
    let columns = tensor.shape.last().copied().unwrap_or(0);
    format.matrix_bytes(tensor.shape.iter().product::<usize>() / columns.max(1), columns)
}

impl StoredMatrices {
    /// Adds the matrix or matrices of a tensor.
    fn add(&mut self, tensor: &Tensor, format: Format) {
        self.matrices += tensor.shape.iter().rev().skip(2).product::<usize>();
        self.bytes += tensor.bytes;
        self.format_bytes += matrix_bytes(tensor, format);
    }
}

/// Names of the modules that have one of the scheme's tensors.
fn names(scheme: &dyn Scheme, tensors: &Tensors) -> BTreeSet<String> {
    let module = |tensor: &Tensor| {
        let strip = |part: &&str| tensor.name.strip_suffix(part)?.strip_suffix('.').map(str::to_owned);
        scheme.parts().iter().find_map(strip)
    };
    tensors.iter().filter_map(module).collect()
}

/// Replaces the tensors of one module. Returns their size in bytes.
fn replace(
    scheme: &dyn Scheme,
    tensors: &mut Tensors,
    module: &str,
    encoding: Encoding,
    (format, shape): (Format, Vec<usize>),
) -> u64 {
    let parts = encoding.tensors();
    let parts = parts.iter().chain(scheme.checked()).map(|part| format!("{module}.{part}"));
    let parts: Vec<String> = parts.collect::<BTreeSet<_>>().into_iter().collect();
    let found: Vec<&Tensor> = parts.iter().filter_map(|part| tensors.get(part)).collect();
    let bytes = found.iter().map(|part| part.bytes).sum();
    let codes = tensors.get(&format!("{module}.{}", encoding.codes));
    let (file, offset) = codes.map_or((String::new(), 0), |codes| (codes.file.clone(), codes.offset));
    let tensor = Tensor {
        name: format!("{module}.weight"),
        file,
        dtype: encoding.name.to_owned(),
        shape,
        offset,
        bytes,
        blocks: None,
        encoded: Some(EncodedAs { encoding, format }),
    };
    tensors.replace(&parts, tensor);
    bytes
}

/// Names of a module's tensors that have no effect.
fn unused(scheme: &dyn Scheme, module: &Module<'_>) -> Vec<String> {
    let is_zero = |part: &&&str| {
        let bytes = module.get(part).map(|tensor| module.bytes(tensor));
        matches!(bytes, Some(Ok(bytes)) if bytes.iter().all(|byte| *byte == 0))
    };
    let zero = scheme.unused_if_zero().iter().filter(is_zero);
    let tensors = scheme.unused().iter().chain(zero).filter_map(|part| module.get(part));
    tensors.map(|tensor| tensor.name.clone()).collect()
}

/// What happens to matrices without `--quant`, and what it costs.
fn note(change: Change, group: &StoredMatrices, q8_0: u64) -> String {
    let StoredMatrices { stored, format, matrices, bytes, format_bytes, .. } = group;
    let noun = if *matrices == 1 { "matrix" } else { "matrices" };
    let cost = format!("{} → {}", size(*bytes), size(*format_bytes));
    let smaller = format!("{cost}; --quant q8_0 takes {}", size(q8_0));
    let what = match change {
        Change::Kept => format!("kept as {format}, {cost}"),
        Change::KeptByInverse => {
            format!("kept as {format}, scales times the inverse of their divisor, {cost}")
        }
        Change::Repacked => format!("repacked as {format} with the same values, {cost}"),
        Change::Dequantized => {
            format!("--quant keep dequantizes to {format} with the same values, {smaller}")
        }
        Change::Rounded => format!("--quant keep dequantizes and rounds to {format}, {smaller}"),
    };
    format!("{matrices} {noun} in {stored}: {what}")
}
