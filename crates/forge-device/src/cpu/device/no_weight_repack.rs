//! Stub of `weight_repack` for systems without huge-page support. Only Linux copies weights.

use crate::cpu::device::thread_pool::Pool;
use crate::cpu::format::repacked::RepackedMatrix;
use memmap2::Mmap;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::time::Duration;

/// An uninhabited type: weights are never copied.
pub(crate) struct RepackInProgress(Infallible);

impl RepackInProgress {
    pub(crate) fn new(
        _: usize,
        _: &[usize],
        _: &[Range<usize>],
        _: Vec<RepackedMatrix>,
    ) -> Option<RepackInProgress> {
        None
    }

    pub(crate) fn go_on(&mut self, _: &Mmap, _: &mut Pool, _: Duration) -> Result<(), String> {
        match self.0 {}
    }

    pub(crate) fn bytes(&self) -> [usize; 2] {
        match self.0 {}
    }

    pub(crate) fn start(&self) -> *const u8 {
        match self.0 {}
    }

    pub(crate) fn end(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn written(self) -> io::Result<Mmap> {
        match self.0 {}
    }
}
