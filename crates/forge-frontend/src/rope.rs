//! Rotary position embedding: from either spelling of a configuration to lists of frequencies.
//!
//! Older files have `rope_theta` and `rope_scaling` (or null), newer ones have both in `rope_parameters`. The kind of
//! scaling is `rope_type` or `type`; what each kind does is in `scaling`. Arithmetic is in f32 where the model's authors'
//! is.

use crate::config::Section;
use crate::rope_scaling;
use crate::rope_scaling::{Kinds, Plain, Scaled, scaled};
use forge_ir::{Pairing, Rotation};

/// What an architecture knows of its rotation before the configuration is read.
#[derive(Clone, Copy)]
pub(crate) struct Rope {
    /// Channels of a head.
    pub(crate) width: usize,
    /// Positions the model was made for.
    pub(crate) context: usize,
    /// The base of the frequencies when none is given.
    pub(crate) theta: f64,
    /// The share of a head's channels that rotates when none is given; none where all have to.
    pub(crate) partial: Option<f64>,
    /// Which channels make a pair.
    pub(crate) pairing: Pairing,
    /// What kinds of scaled positions there are.
    pub(crate) scaling: Kinds,
}

/// No head is wider.
const WIDEST: usize = 1 << 16;

impl Rope {
    /// Reads the rest from the configuration.
    pub(crate) fn read(self, config: &Section<'_>) -> Rotation {
        let scaling = object(config);
        let theta = either(config, scaling.as_ref(), "rope_theta").unwrap_or(self.theta);
        self.turned(config, scaling.as_ref(), theta)
    }

    /// The rotation of a base, scaled as an object says. Keys beside the object are the configuration's.
    pub(crate) fn turned(self, config: &Section<'_>, scaling: Option<&Section<'_>>, theta: f64) -> Rotation {
        let share = either(config, scaling, "partial_rotary_factor").or(self.partial).unwrap_or(1.0);
        let is_proportional =
            scaling.is_some_and(|scaling| rope_scaling::kind(scaling) == rope_scaling::PROPORTIONAL);
        let channels = if is_proportional { self.width } else { (self.width as f64 * share) as usize };
        if theta <= 0.0 {
            config.contradiction("rope_theta", format!("a rotation of base {theta} has no frequencies"));
        }
        if is_proportional && !(0.0..=1.0).contains(&share) {
            let message = format!("{share} of a head's pairs cannot rotate");
            config.contradiction("partial_rotary_factor", message);
        }
        if self.partial.is_none() && share != 1.0 && !is_proportional {
            config.contradiction(
                "partial_rotary_factor",
                "forge knows this architecture only with heads that rotate as a whole".to_owned(),
            );
        }
        let channels = self.in_pairs(config, channels);
        let plain = Plain { theta, channels, share, context: self.context, kinds: self.scaling };
        let Scaled { frequencies, magnitude, long } = scaled(config, scaling, &plain);
        let pairing = if config.conventions().neighbours_turn { Pairing::Interleaved } else { self.pairing };
        Rotation { frequencies, pairing, magnitude, long }
    }

    /// The rotation of a base of which a share of the pairs turns, as if all did.
    pub(crate) fn in_proportion(self, config: &Section<'_>, share: f64, theta: f64) -> Rotation {
        let channels = self.in_pairs(config, self.width);
        let plain = Plain { theta, channels, share, context: self.context, kinds: self.scaling };
        let frequencies = plain.in_proportion(1.0);
        Rotation { frequencies, pairing: self.pairing, magnitude: 1.0, long: None }
    }

    /// So many channels of a head, if they can be turned; none once the configuration has a fault.
    fn in_pairs(self, config: &Section<'_>, channels: usize) -> usize {
        if channels % 2 == 1 || channels == 0 || channels > self.width.min(WIDEST) {
            config.contradiction(
                "head_dim",
                format!("{channels} of {} channels of a head cannot rotate in pairs", self.width),
            );
        }
        if config.is_broken() { 0 } else { channels }
    }
}

/// The object that says how frequencies are scaled, under either of its names.
pub(crate) fn object<'a>(config: &Section<'a>) -> Option<Section<'a>> {
    let (new, old) = (config.get("rope_parameters"), config.get("rope_scaling"));
    if new.is_some() && old.is_some() && new != old {
        config.contradiction("rope_scaling", "rope_scaling and rope_parameters differ".to_owned());
    }
    let key = if new.is_some() { "rope_parameters" } else { "rope_scaling" };
    config.section(key)
}

/// A number that may stand in the scaling's object or beside it.
pub(crate) fn either(config: &Section<'_>, scaling: Option<&Section<'_>>, key: &str) -> Option<f64> {
    let read = |section: &Section<'_>| section.get(key).map(|_| section.number(key));
    let (outside, inside) = (read(config), scaling.and_then(read));
    if let (Some(outside), Some(inside)) = (outside, inside)
        && outside != inside
    {
        config.contradiction(key, format!("{key} is {outside} and, where positions are scaled, {inside}"));
    }
    inside.or(outside)
}
