//! Rotary position embedding: a fixed list of frequencies, however the configuration spelled them.
//!
//! A few models have two lists, the second for long contexts. Pair k of a head turns by the angle `position * frequencies[k]`; what scales the frequencies (linear, llama3,
//! yarn, ...) has been carried out by the frontend, so that nothing after it knows those names.

use serde::Serialize;

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
    pub long: Option<Long>,
}

/// Frequencies of a long context: they turn all positions of a slot that has room for more than `beyond`, whether it is
/// full or not. So a slot's keys stay what they are while it grows; who wants the others makes a shorter slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Long {
    /// The longest context that is not long.
    pub beyond: usize,
    /// As many as the rotation's own.
    pub frequencies: Vec<f32>,
}

impl Rotation {
    /// The frequencies in slots with room for so many positions.
    pub fn within(&self, context: usize) -> &[f32] {
        match &self.long {
            Some(long) if context > long.beyond => &long.frequencies,
            _ => &self.frequencies,
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
