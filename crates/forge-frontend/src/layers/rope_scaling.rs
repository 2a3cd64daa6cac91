//! RoPE scaling. Every type is reduced to frequencies, a magnitude, and optional frequencies for long
//! contexts, so later stages do not depend on the types.

use crate::config::section::Section;
use crate::layers::rope_keys::either;
use forge_ir::LongContext;

/// Meaning of the scaling types for an architecture.
#[derive(Clone, Copy)]
pub(crate) enum Kinds {
    /// The usual meaning.
    Usual,
    /// Only longrope, which has older names too. `original` is the original context length if the
    /// configuration has none. Keys next to the scaling object take precedence over keys in it.
    LongRope { original: usize },
    /// The usual meaning, but `dynamic` with an `alpha` stretches the base by it, for every context length.
    Alpha,
    /// The usual meaning, but without a scaling object positions are scaled by yarn with this factor and
    /// original context length, with a ramp between fractional pairs.
    Yarn { factor: f64, original: usize },
}

impl Kinds {
    /// Names of the supported types, for messages.
    fn names(self) -> &'static str {
        match self {
            Kinds::Usual | Kinds::Yarn { .. } => {
                "default, linear, dynamic, llama3, yarn, longrope and proportional"
            }
            Kinds::LongRope { .. } => "default and longrope",
            Kinds::Alpha => {
                "default, linear, llama3, yarn, longrope, proportional, and dynamic with an alpha"
            }
        }
    }
}

/// Prefix of the note that lists the supported types.
pub(crate) const KNOWS: &str = "supported: ";

/// The scaling type that rotates the first pairs of a head and pairs channels over the whole head. With other
/// types, partial RoPE pairs channels within the rotated part.
pub(crate) const PROPORTIONAL: &str = "proportional";

/// Parameters of RoPE without scaling.
pub(crate) struct UnscaledRope {
    /// Base of the frequencies.
    pub(crate) theta: f64,
    /// Rotated channels of a head; all of them for proportional scaling.
    pub(crate) channels: usize,
    /// Rotated fraction of a head.
    pub(crate) fraction: f64,
    /// Maximum context length of the model.
    pub(crate) context: usize,
    /// Supported scaling types.
    pub(crate) kinds: Kinds,
}

/// Parameters of RoPE with scaling.
pub(crate) struct ScaledRope {
    /// Angle per position of each pair, in radians.
    pub(crate) frequencies: Vec<f32>,
    /// Multiplies sine and cosine.
    pub(crate) magnitude: f32,
    /// Replacement frequencies for long contexts.
    pub(crate) long: Option<LongContext>,
}

impl UnscaledRope {
    /// theta^(2k / channels)
    fn waves(&self, theta: f64) -> Vec<f32> {
        (0..self.channels / 2)
            .map(|pair| {
                let exponent = (2 * pair) as f32 / self.channels as f32;
                theta.powf(f64::from(exponent)) as f32
            })
            .collect()
    }

    /// theta^(-2k / channels)
    fn frequencies(&self) -> Vec<f32> {
        self.waves(self.theta).into_iter().map(|wave| 1.0 / wave).collect()
    }

    /// Frequencies of proportional RoPE: the first pairs rotate as in full RoPE, the others not
    /// at all.
    pub(crate) fn proportional(&self, factor: f32) -> Vec<f32> {
        let rotated = (self.fraction * self.channels as f64 / 2.0) as usize;
        let of_pair = |(pair, frequency)| if pair < rotated { frequency / factor } else { 0.0 };
        self.frequencies().into_iter().enumerate().map(of_pair).collect()
    }
}

impl ScaledRope {
    fn of(frequencies: Vec<f32>) -> ScaledRope {
        ScaledRope { frequencies, magnitude: 1.0, long: None }
    }
}

/// The scaling type named by a scaling object. `type` is the older name of `rope_type`.
pub(crate) fn kind<'a>(scaling: &Section<'a>) -> &'a str {
    match scaling.word("rope_type") {
        Some(kind) => {
            scaling.mark_inert("type");
            kind
        }
        None => scaling.word("type").unwrap_or("default"),
    }
}

