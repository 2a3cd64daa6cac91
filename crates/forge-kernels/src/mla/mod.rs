//! Multi-head latent attention kernels.

pub(crate) mod context;
pub(crate) mod limits;
pub(crate) mod spec;
