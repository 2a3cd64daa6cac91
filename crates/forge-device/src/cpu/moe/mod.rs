//! Mixture of experts: routing, experts of a few rows (decode), and experts grouped for many rows (prefill).

#[cfg(feature = "moe")]
pub(crate) mod decode;
#[cfg(feature = "moe")]
pub(crate) mod grouped;
#[cfg(feature = "moe")]
pub(crate) mod route;
