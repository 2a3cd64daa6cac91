//! Memory planning: lifetimes, arena offsets and barriers.

pub(crate) mod arena;
pub(crate) mod barriers;
pub(crate) mod lifetimes;
