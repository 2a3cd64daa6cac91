//! Quantized matrices: their configuration and their tensors.
//!
//! The configuration names a method, and a [`scheme::Scheme`] says how that method stores the matrix of a
//! module: one file per method. [`resolve`] replaces the tensors of every such module by one tensor with the
//! matrix's name and shape, so that the rest of the frontend sees plain matrices. `exactness` finds what their
//! scales have in common and `target` the format that the values are kept in.
//!
//! MLX's affine quantization with 16-bit scales and OpenAI's mxfp4 are formats of forge itself: `mlx` and
//! `mxfp4` recognize their tensors when they are bound.

pub(crate) mod awq;
pub(crate) mod bitsandbytes;
pub(crate) mod compressed_tensors;
pub(crate) mod exactness;
pub(crate) mod fp8;
pub(crate) mod gptq;
pub(crate) mod mlx;
pub(crate) mod modelopt;
pub(crate) mod module;
pub(crate) mod mxfp4;
pub(crate) mod resolve;
pub(crate) mod scheme;
pub(crate) mod target;
