//! Devices that capture, record and time dispatches: `profile`, `tune` and the kernel checker's recordings.

pub mod capture;
pub mod profile;
pub mod recorder;
pub mod tune;
