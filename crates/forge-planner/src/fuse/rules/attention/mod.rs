//! Fusions around attention.

pub(crate) mod attention_output_gate;
pub(crate) mod attention_prologue;
pub(crate) mod qkv;
pub(crate) mod rope_append;
pub(crate) mod trace_qkv;
