//! [`CpuDevice`]: four buffers in memory. Each dispatch runs when it is encoded.

use crate::cpu::device::kernel_args::{KernelArgs, Phase, Region, ResidentExperts, Workspace};
use crate::cpu::device::peak_bandwidth::read_speed;
use crate::cpu::device::peak_flops::compute_speed;
use crate::cpu::device::thread_pool::Pool;
use crate::cpu::device::weights::Weights;
use crate::cpu::device::work_stealing::RangeCursor;
use crate::cpu::format::repacked::RepackedMatrix;
use crate::cpu::simd::isa::Isa;
use crate::cpu::simd::streaming_store::store_fence;
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

/// The CPU as a [`Device`].
pub struct CpuDevice {
    weights: Weights,
    /// The `State`, `Scratch` and `Rows` buffers.
    memory: [MmapMut; 3],
    pool: Pool,
    level: Isa,
    exact: bool,
    workspace: Mutex<Workspace>,
    /// The claimed part of each thread's range in the current phase.
    claimed: Vec<RangeCursor>,
    /// The expert cache; none if all experts are resident.
    experts: Option<ExpertCache>,
    /// The next MoE layer and its predicted experts.
    predicted: Option<(usize, Vec<usize>)>,
    /// Durations of the last pass and of the one before it.
    passes: [Option<Duration>; 2],
}

