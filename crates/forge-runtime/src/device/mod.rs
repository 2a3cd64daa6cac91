//! What a device is, to the model: buffers, spans of them, and passes that run kernels over spans.
//!
//! A device owns four buffers. `Weights` is the weight file, mapped and never written. `State` holds what slots
//! remember. `Scratch` is one arena for everything that lives as long as a pass. `Rows` holds what the host says
//! of a batch, ids, slots and positions, and what it is told of it, the next ids. The model names bytes by [`Span`]; a device turns them into its own addresses.
//!
//! A [`Pass`] is what one submission does: dispatches in order, and barriers. Dispatches between two barriers may
//! run in any order or at once; a barrier makes all writes before it visible to everything after it. The model
//! places barriers itself, so every device sees the same program. One pass may have several ids written, one after the other.

pub mod kernel_cost;
pub(crate) mod offload_stats;

use crate::device::kernel_cost::KernelCost;
use crate::offload::CacheStats;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// One of a device's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The weight file, whole.
    Weights,
    /// What slots remember.
    State,
    /// What lives as long as a pass.
    Scratch,
    /// What the host says of a batch, and is told of it.
    Rows,
}

impl Buffer {
    /// Every buffer, in order.
    pub const ALL: [Buffer; 4] = [Buffer::Weights, Buffer::State, Buffer::Scratch, Buffer::Rows];

    /// Its place in [`Buffer::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name used in recordings.
    pub fn name(self) -> &'static str {
        match self {
            Buffer::Weights => "weights",
            Buffer::State => "state",
            Buffer::Scratch => "scratch",
            Buffer::Rows => "rows",
        }
    }
}

/// A typed range of bytes of a buffer. Offset and length are in bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Span<T> {
    /// Which buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    element: PhantomData<T>,
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Span<T> {}

impl<T> Span<T> {
    /// `bytes` bytes of `buffer` from `offset`.
    pub const fn new(buffer: Buffer, offset: usize, bytes: usize) -> Span<T> {
        Span { buffer, offset, bytes, element: PhantomData }
    }

    /// The same bytes, to be read by a kernel.
    pub const fn read(self) -> Binding {
        Binding { buffer: self.buffer, offset: self.offset, bytes: self.bytes, written: false }
    }

    /// The same bytes, to be written (and perhaps read) by a kernel.
    pub const fn write(self) -> Binding {
        Binding { buffer: self.buffer, offset: self.offset, bytes: self.bytes, written: true }
    }

    /// The same bytes, as bytes.
    pub const fn plane(self) -> Span<u8> {
        Span::new(self.buffer, self.offset, self.bytes)
    }

    /// The elements from `first` on, `count` of them.
    pub const fn part(self, first: usize, count: usize) -> Span<T> {
        let (start, bytes) = (first * size_of::<T>(), count * size_of::<T>());
        assert!(start + bytes <= self.bytes, "a span was asked for more than it has");
        Span::new(self.buffer, self.offset + start, bytes)
    }

    /// The first `count` elements.
    pub const fn first(self, count: usize) -> Span<T> {
        self.part(0, count)
    }
}

/// A span as a kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Which buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
    /// Whether the kernel may write it.
    pub written: bool,
}

/// One kernel of `kernels.metal`, as the host knows it. Made from the kernel's own signature.
pub struct Kernel {
    /// Its name in `kernels.metal`.
    pub name: &'static str,
    /// The names of its buffers, slot by slot; its scalars follow in the next slot as one struct of `uint`s.
    pub buffers: &'static [&'static str],
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Rows and stored columns of its matrix, where its CPU version can read that in strips.
    pub strips: Option<[usize; 2]>,
    /// What its dispatches do at least.
    pub work: KernelCost,
    /// The same mathematics on a CPU.
    pub cpu: fn(&crate::cpu::KernelArgs<'_>),
}

/// Which of a model's two programs a pass is of. They round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// That of one row, which is as fast as one row can be.
    Decode,
    /// That of any number of rows, where what a row comes to does not depend on which others come with it.
    Batch,
}

/// What one submission does.
pub trait Pass {
    /// Runs `kernel` over `groups` threadgroups. `bindings` are in the order of `kernel.buffers`.
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]);

    /// Everything after sees what everything before wrote.
    fn barrier(&mut self);

    /// GPU cores that it runs on, roughly: a row's cache is shared among threadgroups so that none is idle. 0 where one
    /// dispatch fills the device however it is cut.
    fn cores(&self) -> u32;

    /// Positions that a share of a row's cache has at least, or one that is unfolded at most, where the plan says `planned`. A device
    /// that is there to be watched takes fewer, so that short texts are shared out too.
    fn least_share(&self, planned: u32) -> u32 {
        planned
    }

    /// From how many rows of one slot on keys and values are made of latents, where the plan says `planned`; none where rows meet
    /// latents as they are, however many they are. The one is not the other to the bit, so a device on which what a row comes to
    /// must not depend on how many come with it never does; one that is there to be watched does from fewer rows on.
    fn unfolds_from(&self, planned: u32) -> Option<u32> {
        Some(planned)
    }
}

