//! ggml's block formats, as stored in GGUF files.
//!
//! `planes` converts blocks to the planes of a format with the same values, with `k_quants` for superblocks.
//! `dequantize` computes the values of the others. Both read codes with `low_bits` and `grid`.

pub(crate) mod dequantize;
mod grid;
pub(crate) mod k_quants;
mod low_bits;
pub(crate) mod planes;
#[cfg(test)]
mod tests;
