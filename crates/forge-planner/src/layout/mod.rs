//! Kernel layouts: the rule for a shape, candidates for tuning, and what tuning has measured.

pub(crate) mod rules;
pub(crate) mod tuned;
pub(crate) mod tuning_candidates;
pub(crate) mod tuning_key;
