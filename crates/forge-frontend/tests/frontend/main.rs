//! The frontend from outside: what it makes of models, of other spellings of them, and of broken ones.

mod common;
mod experts;
mod faults;
mod fuzz;
mod gguf;
mod gguf_file;
mod graphs;
mod positions;
mod published;
mod shapes;
mod tekken;
