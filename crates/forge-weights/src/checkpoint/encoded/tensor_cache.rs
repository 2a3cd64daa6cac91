//! Whole tensors of the checkpoint, for matrices whose rows are not contiguous.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of tensors kept: codes, scales and zero points of two matrices that are packed together.
const CAPACITY: usize = 8;

/// The tensors that were read last, by name. Rows of a matrix are read in order, a few at a time, by several
/// threads.
#[derive(Default)]
pub(crate) struct TensorCache(Mutex<VecDeque<(String, Arc<Vec<u8>>)>>);

impl TensorCache {
    /// The bytes of a tensor, read by `read` unless they are in the cache.
    pub(crate) fn get(
        &self,
        name: &str,
        read: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> io::Result<Arc<Vec<u8>>> {
        // The lock is held while reading, so that several threads do not read the same tensor.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = kept.iter().find(|(kept, _)| kept == name) {
            return Ok(Arc::clone(bytes));
        }
        let bytes = Arc::new(read()?);
        if kept.len() == CAPACITY {
            kept.pop_front();
        }
        kept.push_back((name.to_owned(), Arc::clone(&bytes)));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_tensors() {
        let cache = TensorCache::default();
        let mut reads = 0;
        for name in (0..=CAPACITY).chain([CAPACITY, 1, 0]) {
            let bytes = cache.get(&name.to_string(), || {
                reads += 1;
                Ok(vec![name as u8])
            });
            assert_eq!(*bytes.unwrap(), [name as u8]);
        }
        assert_eq!(reads, CAPACITY + 2, "the first tensor is read again");
    }
}
