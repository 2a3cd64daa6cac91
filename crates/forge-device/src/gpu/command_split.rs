//! Splits a pass into command buffers of limited duration.
//!
//! macOS ends a command buffer that takes several seconds, and a long one delays the display. A pass of many
//! rows of a large model takes that long on a small chip. The encoder therefore adds up the predicted time of
//! its dispatches on the slowest chip, and commits at the first barrier after the limit.

use crate::device::kernel_cost::DispatchCost;
use crate::gpu::metal_backend::validation_layer;
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
pub struct CommandSplit {
    limit: f64,
    seconds: f64,
}

impl CommandSplit {
    /// An empty command buffer, with the limit of this process.
    #[expect(clippy::new_without_default, reason = "it depends on the environment")]
    pub fn new() -> CommandSplit {
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
    pub fn add(&mut self, cost: DispatchCost) {
        self.seconds += (cost.bytes() as f64 / BANDWIDTH).max(cost.operations as f64 / RATE);
    }

    /// Whether the command buffer is to be committed at a barrier; if so, the next one begins.
    pub fn is_full(&mut self) -> bool {
        let is_full = self.seconds >= self.limit;
        if is_full {
            self.seconds = 0.0;
        }
        is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The predicted times of the command buffers of a pass, whose dispatches with a barrier behind each have
    /// these costs.
    fn command_buffers(limit: Duration, dispatches: &[DispatchCost]) -> Vec<f64> {
        let mut split = CommandSplit::with_limit(limit);
        let (mut times, mut open) = (Vec::new(), CommandSplit::with_limit(Duration::MAX));
        for dispatch in dispatches {
            split.add(*dispatch);
            open.add(*dispatch);
            if split.is_full() {
                times.push(std::mem::take(&mut open.seconds));
            }
        }
        times.push(open.seconds);
        times
    }

    /// Projections of a layer with weights of 4.5 bits: attention, gate and up, down.
    fn prefill(layers: usize, parameters: [u64; 3], rows: u64) -> Vec<DispatchCost> {
        let cost = |parameters: u64| DispatchCost {
            read: parameters * 9 / 16,
            written: 0,
            operations: 2 * parameters * rows,
        };
        (0..layers).flat_map(|_| parameters.map(cost)).collect()
    }

    #[test]
    fn command_buffers_take_at_most_a_second_on_the_slowest_chip() {
        let large = [151_000_000, 470_000_000, 235_000_000];
        let cases = [
            ("8B, 256 rows", prefill(32, [42_000_000, 117_000_000, 59_000_000], 256), 5..=7),
            ("70B, 256 rows", prefill(80, large, 256), 40..=60),
            ("70B, 512 rows", prefill(80, large, 512), 80..=120),
            ("70B, decode", prefill(80, large, 1), 2..=3),
            ("8B, decode", prefill(32, [42_000_000, 117_000_000, 59_000_000], 1), 1..=1),
        ];
        for (name, dispatches, expected) in cases {
            let times = command_buffers(LIMIT, &dispatches);
            assert!(times.iter().all(|seconds| *seconds <= 1.0), "{name}: {times:?}");
            assert!(expected.contains(&times.len()), "{name}: {} command buffers", times.len());
        }
    }
}
