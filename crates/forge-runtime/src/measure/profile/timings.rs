//! The measured times of the dispatches of a pass.

use forge_device::device::kernel_cost::DispatchCost;

/// A timed dispatch.
#[derive(Clone, Debug)]
pub struct Step {
    /// The kernel's name.
    pub kernel: &'static str,
    /// The layer, derived from the weights that it reads; `None` before the first layer and after the last.
    pub layer: Option<u32>,
    /// Its minimum memory traffic and operations.
    pub cost: DispatchCost,
    /// Median time in seconds.
    pub seconds: f64,
    /// Start in the last round, in seconds of the device's clock.
    pub begin: f64,
}

/// A profile of one or more passes.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Description for output.
    pub name: String,
    /// Measured rounds.
    pub repetitions: usize,
    /// The dispatches in order.
    pub steps: Vec<Step>,
    /// Median time of all passes as a whole, in seconds.
    pub pass_seconds: f64,
}

impl Profile {
    /// Sum of the isolated dispatch times in seconds.
    pub fn sum(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }
}
