//! Rotary position embedding (RoPE): a fixed list of frequencies.
//!
//! Pair k of a head is rotated by the angle `position * frequencies[k]`. The frontend has applied frequency
//! scaling (linear, llama3, yarn, ...), so later stages do not depend on it. A few models use other
//! frequencies in long contexts.

use serde::Serialize;
use std::borrow::Cow;

/// How channels are rotated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeParameters {
    /// Angle per position of each pair, in radians. Channels past `2 * frequencies.len()` are not rotated.
    pub frequencies: Cow<'static, [f32]>,
    /// Which two channels form a pair.
    pub pairing: Pairing,
    /// Multiplies sine and cosine; 1 except for yarn and longrope.
    pub magnitude: f32,
    /// Replacement frequencies for long contexts.
    pub long: Option<LongContext>,
}

/// Frequencies of a long context. They apply to all positions of a slot whose context length exceeds
/// `original_context`, however many are used, so that cached keys stay valid while the slot grows. A shorter
/// context length selects the short-context frequencies.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LongContext {
    /// longrope: a second list, the same for every long context.
    LongRope {
        /// Maximum context length of the short-context frequencies.
        original_context: usize,
        /// One per pair.
        frequencies: Cow<'static, [f32]>,
    },
    /// Dynamic NTK scaling: lower frequencies, depending on the context length. The frequency of pair k of n
    /// is multiplied by s^(-k / (n - 1)), where s = factor * context / original_context - (factor - 1). There
    /// are at least two pairs.
    DynamicNtk {
        /// Maximum context length of the short-context frequencies.
        original_context: usize,
        /// 1 or more.
        factor: f32,
    },
}

impl LongContext {
    /// Maximum context length of the short-context frequencies.
    pub fn original_context(&self) -> usize {
        match self {
            LongContext::LongRope { original_context, .. }
            | LongContext::DynamicNtk { original_context, .. } => *original_context,
        }
    }
}

impl RopeParameters {
    /// No RoPE.
    pub fn none() -> RopeParameters {
        RopeParameters {
            frequencies: Cow::Borrowed(&[]),
            pairing: Pairing::Interleaved,
            magnitude: 1.0,
            long: None,
        }
    }

    /// Whether there is no RoPE.
    pub fn is_none(&self) -> bool {
        self.frequencies.is_empty()
    }

    /// The frequencies for a context length.
    pub fn within(&self, context: usize) -> Cow<'_, [f32]> {
        match &self.long {
            Some(LongContext::LongRope { original_context, frequencies }) if context > *original_context => {
                Cow::Borrowed(&**frequencies)
            }
            Some(LongContext::DynamicNtk { original_context, factor }) if context > *original_context => {
                let stretch = factor * (context as f32 / *original_context as f32) - (factor - 1.0);
                let slope = -stretch.ln() / (self.frequencies.len() - 1) as f32;
                self.frequencies.iter().enumerate().map(|(k, own)| own * (slope * k as f32).exp()).collect()
            }
            _ => Cow::Borrowed(&*self.frequencies),
        }
    }
}

/// Which two channels of a head form pair k, of n pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// k and k + n.
    Half,
    /// 2k and 2k + 1.
    Interleaved,
}
