//! Opens the tensors of a checkpoint, whether it is a directory or a GGUF file.

use crate::checkpoint::files::Checkpoint;
use crate::checkpoint::tensors::Tensors;
use crate::gguf;
use forge_ir::Diagnostic;

impl Tensors {
    /// Finds the weight files and reads their headers. Tensors of a GGUF file keep their GGUF names.
    ///
    /// # Errors
    /// Missing, truncated or malformed files, and mismatches between index and shards.
    pub fn open(checkpoint: &dyn Checkpoint) -> Result<Tensors, Vec<Diagnostic>> {
        match gguf::tensors_of_file(checkpoint).map_err(|fault| vec![fault])? {
            Some(tensors) => Tensors::gather(tensors),
            None => Tensors::open_directory(checkpoint),
        }
    }
}
