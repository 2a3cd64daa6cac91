//! GPU backends.

pub mod chip_bandwidth;
pub mod command_split;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(target_vendor = "apple")]
pub mod metal;
pub mod metal_backend;
