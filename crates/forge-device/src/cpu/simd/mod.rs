//! SIMD vectors of each instruction set, and prefetch settings of CPU microarchitectures.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub mod isa;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod portable;
pub(crate) mod prefetch_policy;
pub(crate) mod streaming_store;
pub(crate) mod vectors;
