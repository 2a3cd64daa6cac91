//! Arguments of one dispatch for a CPU kernel: buffers by name, scalars and the thread's items.

use crate::cpu::device::scratch::Line;
use crate::cpu::device::work_stealing::{RangeCursor, WorkRanges, owned_range};
use crate::cpu::simd::isa::Isa;
use crate::device::{Kernel, Schedule};
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A bound memory range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// Address of the first byte.
    pub(crate) start: *mut u8,
    /// Length in bytes.
    pub(crate) bytes: usize,
    /// Whether the kernel may write it.
    pub(crate) written: bool,
    /// Whether it belongs to a repacked matrix.
    pub(crate) strips: bool,
}

/// A plain number type.
///
/// # Safety
/// Every bit pattern must be a valid value.
pub unsafe trait Pod: Copy {}

// SAFETY: every bit pattern is valid for these types.
unsafe impl Pod for f32 {}
unsafe impl Pod for u32 {}
unsafe impl Pod for f16 {}
unsafe impl Pod for bf16 {}
unsafe impl Pod for i8 {}
unsafe impl Pod for u8 {}

/// One phase of a dispatch, shared by its threads.
pub(crate) struct Phase<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) regions: &'a [Region],
    pub(crate) scalars: &'a [u32],
    /// Number of threads.
    pub(crate) workers: usize,
    pub(crate) level: Isa,
    /// Whether activation quantization is disabled.
    pub(crate) exact: bool,
    /// The schedule that the dispatch belongs to.
    pub(crate) schedule: Schedule,
    /// Number of earlier phases of the dispatch.
    pub(crate) index: usize,
    /// The claimed part of each thread's range.
    pub(crate) claimed: &'a [RangeCursor],
    /// Whether another phase follows.
    pub(crate) has_next: AtomicBool,
    /// The device's workspace for data passed between phases.
    pub(crate) workspace: &'a Mutex<Workspace>,
    /// Cache slots of the experts, if experts are streamed.
    pub(crate) resident: Option<ResidentExperts>,
}

/// Memory that one phase passes to the next. It is reused by later dispatches.
#[derive(Default)]
pub(crate) struct Workspace {
    lines: Vec<Line>,
    /// The largest row size so far, in bytes.
    widest: usize,
}

impl Workspace {
    /// Returns `count` elements. The first caller of a dispatch grows the buffer for all threads, so it does
    /// not move later.
    fn of<'a, T: Pod>(&mut self, count: usize) -> Output<'a, T> {
        let needed = (count * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < needed {
            self.lines.resize(needed, Line([0.0; 16]));
        }
        Output { start: self.lines.as_mut_ptr().cast(), count, life: PhantomData }
    }
}

/// Experts of a dispatch that are in cache slots.
pub(crate) struct ResidentExperts {
    /// Cache slot by expert; valid for cached experts only.
    pub(crate) slots: Vec<u32>,
    /// Whether the cached matrix is repacked, by expert.
    pub(crate) is_repacked: Vec<bool>,
    /// Number of cache slots.
    pub(crate) count: usize,
    /// Maximum number of experts cached at once for one dispatch.
    pub(crate) at_once: usize,
    /// Experts to request before the next phase.
    pub(crate) requested: Mutex<Vec<usize>>,
    /// Requested experts that have not been computed.
    pub(crate) pending: Vec<usize>,
    /// Experts to compute in this phase.
    pub(crate) ready: Vec<usize>,
    /// Number of experts computed so far, this phase included.
    pub(crate) computed: usize,
}

/// Experts to compute in the current phase.
pub(crate) struct ReadyExperts {
    /// Their indices in the sorted list of chosen experts.
    pub(crate) places: Vec<usize>,
    /// Whether they are the last ones of the dispatch.
    pub(crate) is_last: bool,
}

/// Arguments of a dispatch for one thread.
pub struct KernelArgs<'a> {
    phase: &'a Phase<'a>,
    /// Index of the thread.
    worker: usize,
    /// Extra bytes that every looked-up buffer must have.
    padding: usize,
}