/// Additions and multiplications a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakOps {
    /// Of codes of a byte.
    pub codes: f64,
    /// Of singles.
    pub singles: f64,
}

/// How far a device writes ahead of the host, where ids are chosen on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAhead {
    /// Ids of a pass.
    pub ids: u32,
    /// Passes that have begun before the host looks at the first of them.
    pub passes: usize,
}

impl RunAhead {
    /// The host sees each id before another is begun.
    pub const NONE: RunAhead = RunAhead { ids: 1, passes: 1 };
}

/// Something that runs passes.
pub trait Device {
    /// What it is, for people: `CPU, 2 threads, AVX-512`.
    fn describe(&self) -> String;

    /// Where its kernels come from, for people, if that is not always the same.
    fn kernels(&self) -> Option<String> {
        None
    }

    /// Copies bytes into a buffer. Never called for bytes that a pass on its way touches.
    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]);

    /// Copies bytes out of a buffer. Never called for bytes that a pass on its way writes.
    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]);

    /// Runs one pass of `program` to its end.
    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String>;

    /// Begins a pass, which comes after all that have begun. A device that works by itself has it on its way and returns.
    fn begin(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.run(program, encode)
    }

    /// Waits until at most `left` passes are on their way.
    fn wait(&mut self, left: usize) -> Result<(), String> {
        let _ = left;
        Ok(())
    }

    /// Runs stretches of a pass one after another, each when all of the one before has ended; gives when each began and ended, in
    /// seconds of one clock: the device's own, where it works by itself.
    fn timed(
        &mut self,
        program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        let clock = Instant::now();
        let mut times = Vec::with_capacity(stretches);
        for stretch in 0..stretches {
            let begin = clock.elapsed().as_secs_f64();
            self.run(program, &mut |pass| encode(stretch, pass))?;
            times.push([begin, clock.elapsed().as_secs_f64()]);
        }
        Ok(times)
    }

    /// Does for about so long what later passes are faster for, and what it otherwise does as passes go on; gives how many bytes of
    /// that are done, and of how many, as long as there are more. What passes come to is the same.
    fn settle(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        let _ = within;
        Ok(None)
    }

    /// How far it is well for it to be ahead.
    fn lead(&self) -> RunAhead {
        RunAhead::NONE
    }

    /// Bytes of weights a second that it reads where it does nothing else, measured; none where it cannot tell.
    fn read_speed(&mut self) -> Result<Option<f64>, String> {
        Ok(None)
    }

    /// Additions and multiplications a second that it does at best, measured; none where it cannot tell.
    fn compute_speed(&mut self) -> Result<Option<PeakOps>, String> {
        Ok(None)
    }

    /// Bytes a second of its memory as its maker tells, where it is known and [`Device::read_speed`] cannot tell.
    fn published_speed(&self) -> Option<f64> {
        None
    }

    /// What has been read of experts so far, where they are streamed from disk.
    fn streamed(&self) -> Option<CacheStats> {
        None
    }

    /// Bytes of experts a second that the disk gives at best, measured, where they are streamed.
    fn disk_speed(&mut self) -> Result<Option<f64>, String> {
        Ok(None)
    }
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn describe(&self) -> String {
        (**self).describe()
    }

    fn kernels(&self) -> Option<String> {
        (**self).kernels()
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        (**self).write(buffer, offset, bytes);
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        (**self).read(buffer, offset, bytes);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        (**self).run(program, encode)
    }

    fn begin(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        (**self).begin(program, encode)
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        (**self).wait(left)
    }

    fn timed(
        &mut self,
        program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        (**self).timed(program, stretches, encode)
    }

    fn settle(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        (**self).settle(within)
    }

    fn lead(&self) -> RunAhead {
        (**self).lead()
    }

    fn read_speed(&mut self) -> Result<Option<f64>, String> {
        (**self).read_speed()
    }

    fn compute_speed(&mut self) -> Result<Option<PeakOps>, String> {
        (**self).compute_speed()
    }

    fn published_speed(&self) -> Option<f64> {
        (**self).published_speed()
    }

    fn streamed(&self) -> Option<CacheStats> {
        (**self).streamed()
    }

    fn disk_speed(&mut self) -> Result<Option<f64>, String> {
        (**self).disk_speed()
    }
}
