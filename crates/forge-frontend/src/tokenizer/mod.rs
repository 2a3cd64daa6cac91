//! Special tokens, and conversion of tokenizer files.

pub(crate) mod special_tokens;
pub(crate) mod tekken;
