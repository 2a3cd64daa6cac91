//! Constants of a compiled model.

/// Constants of a compiled model.
#[derive(Clone, Copy, Debug)]
pub struct ModelInfo {
    /// The model's name.
    pub name: &'static str,
    /// The architecture in the checkpoint's config.
    pub architecture: &'static str,
    /// Number of parameters.
    pub parameters: u64,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// Hidden size: width of the residual stream.
    pub hidden: u32,
    /// Number of layers.
    pub layers: u32,
    /// The maximum context length in tokens.
    pub context: u32,
    /// Maximum rows in a pass.
    pub prefill_chunk: u32,
    /// Maximum rows with logits in a pass of the batch schedule.
    pub head_rows: u32,
    /// Maximum rows of a decode pass. All of them get logits.
    pub decode_rows: u32,
    /// Maximum rows of a decode pass in which the results of a row do not depend on the number of rows.
    pub independent_rows: u32,
    /// Maximum rows that are decoded, in one or more passes. With more, one pass of the batch schedule is faster.
    pub max_decoded_rows: u32,
    /// The begin-of-text token, if there is one.
    pub bos: Option<u32>,
    /// The end-of-text tokens.
    pub eos: &'static [u32],
    /// Weight formats with their bytes, widest format first.
    pub formats: &'static [(&'static str, u64)],
    /// The KV cache format.
    pub kv_cache_format: &'static str,
    /// Bytes of KV cache per token and slot, in layers that keep every position.
    pub kv_bytes_per_token: u64,
    /// The sliding-window caches, with their bytes per token.
    pub sliding_caches: &'static [SlidingCache],
    /// Bytes of recurrent state per slot, independent of length.
    pub recurrent_state_bytes: u64,
    /// The cost of one decoded token.
    pub decode: Cost,
    /// The cost of a pass of `chunk` rows.
    pub prefill: Cost,
    /// Predicted decode speed.
    pub predicted: PredictedDecode,
    /// Dispatches of a layer beyond five, each with the reason why it is not fused.
    pub extra_dispatches: &'static [(&'static str, &'static str)],
}

/// Decode speed on a GPU, predicted by the compiler.
#[derive(Clone, Copy, Debug)]
pub struct PredictedDecode {
    /// The GPU.
    pub chip: &'static str,
    /// Tokens of context.
    pub context: u32,
    /// Numbers of sequences, with the tokens per second of all of them together.
    pub tokens_per_second: &'static [(u32, f64)],
}

impl ModelInfo {
    /// Maximum rows with logits in a pass of any schedule.
    pub const fn max_logit_rows(&self) -> usize {
        let rows = if self.head_rows > self.decode_rows { self.head_rows } else { self.decode_rows };
        rows as usize
    }

    /// A deterministic token sequence spread over the vocabulary, for measurements.
    pub fn test_tokens(&self, count: u32) -> Vec<u32> {
        (0..count).map(|i| (u64::from(i) * 2_654_435_761 % u64::from(self.vocabulary)) as u32).collect()
    }
}

/// The sliding-window caches of one window size: ring buffers. Position p is stored at `p % positions`. A
/// slot that has held n positions keeps those from `n - positions` on.
#[derive(Clone, Copy, Debug)]
pub struct SlidingCache {
    /// The window: positions that a row sees, its own included.
    pub window: u32,
    /// Capacity: the window, plus the rows that a pass may append before its first row is computed.
    pub positions: u32,
    /// Bytes of all these caches per position and slot.
    pub bytes_per_position: u64,
}

impl SlidingCache {
    /// Capacity for a context length.
    pub const fn capacity(&self, context: u32) -> u32 {
        if context < self.positions { context } else { self.positions }
    }

    /// Whether a slot that has held `most` positions can be rewound to `length`: the positions that the next
    /// row sees, `length - window + 1` to `length - 1`, have not been overwritten.
    pub const fn can_rewind(&self, most: u32, length: u32) -> bool {
        let oldest = most.saturating_sub(self.positions);
        length == 0 || (length + 1).saturating_sub(self.window) >= oldest
    }
}

/// The planned cost of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Number of dispatches, embedding and head included.
    pub dispatches: u32,
    /// Number of barriers.
    pub barriers: u32,
    /// Bytes of weights and state read from memory at least, at position 0.
    pub bytes_read: u64,
    /// Number of additions and multiplications.
    pub operations: u64,
    /// Dispatches of each layer.
    pub dispatches_per_layer: &'static [u32],
    /// Extra dispatches of each layer with split KV.
    pub extra_when_split: &'static [u32],
}