impl CpuDevice {
    /// Creates a device with the weights of `file`, zeroed buffers of `layout`'s sizes and `threads` threads
    /// (default: the available parallelism).
    pub fn new(file: &WeightFile, layout: &Layout, threads: Option<usize>) -> Result<CpuDevice, String> {
        let threads = match threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, |count| count.get()),
        };
        // Mapped rather than allocated: untouched pages take no memory.
        let map = |bytes: usize, what: &str| {
            MmapMut::map_anon(bytes.max(1))
                .map_err(|error| format!("cannot allocate {bytes} bytes for {what}: {error}"))
        };
        Ok(CpuDevice {
            weights: Weights::new(file),
            memory: [
                map(layout.state.bytes(), "state")?,
                map(layout.scratch_bytes, "scratch")?,
                map(layout.rows_bytes, "rows")?,
            ],
            claimed: (0..threads.max(1)).map(|_| RangeCursor::default()).collect(),
            pool: Pool::new(threads)?,
            level: Isa::choose()?,
            exact: false,
            workspace: Mutex::default(),
            experts: None,
            predicted: None,
            passes: [None; 2],
        })
    }

    /// Reads the experts of `layers` from disk: into the cache `streamed`, or without one through the mapped
    /// file. All other weights are copied, so that no other page of the file stays in memory. `matrices` are
    /// repacked, unless the device is exact.
    pub fn with_experts_on_disk(
        mut self,
        file: &WeightFile,
        layers: &[ExpertWeights],
        streamed: Option<ExpertCache>,
        matrices: Vec<RepackedMatrix>,
    ) -> CpuDevice {
        let places = ExpertWeights::record_ranges(layers);
        let is_copied = |matrix: &RepackedMatrix| {
            let starts = matrix.starts();
            !places.iter().any(|place| starts.iter().any(|start| place.contains(start)))
        };
        let matrices = if self.is_exact() { Vec::new() } else { matrices };
        let matrices = matrices.into_iter().filter(is_copied).collect();
        self.weights.copy(file, places, matrices);
        self.experts = streamed;
        self
    }

    /// Disables activation quantization if `exact`: activations stay f32 for all weight formats.
    pub fn exact(mut self, exact: bool) -> CpuDevice {
        self.exact = exact;
        self
    }

    /// Whether activations stay f32: as requested, or because the instruction set has no int8 products.
    pub fn is_exact(&self) -> bool {
        self.exact || !self.level.has_int8()
    }

    /// Copies the weights to huge pages, where available, as passes run. `matrices` are repacked, unless the
    /// device is exact.
    pub fn with_copied_weights(mut self, file: &WeightFile, matrices: Vec<RepackedMatrix>) -> CpuDevice {
        self.weights.copy(file, Vec::new(), if self.is_exact() { Vec::new() } else { matrices });
        self
    }

    /// Sets the instruction set.
    pub fn with_level(mut self, level: Isa) -> CpuDevice {
        self.level = level;
        self
    }

    /// The number of threads.
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

    /// Resolves a binding to memory.
    fn region(&mut self, binding: &Binding) -> Result<Region, String> {
        let Binding { buffer, offset, bytes, written } = *binding;
        let end = offset.saturating_add(bytes);
        let (place, length) = match self.memory(buffer) {
            Some(memory) => {
                let start = memory.as_mut_ptr().wrapping_add(offset);
                ((end <= memory.len()).then_some((start, false)), memory.len())
            }
            None if written => return Err("the weights buffer is read-only".to_owned()),
            None => {
                let place = self.weights.place(offset..end);
                (place.map(|it| (it.start.cast_mut(), it.strips)), self.weights.file().len())
            }
        };
        let (start, strips) = place.ok_or_else(|| {
            format!("bytes {offset}..+{bytes} are out of range: buffer {} has {length} bytes", buffer.name())
        })?;
        Ok(Region { start, bytes, written, strips })
    }

    /// The cached plane of an expert stack, if `binding` is one.
    fn bound(&mut self, binding: &Binding) -> Option<BoundPlane> {
        let experts = self.experts.as_mut().filter(|_| binding.buffer == Buffer::Weights)?;
        experts.plane_at(binding.offset)
    }

    /// Runs a dispatch. For a router with streamed experts, it first runs the next layer's router on the same
    /// input, to predict experts.
    fn dispatch(
        &mut self,
        schedule: Schedule,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
    ) -> Result<(), String> {
        let rows = scalars.first().map_or(0, |rows| *rows as usize);
        let lookahead = self.experts.as_ref().and_then(|it| RouterLookahead::of(it.layers(), bindings, rows));
        if let Some(lookahead) = lookahead {
            // The prediction's logits are overwritten by the router's own afterwards.
            self.run_phases(schedule, kernel, &lookahead.bindings, scalars)?;
            let Binding { buffer, offset, bytes, .. } = lookahead.bindings[lookahead.logits];
            let mut raw_logits = vec![0; bytes];
            self.read(buffer, offset, &mut raw_logits);
            let logits: Vec<f32> =
                raw_logits.as_chunks::<4>().0.iter().map(|logit| f32::from_ne_bytes(*logit)).collect();
            let stacks = self.experts.as_ref().map(|experts| experts.weights_of(lookahead.layer));
            self.predicted = stacks.map(|stacks| (lookahead.layer, lookahead.predict(stacks, &logits)));
        }
        self.run_phases(schedule, kernel, bindings, scalars)
    }

    fn run_phases(
        &mut self,
        schedule: Schedule,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
    ) -> Result<(), String> {
        let mut regions = Vec::with_capacity(bindings.len());
        let mut stack = None;
        for binding in bindings {
            let region = self.region(binding)?;
            let bound = self.bound(binding);
            // An expert plane is bound to its cache slots.
            regions.push(bound.map_or(region, |it| Region {
                start: it.start,
                bytes: it.bytes,
                written: false,
                strips: false,
            }));
            stack = stack.or(bound);
        }
        let mut phase = Phase {
            kernel,
            regions: &regions,
            scalars,
            workers: self.pool.threads(),
            level: self.level,
            exact: self.is_exact(),
            schedule,
            index: 0,
            claimed: &self.claimed,
            has_next: AtomicBool::new(false),
            workspace: &self.workspace,
            resident: stack.zip(self.experts.as_ref()).map(|(stack, experts)| ResidentExperts {
                slots: vec![0; experts.experts(stack.layer)],
                is_repacked: vec![false; experts.experts(stack.layer)],
                at_once: experts.capacity(stack.layer),
                count: experts.slots(stack.layer),
                requested: Mutex::default(),
                pending: Vec::new(),
                ready: Vec::new(),
                computed: 0,
            }),
        };
        loop {
            self.claimed.iter().for_each(|RangeCursor(claimed)| claimed.store(0, Ordering::Relaxed));
            let job = Job(&phase);
            self.pool.run(&|worker| job.run(worker))?;
            if !phase.has_next.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let (Some(resident), Some(stack), Some(experts)) =
                (&mut phase.resident, stack, &mut self.experts)
            {
                let requested =
                    std::mem::take(resident.requested.get_mut().unwrap_or_else(PoisonError::into_inner));
                if !requested.is_empty() {
                    let found = experts.request(stack, &requested, &mut resident.slots)?;
                    if let Some((layer, predicted)) =
                        self.predicted.take_if(|_| stack.stage == ExpertStage::GateUp)
                    {
                        experts.prefetch(layer, &predicted)?;
                    }
                    arrange(&mut self.pool, &found)?;
                    for expert in &requested {
                        resident.is_repacked[*expert] = experts.is_repacked(stack, *expert);
                    }
                    resident.pending.extend(requested);
                }
                if !resident.pending.is_empty() {
                    // Cached experts are computed while others are read.
                    resident.ready = experts.wait_any(stack, &mut resident.pending)?;
                    resident.computed += resident.ready.len();
                }
            }
            phase.index += 1;
            phase.has_next = AtomicBool::new(false);
        }
    }
}

