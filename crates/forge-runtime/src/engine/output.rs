//! Inputs and outputs of the engine: rows, and what is requested of them.

use forge_device::sampling::device_sampling::DeviceSampling;

/// The output of [`Engine::run_tokens`](crate::engine::Engine::run_tokens).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// No output; more tokens follow.
    Nothing,
    /// The argmax after the last token, computed on the device.
    Greedy,
    /// A token sampled on the device from the logits after the last token.
    Sampled(DeviceSampling),
    /// The logits after the last token.
    Logits,
    /// The logits after every token.
    AllLogits,
}

/// The output of [`Engine::run_batch`](crate::engine::Engine::run_batch) for each output row.
#[derive(Clone, Copy, Debug)]
pub enum OutputKind<'a> {
    /// The argmax.
    Greedy,
    /// A sampled token, with the sampling parameters of each row.
    Sampled(&'a [DeviceSampling]),
    /// All logits.
    Logits,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// The chosen token of each output row; empty if logits were requested.
    pub next_tokens: Vec<u32>,
    /// The logits of each output row; empty if tokens were requested.
    pub logits: Vec<Vec<f32>>,
}

/// One token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token id.
    pub id: u32,
    /// Its slot.
    pub slot: u32,
    /// Its position in the slot.
    pub position: u32,
}
