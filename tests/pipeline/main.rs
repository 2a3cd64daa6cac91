//! All tests that need compiled programs, in one test binary, so that the programs are built once.

mod copied;
mod examples;
mod fable;
mod faults;
mod logits;
#[cfg(target_os = "linux")]
mod measured;
#[cfg(target_os = "linux")]
mod metal;
#[cfg(target_os = "linux")]
mod metal_streamed;
mod routes;
mod streamed;