/// Repacks `some` expert matrices on all threads.
fn arrange(pool: &mut Pool, some: &[RepackJob]) -> Result<(), String> {
    if some.is_empty() {
        return Ok(());
    }
    let claimed = AtomicUsize::new(0);
    pool.run(&|_| {
        let mut workspace = Vec::new();
        while let Some(piece) = some.get(claimed.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: only this thread has the piece, and no kernel runs.
            unsafe { piece.run(&mut workspace) };
        }
    })
}

/// One phase of a dispatch, shared by all threads.
struct Job<'a>(&'a Phase<'a>);

// SAFETY: regions point to memory that outlives the dispatch. Kernels write it only through `Output::part`,
// whose contract is that parts do not overlap.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    fn run(&self, worker: usize) {
        // SAFETY: regions were checked against their buffers, which the device owns until the pass ends. The
        // compiler ensures that no dispatch writes bytes that it also reads.
        let call = unsafe { KernelArgs::new(self.0, worker) };
        (self.0.kernel.cpu)(&call);
        store_fence();
    }
}

/// A pass being encoded, and its first error.
struct CpuPass<'a> {
    device: &'a mut CpuDevice,
    schedule: Schedule,
    outcome: Result<(), String>,
}

impl Pass for CpuPass<'_> {
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
                .dispatch(self.schedule, kernel, bindings, scalars)
                .map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn gpu_cores(&self) -> u32 {
        0
    }

    fn mla_expand_min_rows(&self, _planned: u32) -> Option<u32> {
        None
    }

    // Dispatches run to completion in order.
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

    fn run(&mut self, schedule: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        // The first pass determines the time to first token, and the second measures the time of one token.
        // From then on, each pass is preceded by as much copying as the shorter of the last two passes took.
        // Copying therefore at most doubles the time of a short completion.
        if let [Some(last), Some(before)] = self.passes {
            self.weights.go_on(&mut self.pool, last.min(before))?;
        }
        let computed = Instant::now();
        let mut running = CpuPass { device: self, schedule, outcome: Ok(()) };
        encode(&mut running);
        let outcome = running.outcome;
        self.passes = [Some(computed.elapsed()), self.passes[0]];
        outcome
    }

    fn finish_background_work(&mut self, within: Duration) -> Result<Option<[usize; 2]>, String> {
        self.weights.go_on(&mut self.pool, within)
    }

    fn measure_read_bandwidth(&mut self) -> Result<Option<f64>, String> {
        // Streamed experts are not in memory, so they cannot be measured.
        self.weights.all().map_or(Ok(None), |weights| read_speed(weights, self.level, &mut self.pool))
    }

    fn measure_peak_ops(&mut self) -> Result<Option<PeakOps>, String> {
        compute_speed(self.level, &mut self.pool).map(Some)
    }

    fn expert_cache_stats(&self) -> Option<CacheStats> {
        self.experts.as_ref().map(ExpertCache::stats)
    }

    fn measure_disk_bandwidth(&mut self) -> Result<Option<f64>, String> {
        self.experts.as_mut().map(ExpertCache::measure_disk_bandwidth).transpose()
    }
}
