//! Tool calls, and grammars that constrain what is generated.

pub(crate) mod choice;
pub(crate) mod grammar;
pub(crate) mod grammar_limits;
pub(crate) mod grammar_threads;
pub(crate) mod json_stream;
pub(crate) mod token_bytes;
pub(crate) mod tool_call_format;
pub(crate) mod tool_call_parser;
