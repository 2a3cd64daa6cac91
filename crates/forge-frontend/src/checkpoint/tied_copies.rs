//! Duplicate tensors: a tied head stored in addition to the embedding table.

use crate::checkpoint::files::{Checkpoint, unreadable};
use crate::checkpoint::tensors::Tensors;
use forge_ir::Diagnostic;

/// Bytes compared at once.
const BLOCK: usize = 1 << 20;

/// An error if a copy differs from the tensor used in its place. A missing copy is valid.
pub(crate) fn check(
    checkpoint: &dyn Checkpoint,
    tensors: &Tensors,
    (copy, used): &(String, String),
) -> Option<Diagnostic> {
    let (a, b) = (tensors.get(copy)?, tensors.get(used)?);
    let differs = || {
        Some(
            Diagnostic::new(
                "F0305",
                format!("{copy} differs from {used}, although the configuration ties them"),
            )
            .note("set tie_word_embeddings to false, or remove the tensor"),
        )
    };
    if (&a.dtype, &a.shape, a.bytes) != (&b.dtype, &b.shape, b.bytes) {
        return differs();
    }
    let (mut left, mut right) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut offset = 0;
    while offset < a.bytes {
        let length = usize::try_from(a.bytes - offset).unwrap_or(BLOCK).min(BLOCK);
        for (tensor, bytes) in [(a, &mut left), (b, &mut right)] {
            if let Err(error) = checkpoint.read(&tensor.file, tensor.offset + offset, &mut bytes[..length]) {
                return Some(unreadable(&tensor.file, &error));
            }
        }
        if left[..length] != right[..length] {
            return differs();
        }
        offset += length as u64;
    }
    None
}
