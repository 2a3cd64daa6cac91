//! The tensors of one module of a checkpoint.

use crate::checkpoint::files::Checkpoint;
use crate::checkpoint::safetensors_header::Tensor;
use crate::checkpoint::tensors::Tensors;
use forge_ir::ScaleElement;

/// A module, such as `model.layers.0.mlp.up_proj`, and the tensors whose names begin with its own.
pub(crate) struct Module<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// All tensors of the checkpoint.
    pub(crate) tensors: &'a Tensors,
    /// The files that contain them.
    pub(crate) checkpoint: &'a dyn Checkpoint,
}

impl<'a> Module<'a> {
    /// The tensor with this last part of its name.
    pub(crate) fn get(&self, part: &str) -> Option<&'a Tensor> {
        self.tensors.get(&format!("{}.{part}", self.name))
    }

    /// A tensor that must exist, or the error.
    pub(crate) fn require(&self, part: &str) -> Result<&'a Tensor, String> {
        self.get(part).ok_or_else(|| format!("missing tensor {}.{part}", self.name))
    }

    /// A tensor that must exist with this type and shape, or the error.
    pub(crate) fn expect(&self, part: &str, dtype: &str, shape: &[usize]) -> Result<&'a Tensor, String> {
        let tensor = self.require(part)?;
        match tensor.dtype == dtype && tensor.shape == shape {
            true => Ok(tensor),
            false => Err(format!(
                "{} is {} {:?}, expected {dtype} {shape:?}",
                tensor.name, tensor.dtype, tensor.shape
            )),
        }
    }

    /// All bytes of a tensor.
    pub(crate) fn bytes(&self, tensor: &Tensor) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; tensor.bytes as usize];
        self.tensors
            .read(self.checkpoint, &tensor.name, 0, &mut bytes)
            .map_err(|error| format!("cannot read tensor {}: {error}", tensor.name))?;
        Ok(bytes)
    }

    /// The only element of an f32 tensor.
    pub(crate) fn scalar(&self, part: &str) -> Result<f32, String> {
        let tensor = self.require(part)?;
        match (tensor.dtype.as_str(), &self.bytes(tensor)?[..]) {
            ("F32", [a, b, c, d]) => Ok(f32::from_le_bytes([*a, *b, *c, *d])),
            _ => Err(format!("{} is {} {:?}, expected one F32", tensor.name, tensor.dtype, tensor.shape)),
        }
    }

    /// The integers of a tensor of type I32 or I64.
    pub(crate) fn integers(&self, part: &str) -> Result<Vec<i64>, String> {
        let tensor = self.require(part)?;
        let bytes = self.bytes(tensor)?;
        match tensor.dtype.as_str() {
            "I32" => {
                Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect())
            }
            "I64" => Ok(bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()),
            dtype => Err(format!("{} is stored as {dtype}, expected I32 or I64", tensor.name)),
        }
    }
}

/// Type of scales of 16 or 32 bits, or the error.
pub(crate) fn float_scale(tensor: &Tensor) -> Result<ScaleElement, String> {
    match tensor.dtype.as_str() {
        "F32" => Ok(ScaleElement::F32),
        "F16" => Ok(ScaleElement::F16),
        "BF16" => Ok(ScaleElement::Bf16),
        dtype => Err(format!("{} is stored as {dtype}, expected F32, F16 or BF16", tensor.name)),
    }
}

/// Rows and columns of a matrix, or the error. Neither is 0, so that the file bounds their product.
pub(crate) fn matrix(tensor: &Tensor) -> Result<[usize; 2], String> {
    match tensor.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(format!("{} has shape {:?}, expected a matrix", tensor.name, tensor.shape)),
    }
}

/// Columns that share a scale if a row of this many has this many scales, or the error.
pub(crate) fn group(scales: &Tensor, columns: usize, count: usize) -> Result<Option<usize>, String> {
    match count {
        1 => Ok(None),
        _ if count > 0 && columns.is_multiple_of(count) => Ok(Some(columns / count)),
        _ => Err(format!("{} has {count} groups, which do not divide {columns} columns", scales.name)),
    }
}
