//! Planner options.

use crate::formats::Override;
use crate::fuse::rules::Fusion;
use crate::layout::tuned::Tuned;
use crate::predict::chips::Chip;
use forge_ops::Format;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;

/// Number format for matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quant {
    /// The checkpoint's format.
    Keep,
    /// This format.
    To(Format),
}

impl Quant {
    /// Parses `keep` or a format's name.
    pub fn from_name(name: &str) -> Option<Quant> {
        if name == "keep" { Some(Quant::Keep) } else { Format::from_name(name).map(Quant::To) }
    }
}

impl Serialize for Quant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl std::fmt::Display for Quant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Quant::Keep => f.write_str("keep"),
            Quant::To(format) => format.fmt(f),
        }
    }
}

/// Planner options.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Number format of all matrices.
    pub quant: Quant,
    /// Number formats of matrices selected by name. The last match wins.
    pub overrides: Vec<Override>,
    /// Number format of the KV cache: f32, f16 or q8_0. `None`: f32 if every matrix is f32, otherwise f16.
    pub cache: Option<Format>,
    /// Maximum context length in tokens. `None`: the model's own limit.
    pub max_context: Option<usize>,
    /// Parallel sequences assumed in printed memory figures. The program allocates as many as it is started
    /// with.
    pub slots: usize,
    /// Maximum rows of a pass (prefill chunk). Longer prompts take several passes.
    pub chunk: usize,
    /// Disabled fusions.
    pub disabled: BTreeSet<Fusion>,
    /// Chip that kernels are laid out for. `None`: a generic one.
    pub chip: Option<&'static Chip>,
    /// Measured layouts, which replace the chosen ones.
    pub tuned: Option<Tuned>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            quant: Quant::Keep,
            overrides: Vec::new(),
            cache: None,
            max_context: None,
            slots: 1,
            chunk: 256,
            disabled: BTreeSet::new(),
            chip: None,
            tuned: None,
        }
    }
}
