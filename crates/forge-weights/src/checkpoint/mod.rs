//! Reads weights as checkpoints store them: plain values, blocks of a GGUF file (`ggml`), MLX's affine
//! quantization (`mlx`), and codes and scales in several tensors (`encoded`).

pub(crate) mod checkpoint_weights;
pub(crate) mod encoded;
pub(crate) mod ggml;
pub(crate) mod mlx;
