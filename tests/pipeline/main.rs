//! All tests that need compiled programs, in one test binary, so that the programs are built once.

mod batches;
mod examples;
mod fable;
mod faults;
mod logits;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod metal;
#[cfg(target_os = "linux")]
mod metal_emulated;
#[cfg(target_os = "linux")]
mod metal_machines;
#[cfg(target_os = "linux")]
mod metal_streamed;
#[cfg(target_os = "linux")]
mod profile_and_tune;
mod routes;
mod streamed;
mod weight_copies;
