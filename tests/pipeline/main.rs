//! Everything that needs programs to be built: one test binary, so that they are built once.

mod examples;
mod fable;
mod faults;
mod logits;
#[cfg(target_os = "linux")]
mod measured;
#[cfg(target_os = "linux")]
mod metal;
mod routes;
mod streamed;
