//! One dispatch, as a CPU kernel sees it: its buffers by name, its scalars, and its share of the work.

use super::level::Level;

use super::super::device::Kernel;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a dispatch may touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The first byte.
    pub(super) start: *mut u8,
    /// How many.
    pub(super) bytes: usize,
    /// Whether they may be written.
    pub(super) written: bool,
}

/// A number that any bytes are a value of.
///
/// # Safety
/// Every bit pattern has to be a value.
pub unsafe trait Number: Copy {}

// SAFETY: every bit pattern is a value of these.
unsafe impl Number for f32 {}
unsafe impl Number for u32 {}
unsafe impl Number for f16 {}
unsafe impl Number for bf16 {}
unsafe impl Number for i8 {}
unsafe impl Number for u8 {}

/// A dispatch, seen by one of the threads that run it.
pub struct Call<'a> {
    kernel: &'a Kernel,
    regions: &'a [Region],
    scalars: &'a [u32],
    workers: usize,
    level: Level,
    taken: &'a AtomicUsize,
}

impl<'a> Call<'a> {
    /// A dispatch of `kernel`.
    ///
    /// # Safety
    /// Regions must be valid while the call lives, those written must overlap no other, and all threads of one
    /// dispatch must be given the same regions and the same counter `taken`, which starts at 0.
    pub(super) unsafe fn new(
        kernel: &'a Kernel,
        regions: &'a [Region],
        scalars: &'a [u32],
        workers: usize,
        level: Level,
        taken: &'a AtomicUsize,
    ) -> Call<'a> {
        Call { kernel, regions, scalars, workers, level, taken }
    }

    /// The instructions to compute with.
    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// How many threads run this dispatch.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Scalar number `index` of the kernel's struct of scalars.
    pub fn scalar(&self, index: usize) -> usize {
        match self.scalars.get(index) {
            Some(&scalar) => scalar as usize,
            None => panic!("kernel {} was dispatched without scalar {index}", self.kernel.name),
        }
    }

    fn region<T: Number>(&self, name: &str, count: usize) -> Region {
        let kernel = self.kernel.name;
        let Some(slot) = self.kernel.buffers.iter().position(|buffer| *buffer == name) else {
            panic!("kernel {kernel} has no buffer `{name}`: it has {:?}", self.kernel.buffers);
        };
        let Some(&region) = self.regions.get(slot) else {
            panic!("kernel {kernel} was dispatched without buffer `{name}`");
        };
        assert!(
            count * size_of::<T>() <= region.bytes,
            "kernel {kernel}: buffer `{name}` has {} bytes and needs {}",
            region.bytes,
            count * size_of::<T>()
        );
        assert!(
            region.start.addr().is_multiple_of(align_of::<T>()),
            "kernel {kernel}: buffer `{name}` is not aligned"
        );
        region
    }

    /// The first `count` elements of the buffer `name`.
    pub fn input<T: Number>(&self, name: &str, count: usize) -> &'a [T] {
        let region = self.region::<T>(name, count);
        // SAFETY: valid by `new`'s contract, long enough and aligned by the checks in `region`.
        unsafe { slice::from_raw_parts(region.start.cast(), count) }
    }

    /// The first `count` elements of the buffer `name`, to be written.
    pub fn output<T: Number>(&self, name: &str, count: usize) -> Output<'a, T> {
        let region = self.region::<T>(name, count);
        assert!(region.written, "kernel {}: buffer `{name}` was bound to be read only", self.kernel.name);
        Output { start: region.start.cast(), count, life: PhantomData }
    }

    /// Ranges of `0..items`, `grain` at a time, until all threads together have taken all of them.
    pub fn share(&self, items: usize, grain: usize) -> Share<'a> {
        Share { taken: self.taken, items, grain: grain.max(1) }
    }
}

/// What a kernel writes: elements that several threads fill, each its own part.
#[derive(Clone, Copy)]
pub struct Output<'a, T> {
    start: *mut T,
    count: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T: Number> Output<'a, T> {
    /// The first element, for what a kernel reads of what it writes.
    pub(super) fn start(&self) -> *const T {
        self.start
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// No other thread touches them, and no other slice of them is alive.
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.count, "a kernel wrote outside its buffer");
        // SAFETY: inside the region by the line above; unshared by the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// See [`Call::share`].
pub struct Share<'a> {
    taken: &'a AtomicUsize,
    items: usize,
    grain: usize,
}

impl Iterator for Share<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let start = self.taken.fetch_add(self.grain, Ordering::Relaxed);
        (start < self.items).then(|| start..self.items.min(start + self.grain))
    }
}