/// Applies a scaling object to RoPE; without an object, nothing is scaled.
pub(crate) fn scaled(
    config: &Section<'_>,
    scaling: Option<&Section<'_>>,
    plain: &UnscaledRope,
) -> ScaledRope {
    let Some(scaling) = scaling else {
        return match plain.kinds {
            Kinds::Yarn { factor, original } => Yarn::with_defaults(factor, original).scaled(plain),
            _ => ScaledRope::of(plain.frequencies()),
        };
    };
    match (plain.kinds, kind(scaling)) {
        (_, "default") => ScaledRope::of(plain.frequencies()),
        (Kinds::LongRope { .. }, "longrope" | "su" | "yarn") => longrope(config, scaling, plain),
        (Kinds::LongRope { .. }, kind) => unknown(scaling, kind, plain),
        (Kinds::Alpha, "dynamic") if scaling.get("alpha").is_some() => alpha(scaling, plain),
        (_, "linear") => {
            let factor = positive(scaling, "factor");
            ScaledRope::of(plain.frequencies().iter().map(|frequency| frequency / factor).collect())
        }
        (Kinds::Usual | Kinds::Yarn { .. }, "dynamic") => dynamic(scaling, plain),
        (_, "llama3") => ScaledRope::of(llama3(config, scaling, plain)),
        (_, "yarn") => Yarn::read(config, scaling, plain).scaled(plain),
        (_, "longrope") => longrope(config, scaling, plain),
        (_, PROPORTIONAL) => ScaledRope::of(plain.proportional(scaling.positive_or("factor", 1.0) as f32)),
        (_, kind) => unknown(scaling, kind, plain),
    }
}

fn unknown(scaling: &Section<'_>, kind: &str, plain: &UnscaledRope) -> ScaledRope {
    let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
    let why = format!("unsupported scaling type {kind}");
    scaling.reject(key, &why, &[format!("{KNOWS}{}", plain.kinds.names())]);
    scaling.read_all();
    ScaledRope::of(plain.frequencies())
}

fn positive(section: &Section<'_>, key: &str) -> f32 {
    let number = section.number(key) as f32;
    if number <= 0.0 {
        section.report_inconsistency(key, format!("{key} is {number}; it must be positive"));
        return 1.0;
    }
    number
}

/// The original context length, before scaling.
fn original(config: &Section<'_>, scaling: &Section<'_>, plain: &UnscaledRope) -> usize {
    let key = "original_max_position_embeddings";
    let none = match plain.kinds {
        Kinds::LongRope { original } if scaling.get(key).is_some() && config.get(key).is_none() => {
            if scaling.count(key) != original {
                let message =
                    format!("{key} in the object differs from {original} next to it, which takes precedence");
                scaling.report_inconsistency(key, message);
            }
            original
        }
        Kinds::LongRope { original } => original,
        Kinds::Usual | Kinds::Alpha | Kinds::Yarn { .. } => plain.context,
    };
    either(config, Some(scaling), key).map_or(none, |_| {
        let section = if scaling.get(key).is_some() { scaling } else { config };
        section.count(key)
    })
}

/// Dynamic NTK scaling with a fixed alpha: the base becomes theta · alpha^(d / (d - 2)).
fn alpha(scaling: &Section<'_>, plain: &UnscaledRope) -> ScaledRope {
    let alpha = f64::from(positive(scaling, "alpha"));
    // Present in such objects but not used by transformers.
    for key in ["factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"] {
        scaling.get(key);
    }
    if plain.channels == 2 {
        scaling
            .report_inconsistency("alpha", "RoPE of a single pair cannot be scaled by its base".to_owned());
    }
    let channels = plain.channels as f64;
    let theta = plain.theta * alpha.powf(channels / (channels - 2.0));
    ScaledRope::of(plain.waves(theta).into_iter().map(|wave| 1.0 / wave).collect())
}

/// Maximum scaling factor.
const MAX_FACTOR: f32 = 1e6;

/// Dynamic NTK scaling: in contexts beyond the original length the base grows with the length.
fn dynamic(scaling: &Section<'_>, plain: &UnscaledRope) -> ScaledRope {
    let factor = positive(scaling, "factor");
    if factor < 1.0 {
        let message = format!("factor is {factor}; it must be 1 or more");
        scaling.report_inconsistency("factor", message);
    }
    // Larger factors make the base overflow and have no use.
    if factor > MAX_FACTOR {
        scaling
            .report_inconsistency("factor", format!("factor is {factor:e}; the maximum is {MAX_FACTOR:e}"));
    }
    if plain.channels == 2 {
        let message = "RoPE of a single pair cannot be scaled by its base".to_owned();
        scaling.report_inconsistency("factor", message);
    }
    let long = Some(LongContext::DynamicNtk { original_context: plain.context, factor });
    ScaledRope { long, ..ScaledRope::of(plain.frequencies()) }
}

