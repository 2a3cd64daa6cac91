//! Runs the kernel tests on an NVIDIA GPU instead of the kernel checker.
//!
//! The machine with the GPU needs no compiler: the PTX is generated before. If `FORGE_GPU_PTX` names a directory, each
//! compiled source is translated into it, once per target. With `FORGE_GPU=90` in addition, the PTX for compute capability
//! 9.0 runs on the first GPU; a source without PTX is an error.
//!
//! Buffers are copied to the GPU before each dispatch and back after it. Guard bytes around each buffer must not change, nor
//! must read-only bindings.

// The function table of the CUDA driver, shared with the runtime.
#[expect(dead_code, reason = "only some functions are used")]
#[path = "../../forge-device/src/gpu/cuda/driver.rs"]
mod driver;

use crate::compile::clang::CompileError;
use crate::memory::buffers::{Bound, BufferId, Memory};
use driver::{Address, Driver, Handle, call};
use forge_kernels::ptx::{TARGETS, find_clang, translate};
use forge_msl::{KernelDecl, Signature};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{CString, c_void};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::{env, fs, io};

/// Guard bytes on either side of a buffer.
const GUARD: usize = 256;
/// The value of a guard byte.
const GUARDED: u8 = 0xa5;

/// The PTX of one source, loaded on the GPU.
pub(crate) struct Module {
    gpu: &'static Gpu,
    module: Handle,
    kernels: Vec<KernelDecl>,
}

/// The driver and the context that all dispatches share.
struct Gpu {
    driver: Driver,
    context: Handle,
}

// SAFETY: the driver's functions may be called from any thread on which the context is current.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    fn first() -> Result<&'static Gpu, String> {
        static FIRST: OnceLock<Result<Gpu, String>> = OnceLock::new();
        let open = || {
            let driver = Driver::load()?;
            let (mut device, mut context) = (0, null_mut());
            // SAFETY: the driver writes a number and a handle there; the context stays as long as the process.
            unsafe {
                call!(driver, cuDeviceGet, &mut device, 0)?;
                call!(driver, cuDevicePrimaryCtxRetain, &mut context, device)?;
            }
            Ok(Gpu { driver, context })
        };
        FIRST.get_or_init(open).as_ref().map_err(String::clone)
    }
}

/// A buffer on the GPU, with its guards.
struct DeviceBuffer<'c> {
    driver: &'c Driver,
    address: Address,
    /// The contents before the dispatch, guards included.
    image: Vec<u8>,
    written: bool,
}

impl DeviceBuffer<'_> {
    fn new<'c>(driver: &'c Driver, contents: &[u8], written: bool) -> Result<DeviceBuffer<'c>, String> {
        let guard = [GUARDED; GUARD];
        let mut buffer =
            DeviceBuffer { driver, address: 0, image: [&guard[..], contents, &guard].concat(), written };
        // SAFETY: as many bytes are allocated as are copied.
        unsafe {
            call!(driver, cuMemAlloc_v2, &mut buffer.address, buffer.image.len())?;
            call!(driver, cuMemcpyHtoD_v2, buffer.address, buffer.image.as_ptr().cast(), buffer.image.len())?;
        }
        Ok(buffer)
    }

    /// The contents after the dispatch; an error if it wrote guards or a read-only buffer.
    fn left(&self) -> Result<Vec<u8>, String> {
        let mut image = vec![0; self.image.len()];
        // SAFETY: the allocation has this many bytes.
        unsafe {
            call!(
                self.driver,
                cuMemcpyDtoH_v2,
                image.as_mut_ptr().cast::<c_void>(),
                self.address,
                image.len()
            )?
        };
        let end = image.len() - GUARD;
        let kept = if self.written { [0..GUARD, end..image.len()] } else { [0..end, end..image.len()] };
        if let Some(at) = kept.into_iter().flatten().find(|at| image[*at] != self.image[*at]) {
            let at = at as isize - GUARD as isize;
            return Err(format!("invalid write to byte {at} of a buffer of {} bytes", end - GUARD));
        }
        Ok(image[GUARD..end].to_vec())
    }
}

impl Drop for DeviceBuffer<'_> {
    fn drop(&mut self) {
        // SAFETY: the dispatch has ended, so the memory is unused.
        unsafe { (self.driver.cuMemFree_v2)(self.address) };
    }
}

impl Module {
    /// The PTX of a source, loaded on the GPU; `None` if no GPU is selected.
    pub(crate) fn of(source: &str) -> Result<Option<Module>, CompileError> {
        let (folder, capability) = match (env::var_os("FORGE_GPU_PTX"), capability()) {
            (None, None) => return Ok(None),
            (Some(folder), None) => return write_ptx(Path::new(&folder), source).map(|()| None),
            // Otherwise the checker would run with the tolerances of a GPU.
            (None, Some(_)) => {
                return Err(CompileError::Rejected(
                    "FORGE_GPU is set without FORGE_GPU_PTX: set it to the directory of the PTX".to_owned(),
                ));
            }
            (Some(folder), Some(capability)) => (folder, capability),
        };
        let file = Path::new(&folder).join(file_name(source, capability));
        let ptx = fs::read(&file).map_err(|source| io_error(&file, source))?;
        let module = Module::load(ptx, source);
        module.map(Some).map_err(|message| CompileError::Load { path: file, message })
    }

