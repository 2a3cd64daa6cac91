//! Text to token ids and back, and chat templates.

pub mod chat_template;
pub mod tokenizer;
