//! Tests of the frontend's public API: graphs of models, config variants, and diagnostics of broken models.

mod common;
mod configuration_faults;
mod encoded;
mod experts;
mod fault_edits;
mod faults;
mod fuzz;
mod gguf;
mod graphs;
mod positions;
mod published;
mod shapes;
mod spellings;
mod tekken;
