//! The device itself: four buffers in memory, and passes that run as they are encoded.

use crate::cpu::device::kernel_args::{KernelArgs, Phase, Region, ResidentExperts, Workspace};
use crate::cpu::device::peak_bandwidth::read_speed;
use crate::cpu::device::peak_flops::compute_speed;
use crate::cpu::device::thread_pool::Pool;
use crate::cpu::device::weights::Weights;
use crate::cpu::device::work_stealing::RangeCursor;
use crate::cpu::format::repacked::RepackedMatrix;
use crate::cpu::simd::isa::Isa;
use crate::cpu::simd::streaming_store::settle;
use crate::device::{Binding, Buffer, Device, Kernel, Pass, PeakOps, Schedule};
use crate::model::Layout;
use crate::offload::{
    BoundPlane, CacheStats, ExpertCache, ExpertStage, ExpertWeights, RepackJob, RouterLookahead,
};
use crate::weights::WeightFile;
use memmap2::MmapMut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A CPU, as a device.
pub struct CpuDevice {
    weights: Weights,
    /// State, scratch and rows.
    memory: [MmapMut; 3],
    pool: Pool,
    level: Isa,
    exact: bool,
    room: Mutex<Workspace>,
    /// What has been taken of each thread's items, in the round that runs.
    taken: Vec<RangeCursor>,
    /// Experts that are read from disk; none where all are among the weights.
    experts: Option<ExpertCache>,
    /// The layer that comes next, and whom it will probably ask for.
    likely: Option<(usize, Vec<usize>)>,
    /// How long the last pass took, and the one before it.
    passes: [Option<Duration>; 2],
}

