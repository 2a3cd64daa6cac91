//! Rotary position embedding (RoPE): reads either spelling of the configuration into frequencies.
//!
//! Older configurations have `rope_theta` and `rope_scaling`, newer ones have both in `rope_parameters`. The
//! scaling type is `rope_type` or `type`; `rope_scaling` implements the types. Arithmetic is in f32 wherever
//! the reference's is.

use crate::config::section::Section;
use crate::layers::rope_keys::{either, object};
use crate::layers::rope_scaling;
use crate::layers::rope_scaling::{Kinds, ScaledRope, UnscaledRope, scaled};
use forge_ir::{Pairing, RopeParameters};

/// RoPE parameters that an architecture determines.
#[derive(Clone, Copy)]
pub(crate) struct RopeConfig {
    /// Channels of a head.
    pub(crate) width: usize,
    /// Maximum context length of the model.
    pub(crate) context: usize,
    /// Default base of the frequencies.
    pub(crate) theta: f64,
    /// Default rotated fraction of a head; `None` if whole heads must rotate.
    pub(crate) partial: Option<f64>,
    /// Which channels form a pair.
    pub(crate) pairing: Pairing,
    /// Supported scaling types.
    pub(crate) scaling: Kinds,
}

/// Maximum head dimension.
const WIDEST: usize = 1 << 16;

impl RopeConfig {
    /// Reads the remaining parameters from the configuration.
    pub(crate) fn read(self, config: &Section<'_>) -> RopeParameters {
        let scaling = object(config);
        let theta = either(config, scaling.as_ref(), "rope_theta").unwrap_or(self.theta);
        self.parameters(config, scaling.as_ref(), theta)
    }

    /// RoPE of base `theta`, scaled by an object. `config` has the keys next to the object.
    pub(crate) fn parameters(
        self,
        config: &Section<'_>,
        scaling: Option<&Section<'_>>,
        theta: f64,
    ) -> RopeParameters {
        let fraction = either(config, scaling, "partial_rotary_factor").or(self.partial).unwrap_or(1.0);
        let is_proportional =
            scaling.is_some_and(|scaling| rope_scaling::kind(scaling) == rope_scaling::PROPORTIONAL);
        let channels = if is_proportional { self.width } else { (self.width as f64 * fraction) as usize };
        if theta <= 0.0 {
            config.report_inconsistency("rope_theta", format!("rope_theta is {theta}; it must be positive"));
        }
        if is_proportional && !(0.0..=1.0).contains(&fraction) {
            let message = format!("partial rotary factor {fraction} is out of range");
            config.report_inconsistency("partial_rotary_factor", message);
        }
        if self.partial.is_none() && fraction != 1.0 && !is_proportional {
            config.report_inconsistency(
                "partial_rotary_factor",
                "partial RoPE is unsupported for this architecture".to_owned(),
            );
        }
        let channels = self.in_pairs(config, channels);
        let plain = UnscaledRope { theta, channels, fraction, context: self.context, kinds: self.scaling };
        let ScaledRope { frequencies, magnitude, long } = scaled(config, scaling, &plain);
        let pairing = if config.conventions().interleaved_rope { Pairing::Interleaved } else { self.pairing };
        RopeParameters { frequencies: frequencies.into(), pairing, magnitude, long }
    }

    /// Proportional RoPE of base `theta`: the first `fraction` of the pairs rotates, at the frequencies
    /// of full RoPE.
    pub(crate) fn proportional(self, config: &Section<'_>, fraction: f64, theta: f64) -> RopeParameters {
        let channels = self.in_pairs(config, self.width);
        let plain = UnscaledRope { theta, channels, fraction, context: self.context, kinds: self.scaling };
        let frequencies = plain.proportional(1.0);
        RopeParameters { frequencies: frequencies.into(), pairing: self.pairing, magnitude: 1.0, long: None }
    }

    /// The number of rotated channels, if valid; 0 after an error.
    fn in_pairs(self, config: &Section<'_>, channels: usize) -> usize {
        if channels % 2 == 1 || channels == 0 || channels > self.width.min(WIDEST) {
            config.report_inconsistency(
                "head_dim",
                format!("cannot rotate {channels} of {} channels of a head in pairs", self.width),
            );
        }
        if config.is_incomplete() { 0 } else { channels }
    }
}
