//! The CUDA device: an NVIDIA GPU that runs the same kernels, translated from `kernels.metal` when the model was compiled.
//!
//! The card has its own memory. Weights are copied there once, when the device is made; state and scratch lie there and
//! nowhere else; what the host says of a batch is collected here and sent ahead of each pass, in one piece. Passes run on
//! one stream, in the order of their launches; `launches` says when a pass is started as one graph. An event after each
//! pass says that it has ended; while others are on their way, what it has written is read on a stream that does not wait
//! for them. An error is the driver's own.

pub(crate) mod cuda_graph;
pub(crate) mod driver;
pub(crate) mod event_timing;
pub(crate) mod gpu;

use crate::device::{Binding, Buffer, Device, Kernel, Pass, RunAhead, Schedule};
use crate::gpu::cuda::cuda_graph::{LaunchList, Starter};
use crate::gpu::cuda::driver::{Address, Driver, Handle, call};
use crate::gpu::cuda::gpu::Gpu;
use crate::model::Layout;
use crate::program::Ptx;
use crate::weights::WeightFile;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;

/// Weights go to the card in pieces, so that there is something to tell meanwhile.
const PIECE: usize = 64 << 20;

/// Threadgroups along y and z that a launch has at most.
const MOST_GROUPS: u32 = 65535;

