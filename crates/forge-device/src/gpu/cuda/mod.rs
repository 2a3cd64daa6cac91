//! CUDA device: an NVIDIA GPU that runs the same kernels, translated from `kernels.metal` to PTX when the
//! model was compiled.
//!
//! Weights are copied to GPU memory once, when the device is created; state and scratch exist only there. The
//! host collects a batch's inputs in pinned memory and sends them before each pass in one copy. Passes run on
//! one stream, in launch order; `cuda_graph` starts repeated passes as one CUDA graph. An event after each
//! pass marks its end. While passes are in flight, results are read on a second stream, which does not wait
//! for them. Errors carry the driver's own text.

pub(crate) mod cuda_graph;
pub(crate) mod driver;
pub(crate) mod event_timing;
pub(crate) mod gpu;

use crate::device::{Binding, Buffer, Device, Kernel, Pass, RunAhead, Schedule};
use crate::gpu::cuda::cuda_graph::{LaunchList, PassLauncher};
use crate::gpu::cuda::driver::{Address, Driver, Handle, call};
use crate::gpu::cuda::gpu::Gpu;
use crate::model::Layout;
use crate::program::Ptx;
use crate::weights::WeightFile;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

/// Weights are copied in pieces, to report progress.
const PIECE: usize = 64 << 20;

/// Maximum grid size in y and z.
const MAX_GRID_YZ: u32 = 65535;

