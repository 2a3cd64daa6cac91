//! Multi-head latent attention (MLA): latent KV cache, absorbed and expanded forms.

#[cfg(feature = "mla")]
pub(crate) mod attend;
#[cfg(feature = "mla")]
pub(crate) mod cache_append;
#[cfg(feature = "mla")]
pub(crate) mod expanded;
#[cfg(feature = "mla")]
pub(crate) mod per_head_matmul;