impl CpuDevice {
    /// A device with the weights of `file` and buffers of `layout`'s sizes, all zero, and `threads` threads (or as
    /// many as the machine runs at once).
    pub fn new(file: &WeightFile, layout: &Layout, threads: Option<usize>) -> Result<CpuDevice, String> {
        let threads = match threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, |count| count.get()),
        };
        // Mapped rather than allocated: pages that nobody touches take no memory.
        let map = |bytes: usize, what: &str| {
            MmapMut::map_anon(bytes.max(1))
                .map_err(|error| format!("no memory for {what}, {bytes} bytes: {error}"))
        };
        Ok(CpuDevice {
            weights: Weights::new(file),
            memory: [
                map(layout.state.bytes(), "state")?,
                map(layout.scratch_bytes, "scratch")?,
                map(layout.rows_bytes, "rows")?,
            ],
            taken: (0..threads.max(1)).map(|_| RangeCursor::default()).collect(),
            pool: Pool::new(threads)?,
            level: Isa::choose()?,
            exact: false,
            room: Mutex::default(),
            experts: None,
            likely: None,
            passes: [None; 2],
        })
    }

    /// The same device with the experts of `layers` read from disk when they are chosen, into seats or, where there are none, by the
    /// system as the mapped file is touched. Its other weights are copied, so that nothing else of the file takes memory beside, and
    /// these of their matrices come to lie in strips; none if it is exact.
    pub fn with_experts_on_disk(
        mut self,
        file: &WeightFile,
        layers: &[ExpertWeights],
        streamed: Option<ExpertCache>,
        matrices: Vec<RepackedMatrix>,
    ) -> CpuDevice {
        let places = ExpertWeights::places(layers);
        let is_copied = |matrix: &RepackedMatrix| {
            let starts = matrix.starts();
            !places.iter().any(|place| starts.iter().any(|start| place.contains(start)))
        };
        let matrices = if self.exact { Vec::new() } else { matrices };
        let matrices = matrices.into_iter().filter(is_copied).collect();
        self.weights.copy(file, places, matrices);
        self.experts = streamed;
        self
    }

    /// The same device with nothing rounded that is multiplied: rows of x stay f32, whatever weights are.
    pub fn exact(mut self, exact: bool) -> CpuDevice {
        self.exact = exact;
        self
    }

    /// The same device whose weights are copied to huge pages as it computes, where such can be had, and these of their matrices come
    /// to lie in strips; none if it is exact.
    pub fn with_copied_weights(mut self, file: &WeightFile, matrices: Vec<RepackedMatrix>) -> CpuDevice {
        self.weights.copy(file, Vec::new(), if self.exact { Vec::new() } else { matrices });
        self
    }

    /// The same device with other instructions.
    pub fn with_level(mut self, level: Isa) -> CpuDevice {
        self.level = level;
        self
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn memory(&mut self, buffer: Buffer) -> Option<&mut MmapMut> {
        match buffer {
            Buffer::Weights => None,
            Buffer::State => Some(&mut self.memory[0]),
            Buffer::Scratch => Some(&mut self.memory[1]),
            Buffer::Rows => Some(&mut self.memory[2]),
        }
    }

    /// The memory of a binding, or what is wrong with it.
    fn region(&mut self, binding: &Binding) -> Result<Region, String> {
        let Binding { buffer, offset, bytes, written } = *binding;
        let end = offset.saturating_add(bytes);
        let (place, length) = match self.memory(buffer) {
            Some(memory) => {
                let start = memory.as_mut_ptr().wrapping_add(offset);
                ((end <= memory.len()).then_some((start, false)), memory.len())
            }
            None if written => return Err("weights are never written".to_owned()),
            None => {
                let place = self.weights.place(offset..end);
                (place.map(|it| (it.start.cast_mut(), it.strips)), self.weights.file().len())
            }
        };
        let (start, strips) = place
            .ok_or_else(|| format!("bytes {offset}..+{bytes} of {}, which has {length}", buffer.name()))?;
        Ok(Region { start, bytes, written, strips })
    }

    /// What lies in seats of a plane of experts, if that is bound.
    fn bound(&mut self, binding: &Binding) -> Option<BoundPlane> {
        let experts = self.experts.as_mut().filter(|_| binding.buffer == Buffer::Weights)?;
        experts.bound(binding.offset)
    }

    /// Runs a dispatch; where it is of a router and experts are streamed, after the next layer's router has been shown the same.
    fn dispatch(
        &mut self,
        program: Schedule,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
    ) -> Result<(), String> {
        let rows = scalars.first().map_or(0, |rows| *rows as usize);
        let foresight = self.experts.as_ref().and_then(|it| RouterLookahead::of(it.layers(), bindings, rows));
        if let Some(foresight) = foresight {
            // Its logits lie where the router's own will.
            self.run_rounds(program, kernel, &foresight.bindings, scalars)?;
            let Binding { buffer, offset, bytes, .. } = foresight.bindings[foresight.logits];
            let mut said = vec![0; bytes];
            self.read(buffer, offset, &mut said);
            let logits: Vec<f32> =
                said.as_chunks::<4>().0.iter().map(|logit| f32::from_ne_bytes(*logit)).collect();
            let stacks = self.experts.as_ref().map(|experts| experts.stacks(foresight.layer));
            self.likely = stacks.map(|stacks| (foresight.layer, foresight.likeliest(stacks, &logits)));
        }
        self.run_rounds(program, kernel, bindings, scalars)
    }

    fn run_rounds(
        &mut self,
        program: Schedule,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
    ) -> Result<(), String> {
        let mut regions = Vec::with_capacity(bindings.len());
        let mut stack = None;
        for binding in bindings {
            let region = self.region(binding)?;
            let bound = self.bound(binding);
            // Where a plane of experts is bound, those that have seats are.
            regions.push(bound.map_or(region, |it| Region {
                start: it.start,
                bytes: it.bytes,
                written: false,
                strips: false,
            }));
            stack = stack.or(bound);
        }
        let mut round = Phase {
            kernel,
            regions: &regions,
            scalars,
            workers: self.pool.threads(),
            level: self.level,
            exact: self.exact,
            program,
            number: 0,
            taken: &self.taken,
            another: AtomicBool::new(false),
            room: &self.room,
            seated: stack.zip(self.experts.as_ref()).map(|(stack, experts)| ResidentExperts {
                seats: vec![0; experts.experts(stack.layer)],
                in_strips: vec![false; experts.experts(stack.layer)],
                at_once: experts.at_once(stack.layer),
                count: experts.seats(stack.layer),
                asked: Mutex::default(),
                coming: Vec::new(),
                here: Vec::new(),
                begun: 0,
            }),
        };
        loop {
            self.taken.iter().for_each(|RangeCursor(taken)| taken.store(0, Ordering::Relaxed));
            let job = Job(&round);
            self.pool.run(&|worker| job.run(worker))?;
            if !round.another.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let (Some(seated), Some(stack), Some(experts)) = (&mut round.seated, stack, &mut self.experts)
            {
                let asked = std::mem::take(seated.asked.get_mut().unwrap_or_else(PoisonError::into_inner));
                if !asked.is_empty() {
                    let found = experts.ask(stack, &asked, &mut seated.seats)?;
                    if let Some((layer, likely)) = self.likely.take_if(|_| stack.half == ExpertStage::Inner) {
                        experts.expect(layer, &likely)?;
                    }
                    arrange(&mut self.pool, &found)?;
                    for expert in &asked {
                        seated.in_strips[*expert] = experts.is_arranged(stack, *expert);
                    }
                    seated.coming.extend(asked);
                }
                if !seated.coming.is_empty() {
                    // Those who are there are multiplied while others are read.
                    seated.here = experts.arrived(stack, &mut seated.coming)?;
                    seated.begun += seated.here.len();
                }
            }
            round.number += 1;
            round.another = AtomicBool::new(false);
        }
    }
}

