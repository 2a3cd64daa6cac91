//! Rows of matrices that a checkpoint stores as codes and scales in several tensors.
//! [`Encoding`](forge_ir::Encoding) defines the values.
//!
//! A row is dequantized in f32, or repacked in one of forge's formats without changing a value. Repacking
//! fails if the format cannot represent a scale exactly.

mod coded_rows;
mod codes;
pub(crate) mod matrix;
mod repack;
mod scales;
pub(crate) mod tensor_cache;
