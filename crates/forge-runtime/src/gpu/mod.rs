//! GPU backends.

pub mod chip_bandwidth;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(target_vendor = "apple")]
pub mod metal;
pub mod metal_backend;
