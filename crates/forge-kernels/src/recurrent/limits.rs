//! Limits of convolutions and delta rules.

use crate::context::LANES;
use crate::context::WIDEST_HEAD;
use crate::error::KernelError;
use crate::limits::Limits;
use crate::spec::DeltaChunksKernel;
use forge_msl::KernelDecl;
use forge_ops::{CausalConv, DeltaRule, DeltaStep, GatedRmsNorm};

/// Maximum number of taps.
const MOST_TAPS: usize = 16;

/// Maximum channels of a value, as in the delta rule.
const WIDEST_VALUE: usize = 1024 / LANES;

impl Limits<'_> {
    pub(crate) fn convolve(&self, convolve: &CausalConv) -> Result<(), KernelError> {
        self.positive("the width", convolve.width)?;
        self.holds("a row of x", convolve.pitch, convolve.pitch >= convolve.width, || {
            format!("at least the number of channels, {}", convolve.width)
        })?;
        self.taps(convolve.taps)
    }

    pub(crate) fn delta_rule(&self, rule: &DeltaRule) -> Result<(), KernelError> {
        self.positive("the number of key heads", rule.key_heads)?;
        self.positive("the width of a key", rule.keys)?;
        self.positive("the width of a value", rule.values)?;
        self.holds(
            "the number of value heads",
            rule.heads,
            rule.heads.is_multiple_of(rule.key_heads),
            || format!("a multiple of the number of key heads, {}", rule.key_heads),
        )?;
        self.holds("the width of a key", rule.keys, rule.keys <= WIDEST_HEAD, || {
            format!("at most {WIDEST_HEAD}, limited by the registers of {LANES} lanes")
        })?;
        self.holds("the width of a value", rule.values, rule.values <= WIDEST_VALUE, || {
            format!("at most {WIDEST_VALUE}: each channel uses {LANES} threads of a threadgroup")
        })?;
        self.finite("the scale", rule.scale)?;
        self.finite("epsilon", rule.epsilon)?;
        self.finite("epsilon of the heads' norm", rule.gated.unwrap_or(0.0))
    }

    pub(crate) fn delta_chunks(&self, chunks: &DeltaChunksKernel) -> Result<(), KernelError> {
        self.delta_rule(&chunks.op.rule)?;
        self.holds("rows at once", chunks.layout.rows, matches!(chunks.layout.rows, 8 | 16 | 32), || {
            "8, 16 or 32".to_owned()
        })?;
        let most = KernelDecl::MOST_THREADGROUP_BYTES as usize;
        self.holds("the bytes of queries and keys", chunks.bytes(), chunks.bytes() <= most, || {
            format!("at most {most}: use fewer rows")
        })
    }

    pub(crate) fn gated_rms_norm(&self, norm: &GatedRmsNorm) -> Result<(), KernelError> {
        self.positive("the number of value heads", norm.heads)?;
        self.positive("the width of a value", norm.values)?;
        self.holds("the width of a value", norm.values, norm.values <= WIDEST_VALUE, || {
            format!("at most {WIDEST_VALUE}, limited by registers")
        })?;
        let taken = norm.first + norm.heads * norm.values;
        self.holds("a row of inputs", norm.pitch, norm.pitch >= taken, || {
            format!("at least {taken}, the end of the gates")
        })?;
        self.finite("epsilon of the heads' norm", norm.epsilon)
    }

    pub(crate) fn delta_step(&self, step: &DeltaStep) -> Result<(), KernelError> {
        self.delta_rule(&step.rule)?;
        self.finite("epsilon of the heads' norm", step.rule.gated.unwrap_or(f32::NAN))?;
        self.taps(step.taps)
    }

    fn taps(&self, taps: usize) -> Result<(), KernelError> {
        self.holds("the number of taps", taps, (2..=MOST_TAPS).contains(&taps), || {
            format!("2 to {MOST_TAPS}, limited by registers")
        })
    }
}
