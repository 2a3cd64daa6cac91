//! Rotary position embedding: from either spelling of a configuration to a list of frequencies.
//!
//! Older files have `rope_theta` and `rope_scaling` (or null), newer ones have both in `rope_parameters`. The kind of
//! scaling is `rope_type` or `type`. Arithmetic is in f32 where the model's authors' is.

use crate::config::Section;
use forge_ir::{Pairing, Rotation};

/// What an architecture knows of its rotation before the configuration is read.
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
}

/// No head is wider.
const WIDEST: usize = 1 << 16;

impl Rope {
    /// Reads the rest from the configuration.
    pub(crate) fn read(self, config: &Section<'_>) -> Rotation {
        let scaling = scaling(config);
        let inside = scaling.as_ref();
        let theta = either(config, inside, "rope_theta").unwrap_or(self.theta);
        let share = either(config, inside, "partial_rotary_factor").or(self.partial).unwrap_or(1.0);
        let channels = (self.width as f64 * share) as usize;
        if theta <= 0.0 {
            config.contradiction("rope_theta", format!("a rotation of base {theta} has no frequencies"));
        }
        if self.partial.is_none() && share != 1.0 {
            config.contradiction(
                "partial_rotary_factor",
                "forge knows this architecture only with heads that rotate as a whole".to_owned(),
            );
        }
        if channels % 2 == 1 || channels > self.width.min(WIDEST) {
            config.contradiction(
                "head_dim",
                format!("{channels} of {} channels of a head cannot rotate in pairs", self.width),
            );
        }
        let channels = if config.is_broken() { 0 } else { channels };
        let frequencies = scaled(config, inside, self.context, plain(theta, channels));
        Rotation { frequencies, pairing: self.pairing, magnitude: 1.0 }
    }
}

/// The object that says how frequencies are scaled, under either of its names.
fn scaling<'a>(config: &Section<'a>) -> Option<Section<'a>> {
    let (new, old) = (config.get("rope_parameters"), config.get("rope_scaling"));
    if new.is_some() && old.is_some() && new != old {
        config.contradiction("rope_scaling", "rope_scaling and rope_parameters differ".to_owned());
    }
    let key = if new.is_some() { "rope_parameters" } else { "rope_scaling" };
    config.section(key)
}

/// A number that may stand in the scaling's object or beside it.
fn either(config: &Section<'_>, scaling: Option<&Section<'_>>, key: &str) -> Option<f64> {
    let read = |section: &Section<'_>| section.get(key).map(|_| section.number(key));
    let (outside, inside) = (read(config), scaling.and_then(read));
    if let (Some(outside), Some(inside)) = (outside, inside)
        && outside != inside
    {
        config.contradiction(key, format!("{key} is {outside} and, where positions are scaled, {inside}"));
    }
    inside.or(outside)
}

/// theta^(-2k / channels)
fn plain(theta: f64, channels: usize) -> Vec<f32> {
    (0..channels / 2)
        .map(|pair| {
            let exponent = (2 * pair) as f32 / channels as f32;
            1.0 / theta.powf(f64::from(exponent)) as f32
        })
        .collect()
}

fn scaled(config: &Section<'_>, scaling: Option<&Section<'_>>, context: usize, plain: Vec<f32>) -> Vec<f32> {
    let Some(scaling) = scaling else { return plain };
    let (new, old) = (scaling.word("rope_type"), scaling.word("type"));
    if new.is_some() && old.is_some() && new != old {
        scaling.contradiction("type", "rope_type and type differ".to_owned());
    }
    match new.or(old).unwrap_or("default") {
        "default" => plain,
        "linear" => {
            let factor = positive(scaling, "factor");
            plain.iter().map(|frequency| frequency / factor).collect()
        }
        "llama3" => llama3(config, scaling, context, &plain),
        other => {
            let key = if new.is_some() { "rope_type" } else { "type" };
            let why = format!("forge does not know how {other} scales positions");
            scaling.refuse(key, &why, &["it knows default, linear and llama3".to_owned()]);
            scaling.ask_all();
            plain
        }
    }
}

fn positive(section: &Section<'_>, key: &str) -> f32 {
    let number = section.number(key) as f32;
    if number <= 0.0 {
        section.contradiction(key, format!("{key} is {number}, and has to be positive"));
        return 1.0;
    }
    number
}

/// Long waves are stretched by `factor`, short ones kept, those between interpolated.
fn llama3(config: &Section<'_>, scaling: &Section<'_>, context: usize, plain: &[f32]) -> Vec<f32> {
    let factor = positive(scaling, "factor");
    let low = positive(scaling, "low_freq_factor");
    let high = positive(scaling, "high_freq_factor");
    let original = either(config, Some(scaling), "original_max_position_embeddings");
    let original = original.unwrap_or(context as f64) as f32;
    if high <= low {
        let message = format!("high_freq_factor {high} is not above low_freq_factor {low}");
        scaling.contradiction("high_freq_factor", message);
    }
    plain
        .iter()
        .map(|&frequency| {
            let wave = (2.0 * std::f64::consts::PI) as f32 / frequency;
            if wave < original / high {
                frequency
            } else if wave > original / low {
                frequency / factor
            } else {
                let smooth = (original / wave - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        })
        .collect()
}
