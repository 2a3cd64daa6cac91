//! The definition of every operation in f64, and its samples.
//!
//! Kernels are tested where they run: those of the CPU in `forge-device`, those of the GPU in `forge-sim`, in
//! the kernel checker or on a GPU. Both make the same inputs, run a kernel, and compare with what is defined
//! here. The tolerances are theirs.
//!
//! A family of operations is a file, as in `forge-ops`. The others make inputs: pseudorandom numbers, stored
//! matrices and KV caches with known values, rows of a batch.

pub mod attention;
pub mod attention_layers;
pub mod batch;
pub mod compare;
pub mod elementwise;
pub mod head;
pub mod kv_cache;
pub mod matmul;
pub mod matrix;
pub mod mla;
pub mod moe;
pub mod norm;
pub mod random;
pub mod recurrent;
pub mod rope;

pub use batch::Batch;
pub use compare::{Expected, absolute, compare, relative, to_f64, values_of};
pub use kv_cache::KvCache;
pub use matrix::Matrix;
pub use random::Random;
