//! One dispatch, as a CPU kernel sees it: its buffers by name, its scalars, and its share of the work.

use crate::cpu::device::scratch::Line;
use crate::cpu::device::work_stealing::{RangeCursor, WorkRanges, own};
use crate::cpu::simd::isa::Isa;
use crate::device::{Kernel, Schedule};
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that a dispatch may touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// The first byte.
    pub(crate) start: *mut u8,
    /// How many.
    pub(crate) bytes: usize,
    /// Whether they may be written.
    pub(crate) written: bool,
    /// Whether they are of a matrix in strips.
    pub(crate) strips: bool,
}

/// A number that any bytes are a value of.
///
/// # Safety
/// Every bit pattern has to be a value.
pub unsafe trait Pod: Copy {}

// SAFETY: every bit pattern is a value of these.
unsafe impl Pod for f32 {}
unsafe impl Pod for u32 {}
unsafe impl Pod for f16 {}
unsafe impl Pod for bf16 {}
unsafe impl Pod for i8 {}
unsafe impl Pod for u8 {}

/// What the threads share that run one round of a dispatch.
pub(crate) struct Phase<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) regions: &'a [Region],
    pub(crate) scalars: &'a [u32],
    /// How many threads there are.
    pub(crate) workers: usize,
    pub(crate) level: Isa,
    /// Whether x is never made codes.
    pub(crate) exact: bool,
    /// Of which the dispatch is a part.
    pub(crate) program: Schedule,
    /// Rounds before this one.
    pub(crate) number: usize,
    /// What has been taken of each thread's items.
    pub(crate) taken: &'a [RangeCursor],
    /// Whether there is to be another round.
    pub(crate) another: AtomicBool,
    /// The device's, for what one round leaves to the next.
    pub(crate) room: &'a Mutex<Workspace>,
    /// Where experts are, if they are not all in memory.
    pub(crate) seated: Option<ResidentExperts>,
}

/// Room that one round leaves to the next, kept from dispatch to dispatch.
#[derive(Default)]
pub(crate) struct Workspace {
    lines: Vec<Line>,
    /// The most bytes of a row that lay in it.
    widest: usize,
}

impl Workspace {
    /// Whoever comes first makes it long enough for all, so that it stays where it is.
    fn of<'a, T: Pod>(&mut self, count: usize) -> Output<'a, T> {
        let needed = (count * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.lines.len() < needed {
            self.lines.resize(needed, Line([0.0; 16]));
        }
        Output { start: self.lines.as_mut_ptr().cast(), count, life: PhantomData }
    }
}

/// The experts of a dispatch that are in memory, where a few are at once.
pub(crate) struct ResidentExperts {
    /// The seat of each expert, where it has one.
    pub(crate) seats: Vec<u32>,
    /// Whether each lies in strips there.
    pub(crate) in_strips: Vec<bool>,
    /// Seats that there are.
    pub(crate) count: usize,
    /// Experts that can have seats at once.
    pub(crate) at_once: usize,
    /// Those that are wanted before the next round, if others are to have seats.
    pub(crate) asked: Mutex<Vec<usize>>,
    /// Those that have been asked for and have not had their round.
    pub(crate) coming: Vec<usize>,
    /// Those whose round it is.
    pub(crate) here: Vec<usize>,
    /// How many have had their round, or have it now.
    pub(crate) begun: usize,
}

/// Experts whose matrices are multiplied in a round.
pub(crate) struct ReadyExperts {
    /// Their places among those that rows have, in order.
    pub(crate) places: Vec<usize>,
    /// Whether nobody comes after them.
    pub(crate) is_last: bool,
}

/// A dispatch, seen by one of the threads that run it.
pub struct KernelArgs<'a> {
    round: &'a Phase<'a>,
    /// Which of the threads.
    worker: usize,
    /// Bytes that every buffer has to have beyond those that are asked for.
    beyond: usize,
}

