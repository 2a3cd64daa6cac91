//! The planner's operation list, which fusion rules rewrite.
//!
//! A [`Fused`] list starts with one entry for each node of a body. Attention, MLA and experts start as two:
//! append and attend, or the projections up to `down` and `down` with its sum. It ends with one entry for
//! each dispatch. Values are numbered as in the body; new values take the next free number. Every kind but
//! [`Kind::Unplanned`] has a kernel, so the list is executable before and after each rule.

mod attention;
mod experts;
mod from_body;
mod fused;
mod kind;
mod linear;
mod mla;
mod recurrent;
mod value;

pub(crate) use crate::fuse::list::attention::{Attend, HeadNorm, RopeAppend};
pub(crate) use crate::fuse::list::experts::{CombineInput, ExpertsInner, ExpertsSum, FusedRouting};
pub(crate) use crate::fuse::list::fused::{Fused, Operation};
pub(crate) use crate::fuse::list::kind::{Kind, NormAdd};
pub(crate) use crate::fuse::list::linear::{Epilogue, InlineNorm, Linear};
pub(crate) use crate::fuse::list::mla::{MlaAppend, MlaAttention, MlaPrepare, PerHeadLinear};
pub(crate) use crate::fuse::list::recurrent::{Convolve, DeltaRule, Gated};
pub(crate) use crate::fuse::list::value::{Gain, Value};
pub(crate) use forge_ops::{Function, KvSource, UnaryOp};
