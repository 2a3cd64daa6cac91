//! Device interface: buffers, typed byte ranges of buffers, and passes that dispatch kernels.
//!
//! A device owns four buffers. `Weights` is the mapped weight file, read-only. `State` holds the KV caches
//! and recurrent states of all slots. `Scratch` is one arena for everything that lives as long as a pass.
//! `Rows` holds the batch's token ids, slots and positions from the host, and the next token ids from the
//! device. The model refers to bytes by [`Span`], and a device translates them to its own addresses.
//!
//! A [`Pass`] is one submission: dispatches and barriers in order. Dispatches between two barriers may run in
//! any order or concurrently. A barrier makes all earlier writes visible to everything after it. The model
//! places the barriers, so every device runs the same schedule. One pass may decode several tokens, one after
//! another.

pub mod kernel_choice;
pub mod kernel_cost;
pub(crate) mod offload_stats;

use crate::device::kernel_cost::KernelCost;
use crate::offload::CacheStats;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// A device buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The whole weight file.
    Weights,
    /// KV caches and recurrent states of all slots.
    State,
    /// The arena of data that lives as long as a pass.
    Scratch,
    /// Batch inputs from the host and next token ids from the device.
    Rows,
}

impl Buffer {
    /// All buffers, by index.
    pub const ALL: [Buffer; 4] = [Buffer::Weights, Buffer::State, Buffer::Scratch, Buffer::Rows];

    /// The index in [`Buffer::ALL`].
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

/// A typed byte range of a buffer. Offset and length are in bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Span<T> {
    /// The buffer.
    pub buffer: Buffer,
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
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
    /// Creates the span of `bytes` bytes at `offset` of `buffer`.
    pub const fn new(buffer: Buffer, offset: usize, bytes: usize) -> Span<T> {
        Span { buffer, offset, bytes, element: PhantomData }
    }

    /// A read-only kernel argument for this span.
    pub const fn read(self) -> Binding {
        Binding { buffer: self.buffer, offset: self.offset, bytes: self.bytes, written: false }
    }

    /// A kernel argument for this span that the kernel may write (and read).
    pub const fn write(self) -> Binding {
        Binding { buffer: self.buffer, offset: self.offset, bytes: self.bytes, written: true }
    }

    /// The same range as untyped bytes.
    pub const fn plane(self) -> Span<u8> {
        Span::new(self.buffer, self.offset, self.bytes)
    }

    /// The `count` elements that start at element `first`.
    pub const fn part(self, first: usize, count: usize) -> Span<T> {
        let (start, bytes) = (first * size_of::<T>(), count * size_of::<T>());
        assert!(start + bytes <= self.bytes, "span range out of bounds");
        Span::new(self.buffer, self.offset + start, bytes)
    }

    /// The first `count` elements.
    pub const fn first(self, count: usize) -> Span<T> {
        self.part(0, count)
    }
}

/// A span bound as a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The buffer.
    pub buffer: Buffer,
    /// Offset of the first byte.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether the kernel may write it.
    pub written: bool,
}

/// Host-side description of one kernel of `kernels.metal`, generated from the kernel's signature.
pub struct Kernel {
    /// The name in `kernels.metal`.
    pub name: &'static str,
    /// Buffer names by slot. The scalars follow in the next slot, as one struct of `uint`s.
    pub buffers: &'static [&'static str],
    /// Threads per threadgroup.
    pub threads: u32,
    /// Rows and stored columns of the kernel's matrix, if its CPU version can read repacked weights.
    pub strips: Option<[usize; 2]>,
    /// Lower bound of the memory traffic and operations of a dispatch.
    pub cost: KernelCost,
    /// The CPU implementation of the same kernel.
    pub cpu: fn(&crate::cpu::KernelArgs<'_>),
}

/// The schedule that a pass belongs to. The two schedules round differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The schedule for one row, or for several rows of different slots, optimized for latency. The result of a
    /// row does not depend on the other rows.
    Decode,
    /// The schedule for any number of rows. It is batch-invariant: a row's result does not depend on the
    /// other rows.
    Batch,
}

/// Encoder of one submission.
pub trait Pass {
    /// Dispatches `kernel` over `groups` threadgroups. `bindings` are in the order of `kernel.buffers`.
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]);

    /// Makes all earlier writes visible to all later dispatches.
    fn barrier(&mut self);

    /// Sets the largest position plus 1 of the rows that follow, from which a device predicts the time of
    /// attention.
    fn set_max_length(&mut self, max_length: u32) {
        let _ = max_length;
    }

    /// Approximate number of GPU cores, used to choose the KV split. 0 if one dispatch fills the device at
    /// any split.
    fn gpu_cores(&self) -> u32;

    /// Minimum number of positions in a KV split, or maximum number in an MLA expansion tile, where the plan
    /// has `planned`. Checking devices return less, so that short sequences are split too.
    fn min_kv_split(&self, planned: u32) -> u32 {
        planned
    }

    /// Minimum number of rows of one slot from which MLA expands latents to keys and values, where the plan
    /// has `planned`. None: always use the absorbed form. The two forms are not bitwise identical, so a
    /// batch-invariant device never expands. Checking devices expand from fewer rows on.
    fn mla_expand_min_rows(&self, planned: u32) -> Option<u32> {
        Some(planned)
    }
}

