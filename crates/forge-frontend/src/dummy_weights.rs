//! A checkpoint with dummy weights, made from a configuration: all tensors exist, in bf16, and are zero.
//!
//! It allows planning and cost prediction for a model without downloading it. It implements [`Checkpoint`]
//! and is read by [`crate::read_model`].

use crate::checkpoint::files::{Checkpoint, MemoryCheckpoint};
use crate::config::conventions::Conventions;
use crate::description::describe;
use crate::graph::builder::Builder;
use crate::options::Options;
use forge_ir::{Diagnostic, Weight};
use std::collections::BTreeMap;
use std::io;

/// A configuration and the header of matching weights.
#[derive(Clone, Debug)]
pub struct DummyWeights {
    /// All files but the weights.
    files: MemoryCheckpoint,
    /// The weight file's bytes before the data.
    header: Vec<u8>,
    /// The weight file's length.
    bytes: u64,
}

const WEIGHTS: &str = "model.safetensors";

impl DummyWeights {
    /// Creates it from the text of a config.json.
    ///
    /// # Errors
    /// All problems of the configuration.
    pub fn new(config: &str, options: &Options) -> Result<DummyWeights, Vec<Diagnostic>> {
        let files =
            MemoryCheckpoint(BTreeMap::from([("config.json".to_owned(), config.as_bytes().to_vec())]));
        let described = describe(&files, Conventions::default(), options)?;
        if !described.faults.is_empty() {
            return Err(described.faults);
        }
        let mut builder = Builder::new(None);
        described.blueprint.build(&mut builder);
        let header =
            if builder.bindings.has_too_many_faults() { None } else { header(&builder.bindings.weights) };
        let Some((header, bytes)) = header else {
            return Err(vec![Diagnostic::new(
                "F0306",
                "the model of this configuration is too large for a checkpoint",
            )]);
        };
        Ok(DummyWeights { files, header, bytes })
    }
}

/// The safetensors header for these weights, and the file's length unless it exceeds 64 bits.
fn header(weights: &[Weight]) -> Option<(Vec<u8>, u64)> {
    let mut entries = serde_json::Map::new();
    let mut end = 0_u64;
    for (weight, tensor) in weights.iter().flat_map(|it| it.tensors().map(move |tensor| (it, tensor))) {
        // A tensor is listed once, at its first slice.
        if entries.contains_key(&tensor) {
            continue;
        }
        let begin = end;
        let shape = weight.tensor_shape();
        let numbers = shape.iter().try_fold(1_u64, |product, size| product.checked_mul(*size as u64));
        end = end.checked_add(numbers?.checked_mul(2)?)?;
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        entries.insert(tensor, entry);
    }
    let json = serde_json::Value::from(entries).to_string();
    let header = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
    let bytes = end.checked_add(header.len() as u64)?;
    Some((header, bytes))
}

impl Checkpoint for DummyWeights {
    fn files(&self) -> Vec<String> {
        self.files.files().into_iter().chain([WEIGHTS.to_owned()]).collect()
    }

    fn len(&self, file: &str) -> io::Result<u64> {
        if file == WEIGHTS { Ok(self.bytes) } else { self.files.len(file) }
    }

    fn read(&self, file: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if file != WEIGHTS {
            return self.files.read(file, offset, out);
        }
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.header.len());
        let (from_header, numbers) = out.split_at_mut(out.len().min(self.header.len() - start));
        from_header.copy_from_slice(&self.header[start..start + from_header.len()]);
        numbers.fill(0);
        Ok(())
    }
}
