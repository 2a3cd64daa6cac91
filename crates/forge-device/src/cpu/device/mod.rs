//! CPU device: dispatch, threads and memory.

pub(crate) mod cpu_device;
pub(crate) mod kernel_args;
pub(crate) mod peak_bandwidth;
pub(crate) mod peak_flops;
#[cfg(target_os = "linux")]
pub(crate) mod reserved_memory;
pub(crate) mod scratch;
pub(crate) mod thread_pool;
#[cfg_attr(not(target_os = "linux"), path = "no_weight_repack.rs")]
pub(crate) mod weight_repack;
pub(crate) mod weights;
pub(crate) mod work_stealing;
