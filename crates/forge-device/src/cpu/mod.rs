//! CPU device: the same passes as on a GPU, with each dispatch spread over a few threads.
//!
//! Each kernel family is one function that takes [`KernelArgs`] (the buffers and scalars of a dispatch) and a
//! shape (constants from the compiler). It looks its buffers up by the names in the Metal kernel's signature,
//! so the two cannot diverge unnoticed. Threads share the items of a dispatch. One thread computes each item
//! in a fixed order, so results do not depend on the number of threads.
//!
//! Vector code is written once, over the trait `Simd` in `simd::vectors`, and compiled for each
//! [`simd::isa::Isa`]. The device selects the instruction set at startup. Arithmetic is f32 and weights are
//! widened exactly. The exception is the int8 dot product, for which activations are quantized
//! (`matmul::int8`).
//!
//! A model uses few kernels and one or two weight formats, and they dominate build time. Families and formats
//! are therefore crate features, and a generated crate enables those its model needs.

pub(crate) mod attention;
pub(crate) mod device;
pub(crate) mod elementwise;
pub mod format;
pub(crate) mod head;
pub(crate) mod matmul;
pub(crate) mod mla;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod recurrent;
pub mod simd;

#[cfg(feature = "attention")]
pub use crate::cpu::attention::attend::{attend, attend_combine};
#[cfg(feature = "attention")]
pub use crate::cpu::attention::kv_append::append;
#[cfg(feature = "attention")]
pub use crate::cpu::attention::rope::rope;
#[cfg(feature = "attention")]
pub use crate::cpu::attention::rope_append::rope_append;

pub use crate::cpu::device::cpu_device::CpuDevice;
pub use crate::cpu::device::kernel_args::{KernelArgs, Output};

pub use crate::cpu::elementwise::elementwise_op::elementwise;
pub use crate::cpu::elementwise::embed::embed;
pub use crate::cpu::elementwise::slice_columns::slice_columns;
pub use crate::cpu::format::weight_format::{WeightFormat, types::*};
pub use crate::cpu::head::argmax::{argmax, argmax_combine};
pub use crate::cpu::head::sample::sample;

pub use crate::cpu::matmul::linear::{linear, quantize};
#[cfg(feature = "mla")]
pub use crate::cpu::mla::attend::mla_attention;
#[cfg(feature = "mla")]
pub use crate::cpu::mla::cache_append::mla_append;
#[cfg(feature = "mla")]
pub use crate::cpu::mla::expanded::{attend_expanded, load_latents};
#[cfg(feature = "mla")]
pub use crate::cpu::mla::per_head_matmul::per_head_linear;
#[cfg(feature = "moe")]
pub use crate::cpu::moe::decode::{experts_inner, experts_sum};
#[cfg(feature = "moe")]
pub use crate::cpu::moe::grouped::{experts_combine, experts_group, experts_tiles};
#[cfg(feature = "moe")]
pub use crate::cpu::moe::route::route;
pub use crate::cpu::norm::layer_norm::layer_norm;
pub use crate::cpu::norm::norm_add::norm_add;
pub use crate::cpu::norm::rms_norm::rms_norm;
#[cfg(feature = "recurrent")]
pub use crate::cpu::recurrent::causal_conv1d::convolve;
#[cfg(feature = "recurrent")]
pub use crate::cpu::recurrent::delta_decode::delta_step;
#[cfg(feature = "recurrent")]
pub use crate::cpu::recurrent::delta_rule::{delta_chunks, delta_rule};
#[cfg(feature = "recurrent")]
pub use crate::cpu::recurrent::gated_rms_norm::gated_rms_norm;
