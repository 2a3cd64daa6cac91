//! How positions are scaled: every kind ends as a list of frequencies, a magnitude, and what takes the frequencies' place
//! in a long context. Nothing after the frontend knows the kinds' names.

use crate::config::Section;
use crate::rope::either;
use forge_ir::LongContext;

/// What the names of kinds mean to an architecture.
#[derive(Clone, Copy)]
pub(crate) enum Kinds {
    /// What they mean to most.
    Usual,
    /// longrope alone, which has older names too; the original context is this where the configuration has none, and
    /// what stands beside the scaling's object goes before what stands in it.
    LongRope { original: usize },
    /// What they mean to most; but dynamic with an `alpha` stretches the base by that, whatever the context.
    Alpha,
    /// What they mean to most; but where nothing is said of them positions are scaled as yarn does, by this factor from this
    /// context, without whole ends of its ramp.
    Yarn { factor: f64, original: usize },
}

impl Kinds {
    /// What they are called, for people.
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

/// What comes before their names in a message.
pub(crate) const KNOWS: &str = "it knows ";

/// The kind that turns a share of a head's pairs and pairs channels as if all turned; the others turn a share of its
/// channels as if the head had no more.
pub(crate) const PROPORTIONAL: &str = "proportional";

/// A rotation before it is scaled.
pub(crate) struct Plain {
    /// The base of the frequencies.
    pub(crate) theta: f64,
    /// Channels of a head that rotate; all of them where positions are proportional.
    pub(crate) channels: usize,
    /// The share of a head that the configuration lets rotate.
    pub(crate) share: f64,
    /// Positions the model was made for.
    pub(crate) context: usize,
    /// What kinds there are.
    pub(crate) kinds: Kinds,
}

/// A rotation's numbers.
pub(crate) struct Scaled {
    /// Radians a position for each pair.
    pub(crate) frequencies: Vec<f32>,
    /// What sine and cosine are multiplied by.
    pub(crate) magnitude: f32,
    /// What takes the frequencies' place in a long context.
    pub(crate) long: Option<LongContext>,
}

impl Plain {
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

    /// The first pairs, as many as their share of all, turn as they would if all did; the rest stay where they are.
    pub(crate) fn in_proportion(&self, factor: f32) -> Vec<f32> {
        let turning = (self.share * self.channels as f64 / 2.0) as usize;
        let of_pair = |(pair, frequency)| if pair < turning { frequency / factor } else { 0.0 };
        self.frequencies().into_iter().enumerate().map(of_pair).collect()
    }
}

impl Scaled {
    fn of(frequencies: Vec<f32>) -> Scaled {
        Scaled { frequencies, magnitude: 1.0, long: None }
    }
}

/// The kind that an object of the configuration names. `type` is the older name, which counts where there is no `rope_type`.
pub(crate) fn kind<'a>(scaling: &Section<'a>) -> &'a str {
    match scaling.word("rope_type") {
        Some(kind) => {
            scaling.pass_over("type");
            kind
        }
        None => scaling.word("type").unwrap_or("default"),
    }
}

/// Scales a rotation as an object of the configuration says; none leaves it as it is.
pub(crate) fn scaled(config: &Section<'_>, scaling: Option<&Section<'_>>, plain: &Plain) -> Scaled {
    let Some(scaling) = scaling else {
        return match plain.kinds {
            Kinds::Yarn { factor, original } => Yarn::unsaid(factor, original).scaled(plain),
            _ => Scaled::of(plain.frequencies()),
        };
    };
    match (plain.kinds, kind(scaling)) {
        (_, "default") => Scaled::of(plain.frequencies()),
        (Kinds::LongRope { .. }, "longrope" | "su" | "yarn") => longrope(config, scaling, plain),
        (Kinds::LongRope { .. }, kind) => unknown(scaling, kind, plain),
        (Kinds::Alpha, "dynamic") if scaling.get("alpha").is_some() => alpha(scaling, plain),
        (_, "linear") => {
            let factor = positive(scaling, "factor");
            Scaled::of(plain.frequencies().iter().map(|frequency| frequency / factor).collect())
        }
        (Kinds::Usual | Kinds::Yarn { .. }, "dynamic") => dynamic(scaling, plain),
        (_, "llama3") => Scaled::of(llama3(config, scaling, plain)),
        (_, "yarn") => Yarn::read(config, scaling, plain).scaled(plain),
        (_, "longrope") => longrope(config, scaling, plain),
        (_, PROPORTIONAL) => Scaled::of(plain.in_proportion(scaling.positive_or("factor", 1.0) as f32)),
        (_, kind) => unknown(scaling, kind, plain),
    }
}

