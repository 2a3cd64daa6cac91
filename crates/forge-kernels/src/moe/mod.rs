//! Mixture-of-experts kernels.

pub(crate) mod context;
pub(crate) mod grouped;
pub(crate) mod limits;
pub(crate) mod spec;
