//! Tokenizer, detokenizer and chat templates.

pub mod chat_template;
pub mod tokenizer;