impl<'a> KernelArgs<'a> {
    /// Creates the arguments of thread `worker` in a phase.
    ///
    /// # Safety
    /// Regions must be valid while the arguments live, and written regions must not overlap others. All
    /// threads of a dispatch must use the same phase, with nothing claimed yet, and distinct thread indices.
    pub(crate) unsafe fn new(phase: &'a Phase<'a>, worker: usize) -> KernelArgs<'a> {
        KernelArgs { phase, worker, padding: 0 }
    }

    /// The same arguments, where each looked-up buffer must have `padding` extra bytes.
    pub(crate) fn with_padding(&self, padding: usize) -> KernelArgs<'a> {
        KernelArgs { phase: self.phase, worker: self.worker, padding }
    }

    /// The instruction set to compute with.
    pub(crate) fn level(&self) -> Isa {
        self.phase.level
    }

    /// Whether activations must stay f32.
    pub(crate) fn exact(&self) -> bool {
        self.phase.exact
    }

    /// Whether this is a decode step, where results need not be batch-invariant and sums may be in any order.
    pub(crate) fn is_decode(&self) -> bool {
        self.phase.schedule == Schedule::Decode
    }

    /// Number of threads of the dispatch.
    pub fn workers(&self) -> usize {
        self.phase.workers
    }

    /// Number of earlier phases. All threads finish a phase before the next one begins.
    pub(crate) fn phase_index(&self) -> usize {
        self.phase.index
    }

    /// Requests another phase.
    pub(crate) fn request_phase(&self) {
        self.phase.has_next.store(true, Ordering::Relaxed);
    }

    /// Selects the experts to compute in this phase from the sorted list `experts`. If experts are streamed,
    /// these are the ones whose reads have completed, and none in the first phase. When all requested experts
    /// are computed, the next group is requested.
    pub(crate) fn ready_experts(&self, experts: &[usize]) -> ReadyExperts {
        let Some(resident) = &self.phase.resident else {
            return ReadyExperts { places: (0..experts.len()).collect(), is_last: true };
        };
        let is_last = resident.computed == experts.len();
        if !is_last {
            self.request_phase();
            if resident.pending.is_empty() {
                let next = resident.computed..experts.len().min(resident.computed + resident.at_once);
                // All threads request the same experts.
                *resident.requested.lock().unwrap_or_else(PoisonError::into_inner) = experts[next].to_vec();
            }
        }
        let places = (0..experts.len()).filter(|place| resident.ready.contains(&experts[*place])).collect();
        ReadyExperts { places, is_last }
    }

    /// Index of an expert's matrix among the bound ones: its cache slot, or the expert itself if all are
    /// resident.
    pub(crate) fn matrix_of(&self, expert: usize) -> usize {
        self.phase.resident.as_ref().map_or(expert, |resident| resident.slots[expert] as usize)
    }

    /// Number of bound matrices: cache slots, or `experts` if all are resident.
    pub(crate) fn matrices(&self, experts: usize) -> usize {
        self.phase.resident.as_ref().map_or(experts, |resident| resident.count)
    }

    /// Workspace of `count` elements, shared by all threads and kept between phases. All calls of a dispatch
    /// must use the same `count`.
    pub(crate) fn workspace<T: Pod>(&self, count: usize) -> Output<'a, T> {
        self.phase.workspace.lock().unwrap_or_else(PoisonError::into_inner).of(count)
    }

    /// Workspace for rows of `each` elements, and the row pitch in elements. The pitch is that of the widest
    /// dispatch so far, so a thread with the same rows in successive dispatches reuses the same bytes.
    pub(crate) fn row_workspace<T: Pod>(&self, rows: usize, each: usize) -> (Output<'a, T>, usize) {
        let mut workspace = self.phase.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        workspace.widest = workspace.widest.max(each * size_of::<T>());
        let pitch = workspace.widest.div_ceil(size_of::<T>());
        (workspace.of(rows * pitch), pitch)
    }

    /// The scalar at `index` of the kernel's struct of scalars.
    pub fn scalar(&self, index: usize) -> usize {
        match self.phase.scalars.get(index) {
            Some(&scalar) => scalar as usize,
            None => panic!("kernel {} was dispatched without scalar {index}", self.phase.kernel.name),
        }
    }

    fn region<T: Pod>(&self, name: &str, count: usize) -> Region {
        let kernel = self.phase.kernel.name;
        let Some(slot) = self.phase.kernel.buffers.iter().position(|buffer| *buffer == name) else {
            panic!("kernel {kernel} has no buffer `{name}`: it has {:?}", self.phase.kernel.buffers);
        };
        let Some(&region) = self.phase.regions.get(slot) else {
            panic!("kernel {kernel} was dispatched without buffer `{name}`");
        };
        let needed = count * size_of::<T>() + self.padding;
        assert!(
            needed <= region.bytes,
            "kernel {kernel}: buffer `{name}` has {} bytes and needs {needed}",
            region.bytes,
        );
        assert!(
            region.start.addr().is_multiple_of(align_of::<T>()),
            "kernel {kernel}: buffer `{name}` is not aligned"
        );
        region
    }

    /// Whether the matrix bound to `name` is repacked.
    pub(crate) fn is_repacked(&self, name: &str) -> bool {
        let slot = self.phase.kernel.buffers.iter().position(|buffer| *buffer == name);
        slot.and_then(|slot| self.phase.regions.get(slot)).is_some_and(|region| region.strips)
    }

    /// Whether `expert`'s matrix, of those bound to `name`, is repacked.
    pub(crate) fn is_expert_repacked(&self, name: &str, expert: usize) -> bool {
        self.phase
            .resident
            .as_ref()
            .map_or_else(|| self.is_repacked(name), |resident| resident.is_repacked[expert])
    }

    /// The first `count` elements of the buffer `name`.
    pub fn input<T: Pod>(&self, name: &str, count: usize) -> &'a [T] {
        let region = self.region::<T>(name, count);
        // SAFETY: valid by `new`'s contract, long enough and aligned by the checks in `region`.
        unsafe { slice::from_raw_parts(region.start.cast(), count) }
    }

    /// The first `count` elements of the buffer `name`, writable.
    pub fn output<T: Pod>(&self, name: &str, count: usize) -> Output<'a, T> {
        let region = self.region::<T>(name, count);
        assert!(region.written, "kernel {}: buffer `{name}` is bound read-only", self.phase.kernel.name);
        Output { start: region.start.cast(), count, life: PhantomData }
    }

    /// Claims ranges of `0..items` in units of `grain` until all items are claimed. Each thread owns a
    /// contiguous range and then steals from other threads.
    pub fn claim(&self, items: usize, grain: usize) -> WorkRanges<'a> {
        WorkRanges::new(self.phase.claimed, self.worker, items, grain)
    }

    /// Like [`KernelArgs::claim`], for items that are parts of a batch's rows, in order. Threads own the same
    /// rows in successive dispatches and find them in their caches. Stealing a row across caches is slow, so
    /// the tail of each range is not stolen.
    pub fn claim_rows(&self, items: usize, grain: usize) -> WorkRanges<'a> {
        self.claim(items, grain).reserve_tail()
    }

    /// This thread's static range of the items, in units of `grain`. There is no stealing, because each item
    /// is too little work.
    pub fn static_range(&self, items: usize, grain: usize) -> Range<usize> {
        let Range { start, end } = owned_range(self.worker, self.phase.workers, items.div_ceil(grain));
        items.min(start * grain)..items.min(end * grain)
    }
}

/// A kernel output. Each thread writes disjoint parts.
#[derive(Clone, Copy)]
pub struct Output<'a, T> {
    start: *mut T,
    count: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> Output<'a, T> {
    /// Pointer to the first element, for kernels that read what they wrote.
    pub(crate) fn start(&self) -> *const T {
        self.start
    }

    /// All elements, as written by an earlier phase.
    ///
    /// # Safety
    /// No thread may write them while the slice is alive.
    #[inline(always)]
    pub(crate) unsafe fn whole(&self) -> &'a [T] {
        // SAFETY: the region's elements, unwritten by the caller's promise.
        unsafe { slice::from_raw_parts(self.start, self.count) }
    }

    /// The elements `range`, writable.
    ///
    /// # Safety
    /// No other thread may access them, and no other slice of them may be alive.
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.count, "kernel output range out of bounds");
        // SAFETY: in bounds by the assertion above; not shared by the caller's contract.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
