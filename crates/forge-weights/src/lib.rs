//! Encoding of number formats, and the weight file.
//!
//! * [`CheckpointWeights`] decodes weights from the checkpoint.
//! * [`write()`] carries out a plan: it reads the rows of the plan's weights, packs and encodes them, and
//!   streams one safetensors file whose layout is known in advance.
//! * [`measure`] computes the quantization error of a weight in several formats, to choose formats before
//!   planning.
//! * [`PackedFile`] reads such a file and inverts the packing, so that the reference evaluates the very bytes
//!   that a device reads.
//!
//! # The file
//!
//! The header is padded with spaces so that the data begins at a multiple of [`PAGE`]. Every tensor begins at
//! a multiple of [`ALIGNMENT`] of the file. Gaps are filled by tensors named `_padding.N`, because the format
//! forbids gaps. A matrix `m` is one tensor `m` in a plain format, and the tensors `m.codes` and `m.scales`
//! in a quantized one; offsets are interleaved with the scales. Rows are padded to whole groups of columns. A
//! vector is one f32 tensor without padding.
//!
//! If a norm's gain is folded into matrices, the file's metadata has the name of the gain's tensor under
//! `<name>.gain`.
//!
//! This crate does no I/O of its own: callers pass read functions and a sink. It depends only on `forge-ir`.

mod affine;
mod affine_levels;
mod checkpoint_weights;
mod codec;
mod codes;
mod column_importance;
mod encoded;
mod fp8;
mod gather;
mod ggml;
mod iq4;
mod layout;
mod matrix;
mod mlx;
mod mxfp4;
mod nvfp4;
mod packed_file;
mod quantization_error;
mod requantized;
mod superblock;
mod symmetric;
mod weighted_fit;
mod write;

pub use crate::checkpoint_weights::CheckpointWeights;
pub use crate::codec::{RangeError, decode_row, encode_row, encode_row_weighted};
pub use crate::ggml::k_quants::{ggml_bytes, ggml_row};
pub use crate::layout::{ALIGNMENT, PAGE, header};
pub use crate::matrix::measure;
pub use crate::packed_file::PackedFile;
pub use crate::quantization_error::{QuantizationError, Stat, Summary};
pub use crate::requantized::Requantized;
pub use crate::write::{Progress, write, write_calibrated};
