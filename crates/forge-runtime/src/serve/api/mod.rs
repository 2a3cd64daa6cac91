//! The OpenAI API: requests and responses.

pub(crate) mod chat;
pub(crate) mod completion_body;
pub(crate) mod completions;
pub(crate) mod control_tokens;
pub(crate) mod logprobs;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod responses;
pub(crate) mod responses_body;
pub(crate) mod state;
