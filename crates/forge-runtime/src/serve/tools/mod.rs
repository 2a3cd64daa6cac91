//! Tool calls and grammar-constrained output.

pub(crate) mod choice;
pub(crate) mod grammar;
pub(crate) mod grammar_limits;
pub(crate) mod grammar_threads;
pub(crate) mod json_stream;
pub(crate) mod token_bytes;
pub(crate) mod tool_call_format;
pub(crate) mod tool_call_parser;
