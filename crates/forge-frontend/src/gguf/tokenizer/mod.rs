//! Translates the vocabulary: `files` writes tokenizer.json, with `vocabulary`, `merges` and `pretokenizer`, and
//! `special_tokens` the other files.

pub(crate) mod files;
pub(crate) mod merges;
pub(crate) mod pretokenizer;
pub(crate) mod special_tokens;
pub(crate) mod vocabulary;
