//! The commands of `forge`.

pub(crate) mod compile;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod verify;
