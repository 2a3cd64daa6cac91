//! Tensors that a file carries twice: a tied head beside the table that it is tied to.

use crate::checkpoint::{Checkpoint, unreadable};
use crate::tensors::Tensors;
use forge_ir::Diagnostic;

/// Bytes compared at a time.
const BLOCK: usize = 1 << 20;

/// The fault of a copy that differs from what is used in its place. A copy that is not there is none.
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
                format!("{copy} is not equal to {used}, to which the configuration ties it"),
            )
            .note(
                "only one of the two can be meant: set tie_word_embeddings to false, or leave the tensor out",
            ),
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