    fn load(ptx: Vec<u8>, source: &str) -> Result<Module, String> {
        let gpu = Gpu::first()?;
        let kernels = KernelDecl::parse_all(source).map_err(|error| error.to_string())?;
        let ptx = CString::new(ptx).map_err(|error| error.to_string())?;
        let mut module = null_mut();
        // SAFETY: the source ends with a zero, and the driver writes a handle there.
        unsafe {
            call!(gpu.driver, cuCtxSetCurrent, gpu.context)?;
            call!(
                gpu.driver,
                cuModuleLoadDataEx,
                &mut module,
                ptx.as_ptr().cast(),
                0,
                null_mut(),
                null_mut()
            )?;
        }
        Ok(Module { gpu, module, kernels })
    }

    /// Size of a kernel's scalar struct in bytes. All scalars are u32.
    pub(crate) fn scalar_bytes(&self, kernel: &str) -> usize {
        let decl = self.kernels.iter().find(|decl| decl.name == kernel);
        decl.map_or(0, |decl| decl.scalars.len() * size_of::<u32>())
    }

    /// Runs a kernel on the buffers of `memory` and waits for it.
    pub(crate) fn run(
        &self,
        memory: &mut Memory,
        signature: &Signature,
        bindings: &[Bound],
        scalars: &[u32],
        groups: [u32; 3],
        threads: u32,
    ) -> Result<(), String> {
        let driver = &self.gpu.driver;
        let name = CString::new(signature.name.as_str()).map_err(|error| error.to_string())?;
        let mut function = null_mut();
        // SAFETY: the context and the module stay, and the driver writes a handle there.
        unsafe {
            call!(driver, cuCtxSetCurrent, self.gpu.context)?;
            call!(driver, cuModuleGetFunction, &mut function, self.module, name.as_ptr())?;
        }
        // Two bindings may refer to the same buffer.
        let mut written: BTreeMap<usize, (BufferId, bool)> = BTreeMap::new();
        for (buffer, bound) in signature.buffers.iter().zip(bindings) {
            let entry = written.entry(bound.buffer.index()).or_insert((bound.buffer, false));
            entry.1 |= bound.written && buffer.written;
        }
        let mut buffers = BTreeMap::new();
        for (index, (buffer, written)) in &written {
            buffers.insert(*index, DeviceBuffer::new(driver, memory.contents(*buffer), *written)?);
        }
        let address = |bound: &Bound| buffers[&bound.buffer.index()].address + (GUARD + bound.offset) as u64;
        // The parameters are the buffers in slot order, then the scalar struct.
        let mut addresses: Vec<Address> = bindings.iter().map(address).collect();
        let mut scalars = scalars.to_vec();
        let mut parameters: Vec<Handle> =
            addresses.iter_mut().map(|address| (address as *mut Address).cast()).collect();
        if signature.scalars.is_some() {
            parameters.push(scalars.as_mut_ptr().cast());
        }
        let [x, y, z] = groups;
        // SAFETY: number and sizes of the parameters match the kernel, and their memory outlives the launch.
        unsafe {
            let parameters = parameters.as_mut_ptr();
            call!(
                driver,
                cuLaunchKernel,
                function,
                x,
                y,
                z,
                threads,
                1,
                1,
                0,
                null_mut(),
                parameters,
                null_mut()
            )?;
            call!(driver, cuStreamSynchronize, null_mut())?;
        }
        for (index, (buffer, written)) in &written {
            let left = buffers[index].left()?;
            if *written {
                memory.write(*buffer, 0, &left);
            }
        }
        Ok(())
    }
}

/// The compute capability given by `FORGE_GPU`, if it is set.
pub(crate) fn capability() -> Option<u32> {
    let named = env::var("FORGE_GPU").ok()?;
    Some(
        named.parse().unwrap_or_else(|_| {
            panic!("FORGE_GPU={named}: expected a compute capability, such as 90 for 9.0")
        }),
    )
}

/// Translates a source to PTX for every target, unless the files exist.
fn write_ptx(folder: &Path, source: &str) -> Result<(), CompileError> {
    let clang = find_clang().ok_or(CompileError::NoClang)?;
    fs::create_dir_all(folder).map_err(|source| io_error(folder, source))?;
    for target in TARGETS {
        let file = folder.join(file_name(source, target.capability));
        if !file.is_file() {
            let ptx = translate(&clang, source, target)
                .map_err(|error| CompileError::Rejected(error.to_string()))?;
            fs::write(&file, ptx).map_err(|source| io_error(&file, source))?;
        }
    }
    Ok(())
}

/// The file name of a source's PTX for a compute capability.
fn file_name(source: &str, capability: u32) -> String {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    format!("{:016x}_{capability}.ptx", hasher.finish())
}

fn io_error(path: &Path, source: io::Error) -> CompileError {
    CompileError::Io { what: path.display().to_string(), source }
}
