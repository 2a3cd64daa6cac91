//! Number formats as bytes, and the weight file.
//!
//! * [`Stored`] decodes weights as the checkpoint stores them.
//! * [`write()`] carries out a plan: it asks for the rows of the plan's weights, packs and encodes them, and streams
//!   one safetensors file whose every byte's place is known beforehand.
//! * [`measure`] says what a format would change of a weight, so that formats can be chosen before a plan is made.
//! * [`PackedFile`] reads such a file and undoes the packing, so that the reference can be evaluated on the very bytes
//!   that a device will read.
//!
//! # The file
//!
//! The header is padded with spaces so that the data begins at a multiple of [`PAGE`]; every tensor begins at a
//! multiple of [`ALIGNMENT`] of the file. Where sizes do not give that, a tensor `_padding.N` of bytes fills the hole,
//! because the format forbids holes. A matrix `m` is one tensor `m` in a plain format, and the tensors `m.codes` and
//! `m.scales` in a quantised one, where formats with offsets have them beside their scales. Rows are padded to whole
//! groups of columns. A vector is one tensor of f32, not padded.
//!
//! Where the gain of a norm is folded into the matrices that read what it norms, the file's metadata has the gain's
//! tensor under `<name>.gain`.
//!
//! Reading and writing are done by whoever calls: this crate is given functions and a sink, and knows `forge-ir` alone.

mod affine;
mod affine_levels;
mod blocks;
mod checkpoint_weights;
mod codec;
mod codes;
mod gather;
mod ggml;
mod layout;
mod matrix;
mod mlx;
mod mxfp4;
mod packed_file;
mod quantization_error;
mod superblock;
mod write;

pub use crate::checkpoint_weights::CheckpointWeights;
pub use crate::codec::{RangeError, decode_row, encode_row};
pub use crate::ggml::{ggml_bytes, ggml_row};
pub use crate::layout::{ALIGNMENT, PAGE, header};
pub use crate::matrix::measure;
pub use crate::packed_file::PackedFile;
pub use crate::quantization_error::{Stat, Summary};
pub use crate::write::{Progress, write};
