//! Test helpers: those of the devices, and an HTTP client.

#![allow(dead_code, unused_imports, unreachable_pub)]

#[macro_use]
#[path = "../../../forge-device/tests/support/mod.rs"]
mod device;
pub mod http;

pub use device::*;
