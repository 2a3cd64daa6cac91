//! Splits a pass into command buffers of limited duration.
//!
//! macOS ends a command buffer that takes several seconds, and a long one delays the display. A pass of many
//! rows of a large model takes that long on a small chip. The encoder therefore adds up the predicted time of
//! its dispatches on the slowest chip, and commits at the first barrier after the limit.

use crate::device::kernel_cost::DispatchCost;
use crate::gpu::metal::pipelines::validation_layer;
use std::time::Duration;

/// Bandwidth of the slowest chip in bytes per second: three quarters of the M1's 68 GB/s.
const BANDWIDTH: f64 = 51e9;

/// Rate of the slowest chip in operations per second: three quarters of the matrix rate of an M1 with 7 GPU
/// cores.
const RATE: f64 = 1.37e12;

/// Limit of a command buffer's predicted time. The stretch up to the next barrier comes on top, at most about
/// as much again.
const LIMIT: Duration = Duration::from_millis(500);

/// Factor by which kernels are assumed to be slower under Metal's shader validation.
const VALIDATION: u32 = 50;

/// The variable that replaces the limit, in milliseconds.
const VARIABLE: &str = "FORGE_COMMAND_BUFFER_MS";

/// The predicted time of the open command buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandSplit {
    limit: f64,
    seconds: f64,
}

impl CommandSplit {
    /// The limit of this process.
    pub(crate) fn new() -> CommandSplit {
        let given = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        let limit = match (given, validation_layer()) {
            (Some(milliseconds), _) => Duration::from_millis(milliseconds),
            (None, Some(_)) => LIMIT / VALIDATION,
            (None, None) => LIMIT,
        };
        CommandSplit::with_limit(limit)
    }

    fn with_limit(limit: Duration) -> CommandSplit {
        CommandSplit { limit: limit.as_secs_f64(), seconds: 0.0 }
    }

    /// Adds a dispatch.
    pub(crate) fn add(&mut self, cost: DispatchCost) {
        self.seconds += (cost.bytes() as f64 / BANDWIDTH).max(cost.operations as f64 / RATE);
    }

    /// Whether the command buffer is to be committed at a barrier; if so, the next one begins.
    pub(crate) fn is_full(&mut self) -> bool {
        let is_full = self.seconds >= self.limit;
        if is_full {
            self.seconds = 0.0;
        }
        is_full
    }
}
