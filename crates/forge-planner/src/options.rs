//! What the user asked of the compiler, as far as plans are concerned.

use crate::formats::Override;
use crate::fuse::rules::Fusion;
use crate::layout::tuned::Tuned;
use crate::predict::chips::Chip;
use forge_ir::Format;
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;

/// The number format of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quant {
    /// What the checkpoint has.
    Keep,
    /// This one.
    To(Format),
}

impl Quant {
    /// `keep` or a format's name.
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

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Of matrices.
    pub quant: Quant,
    /// Of some matrices, by their names; a later one wins.
    pub overrides: Vec<Override>,
    /// Of cached keys and values: f32, f16 or q8_0; `None`: f32 where every matrix is f32, else f16.
    pub cache: Option<Format>,
    /// Most positions a conversation may have; `None`: what the model was made for.
    pub max_context: Option<usize>,
    /// Conversations that memory is reckoned for where it is told; a program makes room for as many as it is asked to.
    pub slots: usize,
    /// Most rows of one pass; a longer prompt is fed in several.
    pub chunk: usize,
    /// Fusions that are left out.
    pub disabled: BTreeSet<Fusion>,
    /// The chip that kernels are laid out for; `None`: a common one.
    pub chip: Option<&'static Chip>,
    /// Layouts that were measured, in the place of those that rules choose for the chip.
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
