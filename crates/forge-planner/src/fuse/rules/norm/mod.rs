//! Fusions of norms with what they read and with their readers.

pub(crate) mod deferred_norm;
pub(crate) mod fold_gain;
pub(crate) mod inline_norm;
pub(crate) mod norm_add;
