//! Translates tensors: names, shapes and, of a few vectors, values.

use crate::checkpoint::files::{Checkpoint, unreadable};
use crate::checkpoint::safetensors_header::Tensor;
use crate::checkpoint::tensors::Tensors;
use crate::gguf::families::qwen_next::DECAY;
use crate::gguf::family::Family;
use crate::gguf::format::container::Entry;
use crate::gguf::format::types::Type;
use crate::gguf::metadata::Metadata;
use forge_ir::Diagnostic;

/// Tensors of a file.
pub(crate) struct TranslatedTensors {
    /// Those of the model, by their Hugging Face names.
    pub(crate) tensors: Tensors,
    /// GGUF names of those that it does not use.
    pub(crate) ignored: Vec<String>,
}

/// The tensors of a model of this many layers. Layers beyond the last are for multi-token prediction.
pub(crate) fn translated(
    checkpoint: &dyn Checkpoint,
    metadata: &Metadata,
    family: &Family,
    entries: Vec<(String, Entry)>,
    layers: u64,
) -> Result<TranslatedTensors, Vec<Diagnostic>> {
    let predicts = metadata.count(&metadata.own("nextn_predict_layers")).is_some_and(|count| count > 0);
    let is_beyond = |name: &str| {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
        predicts && layer.and_then(|layer| layer.parse::<u64>().ok()).is_some_and(|layer| layer >= layers)
    };
    let are_fused = entries.iter().any(|(_, entry)| entry.name.ends_with(".ffn_gate_up_exps.weight"));
    let (mut faults, mut ignored) = (Vec::new(), Vec::new());
    let (mut tensors, mut computed) = (Vec::new(), Vec::new());
    for (file, entry) in entries {
        if is_beyond(&entry.name) {
            ignored.push(entry.name);
            continue;
        }
        let is_decay = entry.name.rsplit('.').next() == Some(DECAY);
        let bytes = is_decay
            .then(|| vector(checkpoint, &file, &entry).and_then(|values| logarithms(&entry.name, &values)));
        let tensor = tensor(family, &file, entry, are_fused);
        match bytes {
            Some(Ok(bytes)) => {
                computed.extend(tensor.iter().map(|tensor| (tensor.name.clone(), bytes.clone())))
            }
            Some(Err(message)) => faults.push(Diagnostic::new("F0110", message)),
            None => {}
        }
        tensor.map_or_else(|fault| faults.push(fault), |tensor| tensors.push(tensor));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut tensors = Tensors::gather(tensors)?;
    computed.into_iter().for_each(|(name, bytes)| tensors.set_bytes(&name, bytes));
    Ok(TranslatedTensors { tensors, ignored })
}

/// A tensor with its Hugging Face name.
fn tensor(family: &Family, file: &str, entry: Entry, are_fused: bool) -> Result<Tensor, Diagnostic> {
    let Entry { name, shape, kind, offset, bytes } = entry;
    let reject = |message: String| {
        Diagnostic::new("F0304", message)
            .note(format!("expected {}; block formats only for matrices", Type::supported_names()))
            .note("convert to a supported type such as Q8_0 or Q4_0, or compile the original model with --quant")
    };
    if !kind.is_supported() || kind.blocks().is_some() && shape.len() < 2 {
        return Err(reject(format!("{name} {shape:?} in {file}: unsupported type {}", kind.name)));
    }
    let shape = match (&shape[..], name.rsplit('.').nth(1)) {
        // A matrix of one row, which older converters stored as a vector.
        ([columns], Some("ffn_gate_inp_shexp")) => vec![1, *columns],
        // The axis of the single input channel.
        ([channels, taps], Some("ssm_conv1d")) => vec![*channels, 1, *taps],
        _ => shape,
    };
    let mut translated = family.tensor(&name);
    // Next to a stack of gate and up, the other has such a name too.
    if are_fused && let Some(stack) = translated.strip_suffix(".experts.down_proj.weight") {
        translated = format!("{stack}.experts.down_proj");
    }
    Ok(Tensor {
        name: translated,
        file: file.to_owned(),
        dtype: kind.name.to_owned(),
        shape,
        offset,
        bytes,
        blocks: kind.blocks(),
        encoded: None,
    })
}

/// Maximum number of elements of a vector that is read here.
const MAX_ELEMENTS: u64 = 1 << 15;

/// The values of a vector in F32, or why it cannot be read.
fn vector(checkpoint: &dyn Checkpoint, file: &str, entry: &Entry) -> Result<Vec<f32>, String> {
    if entry.kind.name != "F32" || entry.shape.len() != 1 || entry.bytes > 4 * MAX_ELEMENTS {
        let Entry { name, shape, kind, .. } = entry;
        return Err(format!("{name} in {file} is {shape:?} {}; expected a vector in F32", kind.name));
    }
    let mut bytes = vec![0; entry.bytes as usize];
    checkpoint.read(file, entry.offset, &mut bytes).map_err(|error| unreadable(file, &error).message)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// The bytes of the logarithms of negated values.
fn logarithms(name: &str, values: &[f32]) -> Result<Vec<u8>, String> {
    if values.iter().any(|value| !value.is_finite() || *value >= 0.0) {
        return Err(format!("{name}: values must be negative"));
    }
    // In f64, so that the exponential has the value again, up to its last bit.
    Ok(values.iter().flat_map(|value| ((-f64::from(*value)).ln() as f32).to_le_bytes()).collect())
}

/// The values of a tensor of RoPE factors.
pub(crate) fn factors(
    checkpoint: &dyn Checkpoint,
    metadata: &Metadata,
    (file, entry): &(String, Entry),
) -> Option<Vec<f32>> {
    let numbers = vector(checkpoint, file, entry).and_then(|numbers| {
        let are_positive = numbers.iter().all(|factor| factor.is_finite() && *factor > 0.0);
        if are_positive {
            Ok(numbers)
        } else {
            Err(format!("{} in {file}: factors must be positive", entry.name))
        }
    });
    numbers.map_err(|message| metadata.fault(message, &[])).ok()
}