/// Has all threads arrange what is in the file's order, each some pieces of it.
fn arrange(pool: &mut Pool, some: &[RepackJob]) -> Result<(), String> {
    if some.is_empty() {
        return Ok(());
    }
    let taken = AtomicUsize::new(0);
    pool.run(&|_| {
        let mut room = Vec::new();
        while let Some(piece) = some.get(taken.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: this thread alone has the piece, and no kernel runs.
            unsafe { piece.arrange(&mut room) };
        }
    })
}

/// A round of a dispatch, as threads are given it.
struct Job<'a>(&'a Phase<'a>);

// SAFETY: the regions' pointers go to memory that outlives the dispatch; kernels write it only through
// `Output::part`, whose promise is that parts are not shared.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    fn run(&self, worker: usize) {
        // SAFETY: regions were checked against their buffers, which the device owns until the pass has ended; that
        // a model's dispatches do not write what they read elsewhere is the compiler's promise.
        let call = unsafe { KernelArgs::new(self.0, worker) };
        (self.0.kernel.cpu)(&call);
        settle();
    }
}

/// A pass that has not failed yet, or why it has.
struct Running<'a> {
    device: &'a mut CpuDevice,
    program: Schedule,
    outcome: Result<(), String>,
}

impl Pass for Running<'_> {
    fn dispatch(
        &mut self,
        kernel: &'static Kernel,
        bindings: &[Binding],
        scalars: &[u32],
        _groups: [u32; 3],
    ) {
        if self.outcome.is_ok() {
            self.outcome = self
                .device
                .dispatch(self.program, kernel, bindings, scalars)
                .map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn cores(&self) -> u32 {
        0
    }

    fn unfolds_from(&self, _planned: u32) -> Option<u32> {
        None
    }

    // Dispatches run to their end one after another.
    fn barrier(&mut self) {}
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        let threads = self.threads();
        let s = if threads == 1 { "" } else { "s" };
        format!("CPU, {threads} thread{s}, {}", self.level.title())
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        if let Some(memory) = self.memory(buffer) {
            memory[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        let weights = self.weights.file();
        let from: &[u8] = match self.memory(buffer) {
            Some(memory) => memory,
            None => &weights,
        };
        bytes.copy_from_slice(&from[offset..offset + bytes.len()]);
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        // The first pass is all that the first id waits for, and what ids take is known of the second. From then on weights are copied
        // for as long as passes take: that ends soon, and a text that ends sooner has waited no longer than it was computed.
        if let [Some(last), Some(before)] = self.passes {
            self.weights.go_on(&mut self.pool, last.min(before))?;
        }
        let begun = Instant::now();
        let mut running = Running { device: self, program, outcome: Ok(()) };
        encode(&mut running);
        let outcome = running.outcome;
        self.passes = [Some(begun.elapsed()), self.passes[0]];
        outcome
    }

    fn settle(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        self.weights.go_on(&mut self.pool, within)
    }

    fn read_speed(&mut self) -> Result<Option<f64>, String> {
        // Where experts are streamed, what there is of them among the weights is no memory.
        self.weights.all().map_or(Ok(None), |weights| read_speed(weights, self.level, &mut self.pool))
    }

    fn compute_speed(&mut self) -> Result<Option<PeakOps>, String> {
        compute_speed(self.level, &mut self.pool).map(Some)
    }

    fn streamed(&self) -> Option<CacheStats> {
        self.experts.as_ref().map(ExpertCache::counts)
    }

    fn disk_speed(&mut self) -> Result<Option<f64>, String> {
        self.experts.as_mut().map(ExpertCache::disk_speed).transpose()
    }
}
