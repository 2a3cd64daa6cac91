//! Rotary position embedding: a fixed list of frequencies, however the configuration spelled them.
//!
//! A few models turn otherwise in long contexts. Pair k of a head turns by the angle `position * frequencies[k]`; what scales the frequencies (linear, llama3,
//! yarn, ...) has been carried out by the frontend, so that nothing after it knows those names.

use serde::Serialize;
use std::borrow::Cow;

/// How channels are rotated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rotation {
    /// Radians a position for each rotated pair. Channels past `2 * frequencies.len()` are left alone.
    pub frequencies: Vec<f32>,
    /// Which two channels make a pair.
    pub pairing: Pairing,
    /// What sine and cosine are multiplied by; 1 but for yarn and longrope.
    pub magnitude: f32,
    /// What takes the frequencies' place in a long context.
    pub long: Option<LongContext>,
}

/// Frequencies of a long context: they turn all positions of a slot that has room for more than `beyond`, whether it is
/// full or not. So a slot's keys stay what they are while it grows; who wants the others makes a shorter slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LongContext {
    /// Others, the same in every long context.
    Other {
        /// The longest context that is not long.
        beyond: usize,
        /// As many as the rotation's own.
        frequencies: Vec<f32>,
    },
    /// Slower ones, the longer the context: pair k of n has its own frequency by s^(-k / (n - 1)), where s is
    /// factor * context / beyond - (factor - 1). There are at least two pairs.
    Stretched {
        /// The longest context that is not long.
        beyond: usize,
        /// 1 or more.
        factor: f32,
    },
}

impl LongContext {
    /// The longest context that is not long.
    pub fn beyond(&self) -> usize {
        match self {
            LongContext::Other { beyond, .. } | LongContext::Stretched { beyond, .. } => *beyond,
        }
    }
}

impl Rotation {
    /// That of heads that do not turn.
    pub fn none() -> Rotation {
        Rotation { frequencies: Vec::new(), pairing: Pairing::Interleaved, magnitude: 1.0, long: None }
    }

    /// Whether nothing turns.
    pub fn is_none(&self) -> bool {
        self.frequencies.is_empty()
    }

    /// The frequencies in slots with room for so many positions.
    pub fn within(&self, context: usize) -> Cow<'_, [f32]> {
        match &self.long {
            Some(LongContext::Other { beyond, frequencies }) if context > *beyond => frequencies.into(),
            Some(LongContext::Stretched { beyond, factor }) if context > *beyond => {
                let stretch = factor * (context as f32 / *beyond as f32) - (factor - 1.0);
                let slope = -stretch.ln() / (self.frequencies.len() - 1) as f32;
                self.frequencies.iter().enumerate().map(|(k, own)| own * (slope * k as f32).exp()).collect()
            }
            _ => (&self.frequencies).into(),
        }
    }
}

/// Which two channels of a head make pair k, of n pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// k and k + n.
    Half,
    /// 2k and 2k + 1.
    Interleaved,
}
