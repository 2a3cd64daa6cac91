//! The engine, multi-step decode, and reference logits.

pub(crate) mod batch;
#[expect(clippy::module_inception, reason = "the file has the name of the type `Engine`")]
pub(crate) mod engine;
pub mod golden;
pub(crate) mod multi_step;
pub(crate) mod output;
pub(crate) mod prefill;

pub use crate::engine::engine::Engine;
pub use crate::engine::multi_step::MultiStepDecoder;
pub use crate::engine::output::{Output, OutputKind, Row, StepOutput};
