//! The commands: one file or directory each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod logits;
pub(crate) mod perplexity;
pub(crate) mod profile;
pub(crate) mod record;
#[cfg(feature = "serve")]
pub(crate) mod serve;
#[cfg(feature = "tune")]
pub(crate) mod tune;
pub(crate) mod verify;
