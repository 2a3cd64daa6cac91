//! Mixture of experts: routing, and the experts of few and of many rows.

#[cfg(feature = "moe")]
pub(crate) mod decode;
#[cfg(feature = "moe")]
pub(crate) mod grouped;
#[cfg(feature = "moe")]
pub(crate) mod route;
