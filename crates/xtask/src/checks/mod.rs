//! Tasks that check the project: on this machine, for other machines, and with other tools.

pub(crate) mod arm;
pub(crate) mod darwin;
mod durations;
pub(crate) mod quick;
pub(crate) mod races;
pub(crate) mod test;
pub(crate) mod validate;
