//! Inputs of causal convolutions and delta rules.

use super::Content;
use crate::cases::{Launch, SLOTS, Writer};
use forge_kernels::Spec;
use forge_ops::DeltaRule;

impl Writer {
    /// The contents of a buffer of a recurrent kernel.
    pub(super) fn of_recurrence(&mut self, spec: &Spec, name: &str, rows: usize, launch: &Launch) -> Content {
        match (spec, name) {
            (Spec::Convolve(it), "x") => self.floats(rows * it.pitch),
            (Spec::Convolve(it), "taps") => self.floats(it.width * it.taps),
            (Spec::Convolve(it), "conv_state") => self.conv_state(it.taps, it.width, launch),
            (Spec::Convolve(it), _) => Content::Unwritten(rows * it.width * 4),
            (Spec::DeltaRule(it), "query" | "key") => self.floats(rows * it.key_heads * it.keys),
            (Spec::DeltaRule(it), "value") => self.floats(rows * it.heads * it.values),
            (Spec::DeltaRule(it), "dt" | "beta") => self.floats(rows * it.heads),
            (Spec::DeltaRule(it), "a_log" | "dt_bias") => self.floats(it.heads),
            (Spec::DeltaRule(it), "convolved") => self.floats(rows * it.channels()),
            (Spec::DeltaRule(it), "inputs") => self.floats(rows * it.inputs()),
            (Spec::DeltaRule(it), "gain") => self.floats(it.values),
            (Spec::DeltaRule(it), "recurrent_state") => self.recurrent_state(it, launch),
            (Spec::DeltaChunks(it), "query" | "key") => {
                self.floats(rows * it.op.rule.key_heads * it.op.rule.keys)
            }
            (Spec::DeltaChunks(it), "value") => self.floats(rows * it.op.rule.heads * it.op.rule.values),
            (Spec::DeltaChunks(it), "dt" | "beta") => self.floats(rows * it.op.rule.heads),
            (Spec::DeltaChunks(it), "a_log" | "dt_bias") => self.floats(it.op.rule.heads),
            (Spec::DeltaChunks(it), "convolved") => self.floats(rows * it.op.rule.channels()),
            (Spec::DeltaChunks(it), "inputs") => self.floats(rows * it.op.rule.inputs()),
            (Spec::DeltaChunks(it), "recurrent_state") => self.recurrent_state(&it.op.rule, launch),
            (Spec::DeltaChunks(it), _) => Content::Unwritten(rows * it.op.rule.heads * it.op.rule.values * 4),
            (Spec::GatedRmsNorm(it), "inputs") => self.floats(rows * it.pitch),
            (Spec::GatedRmsNorm(it), "gain") => self.floats(it.values),
            (Spec::GatedRmsNorm(it), _) => self.floats(rows * it.heads * it.values),
            (Spec::DeltaStep(it), "inputs") => self.floats(rows * it.rule.inputs()),
            (Spec::DeltaStep(it), "taps") => self.floats(it.taps * it.rule.channels()),
            (Spec::DeltaStep(it), "a_log" | "dt_bias") => self.floats(it.rule.heads),
            (Spec::DeltaStep(it), "gain") => self.floats(it.rule.values),
            (Spec::DeltaStep(it), "conv_state") => self.conv_state(it.taps, it.rule.channels(), launch),
            (Spec::DeltaStep(it), "recurrent_state") => self.recurrent_state(&it.rule, launch),
            (Spec::DeltaStep(it), _) => Content::Unwritten(rows * it.rule.heads * it.rule.values * 4),
            (Spec::DeltaRule(it), _) => Content::Unwritten(rows * it.heads * it.values * 4),
            _ => unreachable!("{name} is of another family"),
        }
    }

    /// The conv state: the previous rows of the slot that continues, and uninitialized for the others.
    fn conv_state(&mut self, taps: usize, width: usize, launch: &Launch) -> Content {
        let first = launch.positions[0] as usize;
        let mut part = |position: usize| {
            let at = (taps + position % taps) * width * 4;
            (at, (0..width).map(|_| self.float().to_bits()).collect())
        };
        let parts = (first.saturating_sub(taps - 1)..first).map(&mut part).collect();
        Content::Parts(SLOTS * taps * width * 4, parts)
    }

    /// The recurrent state of a slot that continues.
    fn recurrent_state(&mut self, rule: &DeltaRule, launch: &Launch) -> Content {
        let numbers = rule.heads * rule.keys * rule.values;
        let known = if launch.positions[0] > 0 { numbers } else { 0 };
        let state = (0..known).map(|_| self.float().to_bits()).collect();
        Content::Parts(SLOTS * numbers * 4, vec![(numbers * 4, state)])
    }
}
