//! Overrides: formats of the matrices whose names match a pattern.

use crate::options::Quant;
use serde::Serialize;

/// A pattern, and the format of the matrices that it matches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Override {
    pub(super) pattern: String,
    pub(super) to: Quant,
}

impl Override {
    /// Parses a pattern: `*` matches any characters, `?` one, `[a-c]` one of these, `{a,b}` either.
    ///
    /// # Errors
    ///
    /// A description of the syntax error.
    pub fn new(pattern: &str, to: Quant) -> Result<Override, String> {
        fast_glob::validate(pattern).map_err(|error| error.to_string())?;
        Ok(Override { pattern: pattern.to_owned(), to })
    }

    /// An override for the tensor with exactly this name.
    pub fn exactly(tensor: &str, to: Quant) -> Override {
        let literal = |c: char| if "*?[]{}!\\".contains(c) { vec!['\\', c] } else { vec![c] };
        Override { pattern: tensor.chars().flat_map(literal).collect(), to }
    }

    /// The format.
    pub fn to(&self) -> Quant {
        self.to
    }

    /// Whether the pattern matches the tensor's name.
    pub(super) fn matches(&self, tensor: &str) -> bool {
        let is = |name| fast_glob::glob_match(&self.pattern, name);
        is(tensor) || tensor.strip_suffix(".weight").is_some_and(is)
    }
}
