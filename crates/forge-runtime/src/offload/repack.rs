//! The order in which a device wants numbers of an expert in its seat, where it is not the file's.
//!
//! Whoever has come from disk just now is multiplied as it lies in the file: then the disk is waited for. Whoever is found when it is asked
//! for again is likely to be found more often, and is arranged before it is multiplied, once, while the disk reads others.

/// How a plane is arranged: in its place, so many bytes after so many, each by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Repacking {
    /// Bytes that are arranged by themselves. An expert has a whole number of them.
    pub bytes: usize,
    /// Puts these bytes in the device's order; the others are room for as many.
    pub arrange: fn(&mut [u8], &mut [u8]),
}

/// Bytes of a seat that are in the file's order and are to be in the device's.
pub struct RepackJob {
    start: *mut u8,
    bytes: usize,
    arrangement: Repacking,
}

// SAFETY: `arrange`'s callers promise that nobody else touches the bytes.
unsafe impl Sync for RepackJob {}

impl RepackJob {
    /// What a thread arranges at once, about.
    const PIECE: usize = 128 << 10;

    /// All of what an expert has of a plane, in pieces.
    ///
    /// # Safety
    /// There are as many bytes.
    pub(crate) unsafe fn pieces(
        start: *mut u8,
        bytes: usize,
        arrangement: Repacking,
    ) -> impl Iterator<Item = RepackJob> {
        let piece = RepackJob::PIECE.next_multiple_of(arrangement.bytes);
        (0..bytes).step_by(piece).map(move |first| {
            // SAFETY: the caller's promise.
            let start = unsafe { start.add(first) };
            RepackJob { start, bytes: piece.min(bytes - first), arrangement }
        })
    }

    /// Arranges them; `room` is as long as it needs to be then.
    ///
    /// # Safety
    /// Nobody else touches them meanwhile, and they are arranged once.
    pub unsafe fn arrange(&self, room: &mut Vec<u8>) {
        let Repacking { bytes, arrange } = self.arrangement;
        room.resize(bytes, 0);
        // SAFETY: the promises of `pieces` and of the caller.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) };
        all.chunks_exact_mut(bytes).for_each(|some| arrange(some, room));
    }
}
