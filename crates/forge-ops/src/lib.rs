//! Operations as plain data: what a kernel computes, without how.
//!
//! Each operation is declared once, here. The planner selects operations, the kernel catalog adds a layout
//! and renders Metal source, and the CPU functions take the same shapes. Generated crates contain shapes as
//! constants.
//!
//! The documentation of a shape lists the scalars and buffers of its kernels, in the order of their arguments.
//! The planes of a weight are `<weight>_values`, or `<weight>_codes` and `<weight>_scales`. Values and codes
//! are read as packets of 16 bytes, scales as `half`. For GPUs it also states the grid: threadgroups along x,
//! y and z.

mod activation;
mod affine;
mod attention;
mod elementwise;
mod format;
mod head;
mod matmul;
mod mla;
mod moe;
mod norm;
mod op;
mod plane;
mod recurrent;
mod rope;

pub use crate::activation::{Activation, Gating, UnaryOp};
pub use crate::affine::{Affine, Bits, Group, Scales};
pub use crate::attention::{
    Append, Attend, AttendCombine, Gates, HeadNorm, KvSource, Prologue, Rope, RopeAppend,
};
pub use crate::elementwise::{Elementwise, Embed, Function, SliceColumns};
pub use crate::format::{BLOCK, Format, IQ4_ENTRIES, SUPERBLOCK};
pub use crate::head::{Argmax, ArgmaxCombine, Sample};
pub use crate::matmul::{DeferredNorm, Epilogue, InlineNorm, Linear, Quantize};
pub use crate::mla::{
    MlaAppend, MlaAttention, MlaAttentionExpanded, MlaColumns, MlaLoadLatents, MlaPrepare, PerHeadLinear,
};
pub use crate::moe::{
    ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Groups, Route, Scores,
};
pub use crate::norm::{LayerNorm, NormAdd, RmsNorm, Squares};
pub use crate::op::{KernelOp, OpFamily};
pub use crate::plane::{Plane, PlaneElement};
pub use crate::recurrent::{CausalConv, DeltaChunks, DeltaRule, DeltaStep, GatedRmsNorm};
pub use crate::rope::{LongContext, Pairing, RopeParameters};
