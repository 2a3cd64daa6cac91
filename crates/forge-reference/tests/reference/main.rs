//! Tests of the reference implementation, against the logits of transformers and against written-out definitions.

mod common;
mod golden;
mod mutation;
mod odd;
mod oracle;