/// Peak arithmetic throughput, in additions plus multiplications per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakOps {
    /// With int8 operands, if activations are quantized.
    pub int8: Option<f64>,
    /// With f32 operands.
    pub f32: f64,
}

/// How far a device decodes ahead of the host when it samples tokens itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAhead {
    /// Tokens per pass.
    pub tokens_per_pass: u32,
    /// Passes in flight before the host reads the first one.
    pub passes: usize,
}

impl RunAhead {
    /// No run-ahead: the host reads each token before the next pass begins.
    pub const NONE: RunAhead = RunAhead { tokens_per_pass: 1, passes: 1 };
}

/// A compute device that runs passes.
pub trait Device {
    /// A short description for users: `CPU, 2 threads, AVX-512`.
    fn describe(&self) -> String;

    /// The origin of the kernels, for users, if a device has more than one.
    fn kernels(&self) -> Option<String> {
        None
    }

    /// Copies `bytes` into a buffer. Never called for bytes that a pass in flight uses.
    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]);

    /// Copies bytes out of a buffer. Never called for bytes that a pass in flight writes.
    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]);

    /// Runs one pass of `program` and waits for its end.
    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String>;

    /// Submits a pass, to run after all submitted ones. An asynchronous device returns while the pass is in
    /// flight.
    fn begin(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.run(program, encode)
    }

    /// Waits until at most `left` passes are in flight.
    fn wait(&mut self, left: usize) -> Result<(), String> {
        let _ = left;
        Ok(())
    }

    /// Runs the `stretches` parts of a pass one after another, each after the end of the previous one.
    /// Returns the begin and end time of each part in seconds. The clock is the device's own on an
    /// asynchronous device.
    fn time_parts(
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

    /// Whether a decode pass may have rows of several slots. If not, an engine with several slots uses only
    /// the batch schedule, which has to be batch-invariant on this device.
    fn decodes_batches(&self) -> bool {
        false
    }

    /// Continues background work that makes later passes faster, for about `within`. Otherwise the work
    /// advances as passes run. Returns the finished and total bytes while work remains. Results of passes do
    /// not change.
    fn finish_background_work(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        let _ = within;
        Ok(None)
    }

    /// Whether a prefill pass is submitted while the one before it is in flight.
    fn overlaps_prefill(&self) -> bool {
        false
    }

    /// The preferred run-ahead depth.
    fn run_ahead(&self) -> RunAhead {
        RunAhead::NONE
    }

    /// Measured read bandwidth of the weights in bytes per second; none if it cannot be measured.
    fn measure_read_bandwidth(&mut self) -> Result<Option<f64>, String> {
        Ok(None)
    }

    /// Measured peak arithmetic throughput; none if it cannot be measured.
    fn measure_peak_ops(&mut self) -> Result<Option<PeakOps>, String> {
        Ok(None)
    }

    /// The vendor's memory bandwidth in bytes per second, if it is known and [`Device::measure_read_bandwidth`] returns
    /// none.
    fn published_bandwidth(&self) -> Option<f64> {
        None
    }

    /// Number of dispatches that the device has completed, if it counts them. Tests on a GPU check it, so that
    /// a test without work cannot pass.
    fn completed_dispatches(&self) -> Option<u64> {
        None
    }

    /// Requests again that the device's memory stays resident, and returns whether the device needs such
    /// requests. An idle program makes one every [`RESIDENCY_INTERVAL`].
    fn renew_residency(&mut self) -> bool {
        false
    }

    /// Expert cache counters, if experts are streamed from disk.
    fn expert_cache_stats(&self) -> Option<CacheStats> {
        None
    }

    /// Measured peak disk bandwidth for expert reads in bytes per second, if experts are streamed.
    fn measure_disk_bandwidth(&mut self) -> Result<Option<f64>, String> {
        Ok(None)
    }
}

/// Time between two calls of [`Device::renew_residency`] while no pass runs.
pub const RESIDENCY_INTERVAL: Duration = Duration::from_millis(500);

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

    fn decodes_batches(&self) -> bool {
        (**self).decodes_batches()
    }

    fn time_parts(
        &mut self,
        program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        (**self).time_parts(program, stretches, encode)
    }

    fn finish_background_work(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        (**self).finish_background_work(within)
    }

    fn overlaps_prefill(&self) -> bool {
        (**self).overlaps_prefill()
    }

    fn run_ahead(&self) -> RunAhead {
        (**self).run_ahead()
    }

    fn measure_read_bandwidth(&mut self) -> Result<Option<f64>, String> {
        (**self).measure_read_bandwidth()
    }

    fn measure_peak_ops(&mut self) -> Result<Option<PeakOps>, String> {
        (**self).measure_peak_ops()
    }

    fn published_bandwidth(&self) -> Option<f64> {
        (**self).published_bandwidth()
    }

    fn completed_dispatches(&self) -> Option<u64> {
        (**self).completed_dispatches()
    }

    fn renew_residency(&mut self) -> bool {
        (**self).renew_residency()
    }

    fn expert_cache_stats(&self) -> Option<CacheStats> {
        (**self).expert_cache_stats()
    }

    fn measure_disk_bandwidth(&mut self) -> Result<Option<f64>, String> {
        (**self).measure_disk_bandwidth()
    }
}
