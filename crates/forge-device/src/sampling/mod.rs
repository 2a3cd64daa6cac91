//! Sampling: choosing the next token, on the host and on the device.

pub mod argmax;
pub mod device_sampling;
pub mod sampler;
