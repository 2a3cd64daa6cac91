//! Programs whose experts are on disk, and what becomes of them where the disk dies or memory is short: on Linux, whose FUSE and
//! limits the tests are made of.

#[cfg(target_os = "linux")]
mod breakable;
#[cfg(target_os = "linux")]
mod broken;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[cfg(target_os = "linux")]
#[path = "../../crates/forge-runtime/tests/support/http.rs"]
mod http;
#[cfg(target_os = "linux")]
mod limited;
#[cfg(target_os = "linux")]
mod server;
