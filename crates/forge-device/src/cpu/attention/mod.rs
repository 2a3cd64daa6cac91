//! Grouped-query attention: RoPE, KV cache and online softmax.

#[cfg(feature = "attention")]
pub(crate) mod attend;
#[cfg(feature = "attention")]
pub(crate) mod attention_tile;
#[cfg(feature = "attention")]
pub(crate) mod kv_append;
#[cfg(feature = "attention")]
pub(crate) mod kv_format;
#[cfg(feature = "attention")]
pub(crate) mod kv_tile;
#[cfg(feature = "attention")]
pub(crate) mod online_softmax;
#[cfg(feature = "attention")]
pub(crate) mod rope;
#[cfg(feature = "attention")]
pub(crate) mod rope_append;
pub(crate) mod rope_tables;
