//! One sequence being generated, and one conversation.

pub mod generation;
pub mod session;
