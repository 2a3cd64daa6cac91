//! Repacking of experts in their cache slots to the device's weight layout.
//!
//! An expert that was just read is used in file order, because the pass waits for the disk then. An expert
//! that is found again is likely to be used more often. It is repacked once, while the disk reads others.

/// How a plane is repacked: in place, in independent groups of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Repacking {
    /// Bytes of a group. A plane of an expert is a whole number of groups.
    pub group_bytes: usize,
    /// Repacks a group. The second slice is a workspace of the same size.
    pub repack: fn(&mut [u8], &mut [u8]),
}

/// A part of a plane to be repacked in its slot.
pub struct RepackJob {
    start: *mut u8,
    bytes: usize,
    repacking: Repacking,
}

// SAFETY: callers of [`RepackJob::run`] promise exclusive access to the bytes.
unsafe impl Sync for RepackJob {}

impl RepackJob {
    /// Approximate bytes per job.
    const JOB_BYTES: usize = 128 << 10;

    /// Divides an expert's part of a plane into jobs.
    ///
    /// # Safety
    /// `start` has to point to `bytes` bytes.
    pub(crate) unsafe fn split(
        start: *mut u8,
        bytes: usize,
        repacking: Repacking,
    ) -> impl Iterator<Item = RepackJob> {
        let piece = RepackJob::JOB_BYTES.next_multiple_of(repacking.group_bytes);
        (0..bytes).step_by(piece).map(move |first| {
            // SAFETY: the caller's promise.
            let start = unsafe { start.add(first) };
            RepackJob { start, bytes: piece.min(bytes - first), repacking }
        })
    }

    /// Repacks the bytes. `workspace` is the workspace; it is resized as needed.
    ///
    /// # Safety
    /// The caller has exclusive access to the bytes, and runs each job once.
    pub unsafe fn run(&self, workspace: &mut Vec<u8>) {
        let Repacking { group_bytes: bytes, repack } = self.repacking;
        workspace.resize(bytes, 0);
        // SAFETY: the promises of `split` and of the caller.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) };
        all.chunks_exact_mut(bytes).for_each(|group| repack(group, workspace));
    }
}