/// Llama 3 scaling: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
fn llama3(config: &Section<'_>, scaling: &Section<'_>, plain: &UnscaledRope) -> Vec<f32> {
    let factor = positive(scaling, "factor");
    let low = positive(scaling, "low_freq_factor");
    let high = positive(scaling, "high_freq_factor");
    let original = original(config, scaling, plain) as f32;
    if high <= low {
        let message = format!("high_freq_factor {high} must be above low_freq_factor {low}");
        scaling.report_inconsistency("high_freq_factor", message);
    }
    plain
        .frequencies()
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

/// YaRN: high frequencies are kept, low ones stretched by `factor`, with a ramp between them. Sine and cosine
/// are multiplied by a magnitude.
struct Yarn {
    original: f64,
    factor: f64,
    /// Ends of the ramp, in rotations over the original context (`beta_fast`, `beta_slow`).
    turns: [f64; 2],
    /// Whether the ends of the ramp are rounded to whole pairs.
    truncate: bool,
    magnitude: f64,
}

/// Default ends of the ramp.
const BETA_FAST_SLOW: [f64; 2] = [32.0, 1.0];

impl Yarn {
    fn read(config: &Section<'_>, scaling: &Section<'_>, plain: &UnscaledRope) -> Yarn {
        let original = original(config, scaling, plain) as f64;
        let with_defaults = plain.context as f64 / original;
        let factor = scaling.get("factor").map_or(with_defaults, |_| scaling.number("factor"));
        if factor <= 0.0 {
            scaling.report_inconsistency("factor", format!("factor is {factor}; it must be positive"));
        }
        let turns =
            [("beta_fast", BETA_FAST_SLOW[0]), ("beta_slow", BETA_FAST_SLOW[1])].map(|(key, usual)| {
                // 0 counts as absent, as in transformers.
                let turns = scaling.number_or(key, usual);
                if turns == 0.0 { usual } else { turns }
            });
        let truncate = scaling.flag_or("truncate", true);
        let yarn = Yarn { original, factor, turns, truncate, magnitude: yarn_magnitude(scaling, factor) };
        if !yarn.correction_range(plain).iter().all(|end| end.is_finite()) {
            scaling.report_inconsistency("beta_fast", "beta_fast and beta_slow must be positive".to_owned());
        }
        yarn
    }

    /// YaRN with an architecture's defaults.
    fn with_defaults(factor: f64, original: usize) -> Yarn {
        let magnitude = yarn_mscale(factor, 1.0);
        Yarn { original: original as f64, factor, turns: BETA_FAST_SLOW, truncate: false, magnitude }
    }

    /// The pairs between which the ramp lies.
    fn correction_range(&self, plain: &UnscaledRope) -> [f64; 2] {
        // The pair that rotates `turns` times over the original context.
        let pair = |turns: f64| {
            plain.channels as f64 * (self.original / (turns * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * plain.theta.ln())
        };
        let (low, high) = (pair(self.turns[0]), pair(self.turns[1]));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(plain.channels as f64 - 1.0));
        [low, if low == high { high + 0.001 } else { high }]
    }

    fn scaled(&self, plain: &UnscaledRope) -> ScaledRope {
        let [low, high] = self.correction_range(plain);
        let ramp = |pair: usize| ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let stretched = |(pair, wave): (usize, f32)| {
            let kept = 1.0 - ramp(pair);
            1.0 / (self.factor as f32 * wave) * (1.0 - kept) + 1.0 / wave * kept
        };
        ScaledRope {
            frequencies: plain.waves(plain.theta).into_iter().enumerate().map(stretched).collect(),
            magnitude: self.magnitude as f32,
            long: None,
        }
    }
}

/// YaRN's magnitude (mscale) for a context stretched by `factor`.
pub(crate) fn yarn_mscale(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

/// `attention_factor`, or its default.
fn yarn_magnitude(scaling: &Section<'_>, factor: f64) -> f64 {
    let yarn_mscale = |weight: f64| yarn_mscale(factor, weight);
    let [weight, all] = ["mscale", "mscale_all_dim"].map(|key| scaling.number_or(key, 0.0));
    let usual =
        if weight != 0.0 && all != 0.0 { yarn_mscale(weight) / yarn_mscale(all) } else { yarn_mscale(1.0) };
    scaling.number_or("attention_factor", usual)
}

/// longrope: one factor per pair, from a short list up to the original context and from a long list beyond.
fn longrope(config: &Section<'_>, scaling: &Section<'_>, plain: &UnscaledRope) -> ScaledRope {
    let original = original(config, scaling, plain);
    let factors = |key: &str| -> Vec<f32> {
        let factors = scaling.numbers(key);
        if factors.len() != plain.channels / 2 {
            let message = format!(
                "{key} has {} factors, expected {} (one per rotated pair)",
                factors.len(),
                plain.channels / 2
            );
            scaling.report_inconsistency(key, message);
        }
        let waves = plain.waves(plain.theta);
        waves.iter().zip(factors).map(|(wave, factor)| 1.0 / (factor as f32 * wave)).collect()
    };
    let (frequencies, long) = (factors("short_factor"), factors("long_factor"));
    if frequencies.iter().chain(&long).any(|frequency| !frequency.is_finite()) {
        scaling.report_inconsistency("short_factor", "factors must not be 0".to_owned());
    }
    let ratio = plain.context as f64 / original as f64;
    let factor = scaling.number_or("factor", ratio);
    let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
    let magnitude = scaling.number_or("attention_factor", usual) as f32;
    // Not needed if the model's context never exceeds the original.
    let long = (plain.context > original)
        .then_some(LongContext::LongRope { original_context: original, frequencies: long.into() });
    ScaledRope { frequencies, magnitude, long }
}
