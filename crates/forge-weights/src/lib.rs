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

mod checkpoint;
mod codec;
mod column_importance;
mod file;
mod quantization_error;
mod requantized;

pub use crate::checkpoint::checkpoint_weights::CheckpointWeights;
pub use crate::checkpoint::ggml::k_quants::{ggml_bytes, ggml_row};
pub use crate::codec::range_error::RangeError;
pub use crate::codec::row::{decode_row, encode_row, encode_row_weighted};
pub use crate::file::layout::{ALIGNMENT, PAGE, header};
pub use crate::file::matrix::measure;
pub use crate::file::packed_file::PackedFile;
pub use crate::file::write::{Progress, write, write_calibrated};
pub use crate::quantization_error::{QuantizationError, Stat, Summary};
pub use crate::requantized::Requantized;
