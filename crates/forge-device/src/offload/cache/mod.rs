//! The expert cache, and the disk bandwidth of its reads.

pub(crate) mod disk_bandwidth;
pub(crate) mod expert_cache;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::offload::cache::expert_cache::{BoundPlane, ExpertCache};