impl<'a> KernelArgs<'a> {
    /// The part of a thread, by its number, in a round.
    ///
    /// # Safety
    /// Regions must be valid while the call lives, those written must overlap no other, and all threads of one
    /// dispatch must be given the same round, of which nothing is taken yet, and numbers of their own.
    pub(crate) unsafe fn new(round: &'a Phase<'a>, worker: usize) -> KernelArgs<'a> {
        KernelArgs { round, worker, beyond: 0 }
    }

    /// The same, of whose buffers more is used than is asked for: so many bytes beyond.
    pub(crate) fn reaching(&self, beyond: usize) -> KernelArgs<'a> {
        KernelArgs { round: self.round, worker: self.worker, beyond }
    }

    /// The instructions to compute with.
    pub(crate) fn level(&self) -> Isa {
        self.round.level
    }

    /// Whether numbers of x are to be what they are.
    pub(crate) fn exact(&self) -> bool {
        self.round.exact
    }

    /// Whether there is one row that no others will be compared with, so that its sums may be in any order.
    pub(crate) fn alone(&self) -> bool {
        self.round.program == Schedule::Decode
    }

    /// How many threads run this dispatch.
    pub fn workers(&self) -> usize {
        self.round.workers
    }

    /// Rounds of this dispatch before: all threads have ended one before any begins the next.
    pub(crate) fn round(&self) -> usize {
        self.round.number
    }

    /// Says that there is to be another round.
    pub(crate) fn another_round(&self) {
        self.round.another.store(true, Ordering::Relaxed);
    }

    /// Of the experts that rows have, which are in order, those whose matrices are multiplied in this round: all, or where experts have
    /// seats those that have come. Then the first round has none. When all who were asked for have had their round others are.
    pub(crate) fn at_hand(&self, experts: &[usize]) -> ReadyExperts {
        let Some(seated) = &self.round.seated else {
            return ReadyExperts { places: (0..experts.len()).collect(), is_last: true };
        };
        let is_last = seated.begun == experts.len();
        if !is_last {
            self.another_round();
            if seated.coming.is_empty() {
                let next = seated.begun..experts.len().min(seated.begun + seated.at_once);
                // All threads ask for the same.
                *seated.asked.lock().unwrap_or_else(PoisonError::into_inner) = experts[next].to_vec();
            }
        }
        let places = (0..experts.len()).filter(|place| seated.here.contains(&experts[*place])).collect();
        ReadyExperts { places, is_last }
    }

    /// Which of the matrices that are bound is an expert's: its seat, or its own.
    pub(crate) fn matrix_of(&self, expert: usize) -> usize {
        self.round.seated.as_ref().map_or(expert, |seated| seated.seats[expert] as usize)
    }

    /// How many matrices are bound, where there are so many experts.
    pub(crate) fn matrices(&self, experts: usize) -> usize {
        self.round.seated.as_ref().map_or(experts, |seated| seated.count)
    }

    /// Room for `count` elements that all threads share, from round to round. A dispatch asks for one number of them.
    pub(crate) fn room<T: Pod>(&self, count: usize) -> Output<'a, T> {
        self.round.room.lock().unwrap_or_else(PoisonError::into_inner).of(count)
    }

    /// Such room for rows of so many elements each, and how many lie from one to the next: as many as in the widest dispatch so far, so that
    /// threads that have the same rows from one dispatch to the next have the same bytes.
    pub(crate) fn room_of_rows<T: Pod>(&self, rows: usize, each: usize) -> (Output<'a, T>, usize) {
        let mut room = self.round.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.widest = room.widest.max(each * size_of::<T>());
        let pitch = room.widest.div_ceil(size_of::<T>());
        (room.of(rows * pitch), pitch)
    }

    /// Scalar number `index` of the kernel's struct of scalars.
    pub fn scalar(&self, index: usize) -> usize {
        match self.round.scalars.get(index) {
            Some(&scalar) => scalar as usize,
            None => panic!("kernel {} was dispatched without scalar {index}", self.round.kernel.name),
        }
    }

    fn region<T: Pod>(&self, name: &str, count: usize) -> Region {
        let kernel = self.round.kernel.name;
        let Some(slot) = self.round.kernel.buffers.iter().position(|buffer| *buffer == name) else {
            panic!("kernel {kernel} has no buffer `{name}`: it has {:?}", self.round.kernel.buffers);
        };
        let Some(&region) = self.round.regions.get(slot) else {
            panic!("kernel {kernel} was dispatched without buffer `{name}`");
        };
        let needed = count * size_of::<T>() + self.beyond;
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

    /// Whether the matrix that has the buffer `name` lies in strips.
    pub(crate) fn in_strips(&self, name: &str) -> bool {
        let slot = self.round.kernel.buffers.iter().position(|buffer| *buffer == name);
        slot.and_then(|slot| self.round.regions.get(slot)).is_some_and(|region| region.strips)
    }

    /// Whether an expert's matrix lies in strips, of those that have the buffer `name`.
    pub(crate) fn is_in_strips(&self, name: &str, expert: usize) -> bool {
        self.round.seated.as_ref().map_or_else(|| self.in_strips(name), |seated| seated.in_strips[expert])
    }

    /// The first `count` elements of the buffer `name`.
    pub fn input<T: Pod>(&self, name: &str, count: usize) -> &'a [T] {
        let region = self.region::<T>(name, count);
        // SAFETY: valid by `new`'s contract, long enough and aligned by the checks in `region`.
        unsafe { slice::from_raw_parts(region.start.cast(), count) }
    }

    /// The first `count` elements of the buffer `name`, to be written.
    pub fn output<T: Pod>(&self, name: &str, count: usize) -> Output<'a, T> {
        let region = self.region::<T>(name, count);
        assert!(
            region.written,
            "kernel {}: buffer `{name}` was bound to be read only",
            self.round.kernel.name
        );
        Output { start: region.start.cast(), count, life: PhantomData }
    }

    /// Ranges of `0..items`, `grain` at a time, until all threads together have taken all of them: first those of this thread, which are
    /// neighbours, and then what others have left.
    pub fn share(&self, items: usize, grain: usize) -> WorkRanges<'a> {
        WorkRanges::new(self.round.taken, self.worker, items, grain)
    }

    /// The same where items are parts of rows of a batch, in order: threads have the same rows in one dispatch after the other, and a core
    /// finds in its caches what it wrote. Cores that share no cache wait long for what another one wrote, so the last of a thread's
    /// rows are left to it.
    pub fn share_rows(&self, items: usize, grain: usize) -> WorkRanges<'a> {
        self.share(items, grain).that_stay()
    }

    /// This thread's of such rows where each is so little work that nobody takes others', in units of `grain` of them.
    pub fn own(&self, items: usize, grain: usize) -> Range<usize> {
        let Range { start, end } = own(self.worker, self.round.workers, items.div_ceil(grain));
        items.min(start * grain)..items.min(end * grain)
    }
}

/// What a kernel writes: elements that several threads fill, each its own part.
#[derive(Clone, Copy)]
pub struct Output<'a, T> {
    start: *mut T,
    count: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> Output<'a, T> {
    /// The first element, for what a kernel reads of what it writes.
    pub(crate) fn start(&self) -> *const T {
        self.start
    }

    /// All elements, as what an earlier round left.
    ///
    /// # Safety
    /// Nobody writes them while the slice is alive.
    #[inline(always)]
    pub(crate) unsafe fn whole(&self) -> &'a [T] {
        // SAFETY: the region's elements, unwritten by the caller's promise.
        unsafe { slice::from_raw_parts(self.start, self.count) }
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
