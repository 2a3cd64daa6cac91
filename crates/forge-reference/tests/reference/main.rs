//! The reference from outside: judged by the models' authors' logits, and by definitions written out.

mod common;
mod golden;
mod mutation;
mod odd;
mod oracle;
