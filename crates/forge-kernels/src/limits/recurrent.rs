//! What convolutions and delta rules cannot be.

use super::{Limits, WIDEST_HEAD};
use crate::context::LANES;
use crate::error::KernelError;
use crate::spec::{Convolve, DeltaRule, DeltaStep};

/// Rows that a convolution's result is made of.
const MOST_TAPS: usize = 16;

impl Limits<'_> {
    pub(super) fn convolve(&self, convolve: &Convolve) -> Result<(), KernelError> {
        self.positive("the width", convolve.width)?;
        self.holds("a row of x", convolve.pitch, convolve.pitch >= convolve.width, || {
            format!("at least as wide as the channels, which are {}", convolve.width)
        })?;
        self.taps(convolve.taps)
    }

    pub(super) fn delta_rule(&self, rule: &DeltaRule) -> Result<(), KernelError> {
        self.positive("the number of key heads", rule.key_heads)?;
        self.positive("the width of a key", rule.keys)?;
        self.positive("the width of a value", rule.values)?;
        self.holds(
            "the number of value heads",
            rule.heads,
            rule.heads.is_multiple_of(rule.key_heads),
            || format!("a multiple of the key heads, which are {}", rule.key_heads),
        )?;
        self.holds("the width of a key", rule.keys, rule.keys <= WIDEST_HEAD, || {
            format!("at most {WIDEST_HEAD}, which {LANES} lanes hold in registers")
        })?;
        self.holds("the width of a value", rule.values, rule.values * LANES <= 1024, || {
            format!("at most {}: each channel takes {LANES} threads of a threadgroup", 1024 / LANES)
        })?;
        self.finite("the scale", rule.scale)?;
        self.finite("epsilon", rule.epsilon)?;
        self.finite("epsilon of the heads' norm", rule.gated.unwrap_or(0.0))
    }

    pub(super) fn delta_step(&self, step: &DeltaStep) -> Result<(), KernelError> {
        self.delta_rule(&step.rule)?;
        self.finite("epsilon of the heads' norm", step.rule.gated.unwrap_or(f32::NAN))?;
        self.taps(step.taps)
    }

    fn taps(&self, taps: usize) -> Result<(), KernelError> {
        self.holds("the number of taps", taps, (2..=MOST_TAPS).contains(&taps), || {
            format!("2 to {MOST_TAPS}, which a thread holds in registers")
        })
    }
}