/// `CU_STREAM_NON_BLOCKING`: what is asked of the stream waits for no other.
const ALONE: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`
const UNTIMED: u32 = 2;

/// An NVIDIA GPU, as a device.
pub struct CudaDevice {
    driver: Driver,
    card: Gpu,
    module: Handle,
    stream: Handle,
    /// Where the host reads while passes are on their way.
    reader: Handle,
    /// What says that passes have ended, which are on their way in this order.
    underway: VecDeque<Handle>,
    functions: HashMap<&'static str, Handle>,
    /// Weights, state, scratch and rows, in the order of [`Buffer::ALL`]: where they lie, and their bytes.
    buffers: [(Address, usize); 4],
    /// What the host says of a batch, in memory that the card copies from by itself. It writes nothing there that a pass on its
    /// way still has to be sent.
    rows: Handle,
    /// Bytes of it that the card does not have yet.
    unsent: std::ops::Range<usize>,
    launches: LaunchList,
    starter: Starter,
}

/// The card that this machine has, for people, where one of `texts` is for it; or why there is none.
pub fn card(texts: &[Ptx]) -> Result<String, String> {
    let card = Gpu::first(&Driver::load()?)?;
    card.best_of(texts)?;
    Ok(card.to_string())
}

impl CudaDevice {
    /// Has the driver translate for its card the last of `texts` that it knows, and makes buffers of `layout`'s sizes. `copied` hears of the weights'
    /// bytes that have been copied, and of all of them.
    pub fn new(
        texts: &[Ptx],
        kernels: &[&'static Kernel],
        file: &WeightFile,
        layout: &Layout,
        copied: &mut dyn FnMut(usize, usize),
    ) -> Result<CudaDevice, String> {
        let driver = Driver::load()?;
        let card = Gpu::first(&driver)?;
        let mut context = null_mut();
        // SAFETY: the driver writes a handle there, which is given back when the device goes.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain, &mut context, card.device)? };
        // From here on whatever has been made is given back with the device, also if it is never whole.
        let mut device = CudaDevice {
            driver,
            card,
            module: null_mut(),
            stream: null_mut(),
            reader: null_mut(),
            underway: VecDeque::new(),
            functions: HashMap::new(),
            buffers: [(0, 0); 4],
            rows: null_mut(),
            unsent: 0..0,
            launches: LaunchList::default(),
            starter: Starter::default(),
        };
        let driver = &device.driver;
        // SAFETY: the context is the card's, and the driver writes handles there.
        unsafe {
            call!(driver, cuCtxSetCurrent, context)?;
            call!(driver, cuStreamCreate, &mut device.stream, 0)?;
            call!(driver, cuStreamCreate, &mut device.reader, ALONE)?;
        }
        let ptx = device.card.best_of(texts)?;
        device.translate(ptx.text, kernels)?;
        device.starter.kernels_wait = ptx.waits;
        let weights = file.map();
        let sizes = [weights.len(), layout.state.bytes(), layout.scratch_bytes, layout.rows_bytes];
        device.allocate(sizes)?;
        for (index, piece) in weights.chunks(PIECE).enumerate() {
            let (start, driver) = (index * PIECE, &device.driver);
            let to = device.buffers[0].0 + start as u64;
            // SAFETY: the buffer has as many bytes as the file.
            unsafe { call!(driver, cuMemcpyHtoD_v2, to, piece.as_ptr().cast(), piece.len())? };
            copied(start + piece.len(), weights.len());
        }
        Ok(device)
    }

    /// The driver's own code for its card, and a function of it for each kernel.
    fn translate(&mut self, text: &str, kernels: &[&'static Kernel]) -> Result<(), String> {
        /// `CU_JIT_ERROR_LOG_BUFFER` and `…_SIZE_BYTES`
        const LOG: [i32; 2] = [5, 6];
        let ptx = CString::new(text).map_err(|_| "the kernels' PTX has a zero in it".to_owned())?;
        let mut log = vec![0_u8; 8192];
        let (mut which, mut values) = (LOG, [log.as_mut_ptr().cast::<c_void>(), log.len() as Handle]);
        let driver = &self.driver;
        // SAFETY: the text ends with a zero; options and values are two each, and the log is as long as is said.
        let loaded = unsafe {
            let (options, values) = (which.as_mut_ptr(), values.as_mut_ptr());
            call!(driver, cuModuleLoadDataEx, &mut self.module, ptx.as_ptr().cast(), 2, options, values)
        };
        loaded.map_err(|error| {
            let said = String::from_utf8_lossy(&log);
            format!(
                "{}: the driver does not take the kernels' PTX: {error}\n{}",
                self.card,
                said.trim_end_matches('\0')
            )
        })?;
        for kernel in kernels {
            let mut function = null_mut();
            let name =
                CString::new(kernel.name).map_err(|_| "a kernel's name has a zero in it".to_owned())?;
            // SAFETY: the name ends with a zero.
            unsafe { call!(driver, cuModuleGetFunction, &mut function, self.module, name.as_ptr()) }
                .map_err(|error| format!("the PTX has no kernel {}: {error}", kernel.name))?;
            self.functions.insert(kernel.name, function);
        }
        Ok(())
    }

    /// Memory for every buffer, all zero.
    fn allocate(&mut self, sizes: [usize; 4]) -> Result<(), String> {
        let all: usize = sizes.iter().sum();
        let driver = &self.driver;
        for (buffer, bytes) in Buffer::ALL.into_iter().zip(sizes) {
            let (mut address, room) = (0, bytes.max(16));
            // SAFETY: the driver writes an address there, of so many bytes, which are then made zero.
            unsafe { call!(driver, cuMemAlloc_v2, &mut address, room) }.map_err(|error| {
                format!(
                    "{}, {} bytes of memory, has no room for {bytes} bytes of {} of {all} in all: {error}; ask for a \
                     shorter --ctx-size or fewer --slots, or use --device cpu",
                    self.card,
                    self.card.memory,
                    buffer.name()
                )
            })?;
            self.buffers[buffer.index()] = (address, bytes);
            // SAFETY: as above.
            unsafe { call!(driver, cuMemsetD8_v2, address, 0, room)? };
        }
        // SAFETY: the driver writes an address of this process there.
        unsafe { call!(driver, cuMemHostAlloc, &mut self.rows, sizes[Buffer::Rows.index()].max(16), 0) }
    }

    /// Where bytes of a buffer lie on the card, if it has so many.
    fn place(&self, buffer: Buffer, offset: usize, count: usize) -> Result<Address, String> {
        let (start, length) = self.buffers[buffer.index()];
        match offset.checked_add(count) {
            Some(end) if end <= length => Ok(start + offset as u64),
            _ => Err(format!("bytes {offset}..+{count} of {}, which has {length}", buffer.name())),
        }
    }

    /// The launches of a pass, in the place of those that there are.
    fn collected(
        &mut self,
        mut launches: LaunchList,
        encode: &mut dyn FnMut(&mut dyn Pass),
    ) -> Result<LaunchList, String> {
        launches.clear();
        let mut pass = Encoding { device: self, launches, outcome: Ok(()) };
        encode(&mut pass);
        pass.outcome.map(|()| pass.launches)
    }

    /// Sends what the host has said of a batch.
    fn send_rows(&mut self) -> Result<(), String> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent.is_empty() {
            return Ok(());
        }
        let to = self.place(Buffer::Rows, unsent.start, unsent.len())?;
        let driver = &self.driver;
        // SAFETY: both have so many bytes, and the host writes none of them before the pass has ended.
        unsafe {
            let from = self.rows.cast::<u8>().add(unsent.start).cast();
            call!(driver, cuMemcpyHtoDAsync_v2, to, from, unsent.len(), self.stream)
        }
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        format!("CUDA, {}", self.card)
    }

    fn write(&mut self, buffer: Buffer, offset: usize, bytes: &[u8]) {
        assert!(buffer != Buffer::Weights, "weights are never written");
        let place = self.place(buffer, offset, bytes.len()).unwrap_or_else(|error| panic!("{error}"));
        if bytes.is_empty() {
            return;
        }
        if buffer == Buffer::Rows {
            // SAFETY: the host's copy is as long as the card's, and no pass runs.
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
        // SAFETY: as many bytes as there are, and no pass runs.
        unsafe { call!(driver, cuMemcpyHtoD_v2, place, bytes.as_ptr().cast(), bytes.len()) }
            .unwrap_or_else(|error| panic!("{}: {error}", self.card));
    }

    fn read(&mut self, buffer: Buffer, offset: usize, bytes: &mut [u8]) {
        let place = self.place(buffer, offset, bytes.len()).unwrap_or_else(|error| panic!("{error}"));
        let sent = if buffer == Buffer::Rows { self.send_rows() } else { Ok(()) };
        let driver = &self.driver;
        // SAFETY: as above.
        sent.and_then(|()| unsafe {
            let to = bytes.as_mut_ptr().cast();
            if self.underway.is_empty() {
                return call!(driver, cuMemcpyDtoH_v2, to, place, bytes.len());
            }
            call!(driver, cuMemcpyDtoHAsync_v2, to, place, bytes.len(), self.reader)?;
            call!(driver, cuStreamSynchronize, self.reader)
        })
        .unwrap_or_else(|error| panic!("{}: {error}", self.card));
    }

    fn run(&mut self, program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        self.begin(program, encode)?;
        self.wait(0)
    }

    fn begin(&mut self, _program: Schedule, encode: &mut dyn FnMut(&mut dyn Pass)) -> Result<(), String> {
        let launches = std::mem::take(&mut self.launches);
        self.launches = self.collected(launches, encode)?;
        self.send_rows()?;
        let CudaDevice { driver, stream, launches, starter, .. } = self;
        starter.start(driver, *stream, launches)?;
        let mut ended = null_mut();
        // SAFETY: the driver writes a handle there, and the stream is the device's.
        unsafe {
            call!(driver, cuEventCreate, &mut ended, UNTIMED)?;
            self.underway.push_back(ended);
            call!(driver, cuEventRecord, ended, *stream)
        }
    }

    fn wait(&mut self, left: usize) -> Result<(), String> {
        let (driver, mut outcome) = (&self.driver, Ok(()));
        while self.underway.len() > left {
            let Some(ended) = self.underway.pop_front() else { break };
            // SAFETY: the event is the device's, and nobody else waits for it.
            let waited = unsafe {
                let waited = call!(driver, cuEventSynchronize, ended);
                let _ = (driver.cuEventDestroy_v2)(ended);
                waited
            };
            outcome = outcome.and(waited.map_err(|error| format!("the GPU did not finish a pass: {error}")));
        }
        outcome
    }

    fn timed(
        &mut self,
        _program: Schedule,
        stretches: usize,
        encode: &mut dyn FnMut(usize, &mut dyn Pass),
    ) -> Result<Vec<[f64; 2]>, String> {
        let collect = |stretch| self.collected(LaunchList::default(), &mut |pass| encode(stretch, pass));
        let launches = (0..stretches).map(collect).collect::<Result<Vec<_>, _>>()?;
        self.wait(0)?;
        self.send_rows()?;
        crate::gpu::cuda::event_timing::of(&self.driver, self.stream, &launches)
    }

    fn read_speed(&mut self) -> Result<Option<f64>, String> {
        self.wait(0)?;
        crate::gpu::cuda::event_timing::copies(&self.driver, self.stream)
    }

    /// While one pass runs the host has the next ready. More ids in a pass are no faster: measured on an H200.
    fn lead(&self) -> RunAhead {
        RunAhead { ids: 1, passes: 2 }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Whatever is on its way still uses what is given back here.
        let _ = self.wait(0);
        self.starter.forget(&self.driver);
        // SAFETY: nobody uses any of it any more. An error would change nothing; memory and module go with the context
        // where nobody else has it.
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
            let _ = (self.driver.cuDevicePrimaryCtxRelease_v2)(self.card.device);
        }
    }
}

/// A pass that is being collected, or why it cannot be.
struct Encoding<'a> {
    device: &'a CudaDevice,
    launches: LaunchList,
    outcome: Result<(), String>,
}

impl Encoding<'_> {
    fn add(
        &mut self,
        kernel: &Kernel,
        bindings: &[Binding],
        scalars: &[u32],
        groups: [u32; 3],
    ) -> Result<(), String> {
        let function =
            *self.device.functions.get(kernel.name).ok_or("it is not among the program's kernels")?;
        if bindings.len() != kernel.buffers.len() {
            return Err(format!("{} bindings for {} buffers", bindings.len(), kernel.buffers.len()));
        }
        if groups[1].max(groups[2]) > MOST_GROUPS {
            return Err(format!("{groups:?} threadgroups; along y and z there may be {MOST_GROUPS}"));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let mut addresses = Vec::with_capacity(bindings.len());
        for binding in bindings {
            if binding.written && binding.buffer == Buffer::Weights {
                return Err("weights are never written".to_owned());
            }
            addresses.push(self.device.place(binding.buffer, binding.offset, binding.bytes)?);
        }
        self.launches.add(function, kernel.threads, groups, &addresses, scalars);
        Ok(())
    }
}

impl Pass for Encoding<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], scalars: &[u32], groups: [u32; 3]) {
        if self.outcome.is_ok() {
            let added = self.add(kernel, bindings, scalars, groups);
            self.outcome = added.map_err(|what| format!("kernel {}: {what}", kernel.name));
        }
    }

    fn barrier(&mut self) {
        self.launches.barrier();
    }

    fn cores(&self) -> u32 {
        self.device.card.multiprocessors
    }
}
