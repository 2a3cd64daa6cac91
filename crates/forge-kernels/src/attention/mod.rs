//! Attention kernels: RoPE, KV append, split-KV decode, tiled prefill.

pub(crate) mod context;
pub(crate) mod direct;
pub(crate) mod grouped;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod rope;
pub(crate) mod spec;