fn unknown(scaling: &Section<'_>, kind: &str, plain: &Plain) -> Scaled {
    let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
    let why = format!("forge does not know how {kind} scales positions");
    scaling.refuse(key, &why, &[format!("{KNOWS}{}", plain.kinds.names())]);
    scaling.ask_all();
    Scaled::of(plain.frequencies())
}

fn positive(section: &Section<'_>, key: &str) -> f32 {
    let number = section.number(key) as f32;
    if number <= 0.0 {
        section.contradiction(key, format!("{key} is {number}, and has to be positive"));
        return 1.0;
    }
    number
}

/// The positions that a model had been made for before they were scaled.
fn original(config: &Section<'_>, scaling: &Section<'_>, plain: &Plain) -> usize {
    let key = "original_max_position_embeddings";
    let none = match plain.kinds {
        Kinds::LongRope { original } if scaling.get(key).is_some() && config.get(key).is_none() => {
            if scaling.count(key) != original {
                let message = format!("{key} counts beside the object alone, and is {original} there");
                scaling.contradiction(key, message);
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

/// The base is stretched: theta · alpha^(d / (d - 2)).
fn alpha(scaling: &Section<'_>, plain: &Plain) -> Scaled {
    let alpha = f64::from(positive(scaling, "alpha"));
    // Written beside it, and read by nobody.
    for key in ["factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"] {
        scaling.get(key);
    }
    if plain.channels == 2 {
        scaling
            .contradiction("alpha", "a rotation of one pair of channels has no base to stretch".to_owned());
    }
    let channels = plain.channels as f64;
    let theta = plain.theta * alpha.powf(channels / (channels - 2.0));
    Scaled::of(plain.waves(theta).into_iter().map(|wave| 1.0 / wave).collect())
}

/// The most that a context is stretched by.
const FARTHEST: f32 = 1e6;

/// The base is stretched in contexts of more positions than the model was made for, the more of them the more.
fn dynamic(scaling: &Section<'_>, plain: &Plain) -> Scaled {
    let factor = positive(scaling, "factor");
    if factor < 1.0 {
        let message = format!("factor is {factor}, and a longer context stretches by 1 or more");
        scaling.contradiction("factor", message);
    }
    // Beyond that, nobody's context is as long, and the base would soon be no number.
    if factor > FARTHEST {
        scaling
            .contradiction("factor", format!("factor is {factor:e}, and at most {FARTHEST:e} is believed"));
    }
    if plain.channels == 2 {
        let message = "a rotation of one pair of channels has no base to stretch".to_owned();
        scaling.contradiction("factor", message);
    }
    let long = Some(LongContext::Stretched { beyond: plain.context, factor });
    Scaled { long, ..Scaled::of(plain.frequencies()) }
}

/// Long waves are stretched by `factor`, short ones kept, those between interpolated.
fn llama3(config: &Section<'_>, scaling: &Section<'_>, plain: &Plain) -> Vec<f32> {
    let factor = positive(scaling, "factor");
    let low = positive(scaling, "low_freq_factor");
    let high = positive(scaling, "high_freq_factor");
    let original = original(config, scaling, plain) as f32;
    if high <= low {
        let message = format!("high_freq_factor {high} is not above low_freq_factor {low}");
        scaling.contradiction("high_freq_factor", message);
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

/// Pairs that turn often in the original context are kept, those that turn rarely stretched by `factor`, a ramp between
/// them; and all are magnified, as the scores of a longer context spread.
struct Yarn {
    original: f64,
    factor: f64,
    /// Where the ramp ends and begins, as turns in the original context.
    turns: [f64; 2],
    /// Whether its ends are whole pairs.
    truncate: bool,
    magnitude: f64,
}

/// Where the ramp ends and begins unless a configuration says.
const TURNS: [f64; 2] = [32.0, 1.0];

impl Yarn {
    fn read(config: &Section<'_>, scaling: &Section<'_>, plain: &Plain) -> Yarn {
        let original = original(config, scaling, plain) as f64;
        let unsaid = plain.context as f64 / original;
        let factor = scaling.get("factor").map_or(unsaid, |_| scaling.number("factor"));
        if factor <= 0.0 {
            scaling.contradiction("factor", format!("factor is {factor}, and has to be positive"));
        }
        let turns = [("beta_fast", TURNS[0]), ("beta_slow", TURNS[1])].map(|(key, usual)| {
            // Nought counts as absent.
            let turns = scaling.number_or(key, usual);
            if turns == 0.0 { usual } else { turns }
        });
        let truncate = scaling.flag_or("truncate", true);
        let yarn = Yarn { original, factor, turns, truncate, magnitude: yarn_magnitude(scaling, factor) };
        if !yarn.ends(plain).iter().all(|end| end.is_finite()) {
            scaling.contradiction("beta_fast", "beta_fast and beta_slow are no numbers of turns".to_owned());
        }
        yarn
    }

    /// What an architecture takes it to be.
    fn unsaid(factor: f64, original: usize) -> Yarn {
        let magnitude = spread(factor, 1.0);
        Yarn { original: original as f64, factor, turns: TURNS, truncate: false, magnitude }
    }

    /// The pairs between which the ramp is.
    fn ends(&self, plain: &Plain) -> [f64; 2] {
        // The pair that turns so often in the original context.
        let pair = |turns: f64| {
            plain.channels as f64 * (self.original / (turns * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * plain.theta.ln())
        };
        let (low, high) = (pair(self.turns[0]), pair(self.turns[1]));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(plain.channels as f64 - 1.0));
        [low, if low == high { high + 0.001 } else { high }]
    }

    fn scaled(&self, plain: &Plain) -> Scaled {
        let [low, high] = self.ends(plain);
        let ramp = |pair: usize| ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let stretched = |(pair, wave): (usize, f32)| {
            let kept = 1.0 - ramp(pair);
            1.0 / (self.factor as f32 * wave) * (1.0 - kept) + 1.0 / wave * kept
        };
        Scaled {
            frequencies: plain.waves(plain.theta).into_iter().enumerate().map(stretched).collect(),
            magnitude: self.magnitude as f32,
            long: None,
        }
    }
}

/// How much scores spread in a context that is so many times longer.
pub(crate) fn spread(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

/// What `attention_factor` says, or what it is without.
fn yarn_magnitude(scaling: &Section<'_>, factor: f64) -> f64 {
    let spread = |weight: f64| spread(factor, weight);
    let [weight, all] = ["mscale", "mscale_all_dim"].map(|key| scaling.number_or(key, 0.0));
    let usual = if weight != 0.0 && all != 0.0 { spread(weight) / spread(all) } else { spread(1.0) };
    scaling.number_or("attention_factor", usual)
}

/// Each pair is stretched by a factor of its own: by a short one up to the original context, by a long one beyond.
fn longrope(config: &Section<'_>, scaling: &Section<'_>, plain: &Plain) -> Scaled {
    let original = original(config, scaling, plain);
    let factors = |key: &str| -> Vec<f32> {
        let factors = scaling.numbers(key);
        if factors.len() != plain.channels / 2 {
            let message =
                format!("{key} has {} factors, and {} pairs rotate", factors.len(), plain.channels / 2);
            scaling.contradiction(key, message);
        }
        let waves = plain.waves(plain.theta);
        waves.iter().zip(factors).map(|(wave, factor)| 1.0 / (factor as f32 * wave)).collect()
    };
    let (frequencies, long) = (factors("short_factor"), factors("long_factor"));
    if frequencies.iter().chain(&long).any(|frequency| !frequency.is_finite()) {
        scaling.contradiction("short_factor", "factors of positions cannot be 0".to_owned());
    }
    let ratio = plain.context as f64 / original as f64;
    let factor = scaling.number_or("factor", ratio);
    let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
    let magnitude = scaling.number_or("attention_factor", usual) as f32;
    // A context that cannot be so long has no use for them.
    let long =
        (plain.context > original).then_some(LongContext::Other { beyond: original, frequencies: long });
    Scaled { frequencies, magnitude, long }
}