/// `CU_STREAM_NON_BLOCKING`: the stream does not synchronize with the default stream.
const NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`
const UNTIMED: u32 = 2;

/// An NVIDIA GPU as a [`Device`].
pub struct CudaDevice {
    driver: Driver,
    gpu: Gpu,
    module: Handle,
    stream: Handle,
    /// Stream on which the host reads while passes are in flight.
    reader: Handle,
    /// End events of the passes in flight, oldest first.
    in_flight: VecDeque<Handle>,
    functions: HashMap<&'static str, Handle>,
    /// Address and size in bytes of weights, state, scratch and rows, in the order of [`Buffer::ALL`].
    buffers: [(Address, usize); 4],
    /// Batch inputs in pinned host memory. The host does not overwrite bytes that a pass in flight still has
    /// to copy.
    rows: Handle,
    /// Byte range of `rows` that is not yet on the GPU.
    unsent: std::ops::Range<usize>,
    launches: LaunchList,
    launcher: PassLauncher,
}

/// A description of this machine's GPU, if one of the PTX modules `texts` supports it; otherwise the reason.
pub fn find_gpu(texts: &[Ptx]) -> Result<String, String> {
    let gpu = Gpu::first(&Driver::load()?)?;
    gpu.best_of(texts)?;
    Ok(gpu.to_string())
}

impl CudaDevice {
    /// Compiles the newest of the PTX modules `texts` that the GPU supports, and allocates buffers of
    /// `layout`'s sizes. `copied` receives the copied and total bytes of the weights.
    pub fn new(
        texts: &[Ptx],
        kernels: &[&'static Kernel],
        file: &WeightFile,
        layout: &Layout,
        copied: &mut dyn FnMut(usize, usize),
    ) -> Result<CudaDevice, String> {
        let driver = Driver::load()?;
        let gpu = Gpu::first(&driver)?;
        let mut context = null_mut();
        // SAFETY: the driver writes a handle, which is released when the device is dropped.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain, &mut context, gpu.device)? };
        // From here on, `Drop` releases everything, also after an error.
        let mut device = CudaDevice {
            driver,
            gpu,
            module: null_mut(),
            stream: null_mut(),
            reader: null_mut(),
            in_flight: VecDeque::new(),
            functions: HashMap::new(),
            buffers: [(0, 0); 4],
            rows: null_mut(),
            unsent: 0..0,
            launches: LaunchList::default(),
            launcher: PassLauncher::default(),
        };
        let driver = &device.driver;
        // SAFETY: the context is the GPU's, and the driver writes handles to valid places.
        unsafe {
            call!(driver, cuCtxSetCurrent, context)?;
            call!(driver, cuStreamCreate, &mut device.stream, 0)?;
            call!(driver, cuStreamCreate, &mut device.reader, NON_BLOCKING)?;
        }
        let ptx = device.gpu.best_of(texts)?;
        device.translate(ptx.text, kernels)?;
        device.launcher.kernels_wait = ptx.waits;
        let weights = file.map();
        let sizes = [weights.len(), layout.state.bytes(), layout.scratch_bytes, layout.rows_bytes];
        device.allocate(sizes)?;
        for (index, piece) in weights.chunks(PIECE).enumerate() {
            let (start, driver) = (index * PIECE, &device.driver);
            let to = device.buffers[0].0 + start as u64;
            // SAFETY: the buffer is as long as the file.
            unsafe { call!(driver, cuMemcpyHtoD_v2, to, piece.as_ptr().cast(), piece.len())? };
            copied(start + piece.len(), weights.len());
        }
        Ok(device)
    }

    /// Loads the PTX and looks up a function for each kernel.
    fn translate(&mut self, text: &str, kernels: &[&'static Kernel]) -> Result<(), String> {
        /// `CU_JIT_ERROR_LOG_BUFFER` and `…_SIZE_BYTES`
        const LOG: [i32; 2] = [5, 6];
        let ptx = CString::new(text).map_err(|_| "the PTX contains a NUL byte".to_owned())?;
        let mut log = vec![0_u8; 8192];
        let (mut which, mut values) = (LOG, [log.as_mut_ptr().cast::<c_void>(), log.len() as Handle]);
        let driver = &self.driver;
        // SAFETY: the text is zero-terminated; there are two options and two values, and the log has the
        // given size.
        let loaded = unsafe {
            let (options, values) = (which.as_mut_ptr(), values.as_mut_ptr());
            call!(driver, cuModuleLoadDataEx, &mut self.module, ptx.as_ptr().cast(), 2, options, values)
        };
        loaded.map_err(|error| {
            let log = String::from_utf8_lossy(&log);
            format!("{}: the driver rejected the PTX: {error}\n{}", self.gpu, log.trim_end_matches('\0'))
        })?;
        for kernel in kernels {
            let mut function = null_mut();
            let name =
                CString::new(kernel.name).map_err(|_| "a kernel name contains a NUL byte".to_owned())?;
            // SAFETY: the name is zero-terminated.
            unsafe { call!(driver, cuModuleGetFunction, &mut function, self.module, name.as_ptr()) }
                .map_err(|error| format!("the PTX has no kernel {}: {error}", kernel.name))?;
            self.functions.insert(kernel.name, function);
        }
        Ok(())
    }

    /// Allocates all buffers and zeroes them.
    fn allocate(&mut self, sizes: [usize; 4]) -> Result<(), String> {
        let all: usize = sizes.iter().sum();
        let driver = &self.driver;
        for (buffer, bytes) in Buffer::ALL.into_iter().zip(sizes) {
            let (mut address, capacity) = (0, bytes.max(16));
            // SAFETY: the driver writes an address of that many bytes, which are then zeroed.
            unsafe { call!(driver, cuMemAlloc_v2, &mut address, capacity) }.map_err(|error| {
                format!(
                    "{} ({} bytes of memory): cannot allocate {bytes} bytes for {}, {all} in total: {error}; \
                     use a shorter --ctx-size or fewer --slots, or --device cpu",
                    self.gpu,
                    self.gpu.memory,
                    buffer.name()
                )
            })?;
            self.buffers[buffer.index()] = (address, bytes);
            // SAFETY: as above.
            unsafe { call!(driver, cuMemsetD8_v2, address, 0, capacity)? };
        }
        // SAFETY: the driver writes a host address.
        unsafe { call!(driver, cuMemHostAlloc, &mut self.rows, sizes[Buffer::Rows.index()].max(16), 0) }
    }

    /// The GPU address of a range of a buffer, if it is in bounds.
    fn place(&self, buffer: Buffer, offset: usize, count: usize) -> Result<Address, String> {
        let (start, length) = self.buffers[buffer.index()];
        match offset.checked_add(count) {
            Some(end) if end <= length => Ok(start + offset as u64),
            _ => Err(format!(
                "bytes {offset}..+{count} are out of range: buffer {} has {length} bytes",
                buffer.name()
            )),
        }
    }

    /// Encodes a pass into `launches`, replacing its contents.
    fn collected(
        &mut self,
        mut launches: LaunchList,
        encode: &mut dyn FnMut(&mut dyn Pass),
    ) -> Result<LaunchList, String> {
        launches.clear();
        let mut pass = CudaPass { device: self, launches, outcome: Ok(()) };
        encode(&mut pass);
        pass.outcome.map(|()| pass.launches)
    }

    /// Copies unsent batch inputs to the GPU.
    fn send_rows(&mut self) -> Result<(), String> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent.is_empty() {
            return Ok(());
        }
        let to = self.place(Buffer::Rows, unsent.start, unsent.len())?;
        let driver = &self.driver;
        // SAFETY: both ranges have that size, and the host does not write them before the pass has ended.
        unsafe {
            let from = self.rows.cast::<u8>().add(unsent.start).cast();
            call!(driver, cuMemcpyHtoDAsync_v2, to, from, unsent.len(), self.stream)
        }
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        format!("CUDA, {}", self.gpu)
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        assert!(buffer != Buffer::Weights, "the weights buffer is read-only");
        let place = self.place(buffer, offset, bytes.len()).unwrap_or_else(|error| panic!("{error}"));
        if bytes.is_empty() {
            return;
        }
        if buffer == Buffer::Rows {
            // SAFETY: the host copy is as long as the GPU's, and no pass runs.
            unsafe {
                let to = self.rows.cast::<u8>().add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
            let end = offset + bytes.len();
            let unsent = std::mem::replace(&mut self.unsent, 0..0);
            self.unsent =
                if unsent.is_empty() { offset..end } else { unsent.start.min(offset)..unsent.end.max(end) };
            return;
        }
        let driver = &self.driver;
        // SAFETY: the range is in bounds, and no pass runs.
        unsafe { call!(driver, cuMemcpyHtoD_v2, place, bytes.as_ptr().cast(), bytes.len()) }
            .unwrap_or_else(|error| panic!("{}: {error}", self.gpu));
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        let place = self.place(buffer, offset, bytes.len()).unwrap_or_else(|error| panic!("{error}"));
        let sent = if buffer == Buffer::Rows { self.send_rows() } else { Ok(()) };
        let driver = &self.driver;
        // SAFETY: as above.
        sent.and_then(|()| unsafe {
            let to = bytes.as_mut_ptr().cast();
            if self.in_flight.is_empty() {
                return call!(driver, cuMemcpyDtoH_v2, to, place, bytes.len());
            }
            call!(driver, cuMemcpyDtoHAsync_v2, to, place, bytes.len(), self.reader)?;
            call!(driver, cuStreamSynchronize, self.reader)
        })
        .unwrap_or_else(|error| panic!("{}: {error}", self.gpu));
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.begin(program, encode)?;
        self.wait(0)
    }

    fn begin(&mut self, _program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let launches = std::mem::take(&mut self.launches);
        self.launches = self.collected(launches, encode)?;
        self.send_rows()?;
        let CudaDevice { driver, stream, launches, launcher: starter, .. } = self;
        starter.start(driver, *stream, launches)?;
        let mut ended = null_mut();
        // SAFETY: the driver writes a handle, and the stream is the device's.
        unsafe {
            call!(driver, cuEventCreate, &mut ended, UNTIMED)?;
            self.in_flight.push_back(ended);
            call!(driver, cuEventRecord, ended, *stream)
        }
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        let (driver, mut outcome) = (&self.driver, Ok(()));
        while self.in_flight.len() > left {
            let Some(ended) = self.in_flight.pop_front() else { break };
            // SAFETY: the event is the device's and has no other waiter.
            let waited = unsafe {
                let waited = call!(driver, cuEventSynchronize, ended);
                let _ = (driver.cuEventDestroy_v2)(ended);
                waited
            };
            outcome = outcome.and(waited.map_err(|error| format!("the GPU did not finish a pass: {error}")));
        }
        outcome
    }

    fn time_parts(
        &mut self,
        _program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        let collect = |stretch| self.collected(LaunchList::default(), &mut |pass| encode(stretch, pass));
        let launches = (0..stretches).map(collect).collect::<Result<Vec<_>, _>>()?;
        self.wait(0)?;
        self.send_rows()?;
        crate::gpu::cuda::event_timing::time_launches(&self.driver, self.stream, &launches)
    }

    fn measure_read_bandwidth(&mut self) -> Result<Option<f64>, String> {
        self.wait(0)?;
        crate::gpu::cuda::event_timing::copy_bandwidth(&self.driver, self.stream)
    }

    fn decodes_batches(&self) -> bool {
        true
    }

    /// The host encodes the next pass while one runs. More tokens per pass are not faster (measured on H200).
    fn run_ahead(&self) -> RunAhead {
        RunAhead { tokens_per_pass: 1, passes: 2 }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Passes in flight still use what is released here.
        let _ = self.wait(0);
        self.launcher.discard_graph(&self.driver);
        // SAFETY: nothing uses these resources any more. Errors are ignored: the context releases memory and
        // module when its last user is gone.
        unsafe {
            for (address, _) in self.buffers {
                let _ = (self.driver.cuMemFree_v2)(address);
            }
            if !self.rows.is_null() {
                let _ = (self.driver.cuMemFreeHost)(self.rows);
            }
            if !self.module.is_null() {
                let _ = (self.driver.cuModuleUnload)(self.module);
            }
            for stream in [self.stream, self.reader].into_iter().filter(|stream| !stream.is_null()) {
                let _ = (self.driver.cuStreamDestroy_v2)(stream);
            }
            let _ = (self.driver.cuDevicePrimaryCtxRelease_v2)(self.gpu.device);
        }
    }
}

/// A pass being encoded, and its first error.
struct CudaPass<'a> {
    device: &'a CudaDevice,
    launches: LaunchList,
    outcome: Result<(), String>,
}

impl CudaPass<'_> {
    fn add(
        &mut self,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
        groups: [u32; 3],
    ) -> Result<(), String> {
        let function = *self.device.functions.get(kernel.name).ok_or("unknown kernel")?;
        if bindings.len() != kernel.buffers.len() {
            return Err(format!("{} bindings for {} buffers", bindings.len(), kernel.buffers.len()));
        }
        if groups[1].max(groups[2]) > MAX_GRID_YZ {
            return Err(format!("grid {groups:?} exceeds {MAX_GRID_YZ} threadgroups in y or z"));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let mut addresses = Vec::with_capacity(bindings.len());
        for binding in bindings {
            if binding.written && binding.buffer == Buffer::Weights {
                return Err("the weights buffer is read-only".to_owned());
            }
            addresses.push(self.device.place(binding.buffer, binding.offset, binding.bytes)?);
        }
        self.launches.add(function, kernel.threads, groups, &addresses, scalars);
        Ok(())
    }
}

impl Pass for CudaPass<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if self.outcome.is_ok() {
            let added = self.add(kernel, bindings, scalars, groups);
            self.outcome = added.map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn barrier(&mut self) {
        self.launches.barrier();
    }

    fn gpu_cores(&self) -> u32 {
        self.device.gpu.multiprocessors
    }
}
