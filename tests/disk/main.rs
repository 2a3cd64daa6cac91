//! Programs with experts on disk, with a failing disk and with little memory. Linux only: the tests use FUSE and resource
//! limits.

#[cfg(target_os = "linux")]
mod disk_failure;
#[cfg(target_os = "linux")]
mod fuse_disk;
#[allow(dead_code, unreachable_pub, missing_docs)]
#[cfg(target_os = "linux")]
#[path = "../../crates/forge-runtime/tests/support/http.rs"]
mod http;
#[cfg(target_os = "linux")]
mod memory_limit;
#[cfg(target_os = "linux")]
mod server;
