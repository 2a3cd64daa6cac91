//! CUDA driver API, loaded at run time: programs build and start without a driver.
//!
//! The table below lists all functions, with the names that the driver exports. Errors contain the function's
//! name and the driver's own text.

use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;

/// An opaque driver handle.
pub(crate) type Handle = *mut c_void;
/// An address in GPU memory.
pub(crate) type Address = u64;

/// Library names of the driver.
const LIBRARIES: &[&str] = if cfg!(windows) {
    &["nvcuda.dll"]
} else {
    &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"]
};

/// Parameters of a kernel node: `CUDA_KERNEL_NODE_PARAMS`, in the version that all drivers with graphs
/// accept.
#[repr(C)]
pub(crate) struct NodeParameters {
    pub(crate) function: Handle,
    pub(crate) groups: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) parameters: *mut Handle,
    pub(crate) extra: *mut Handle,
}

/// Type of a graph edge: `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    from: u8,
    to: u8,
    kind: u8,
    reserved: [u8; 5],
}

impl Edge {
    /// Programmatic dependent launch: the second kernel starts when all threadgroups of the first have
    /// allowed it, and waits for the first's end itself (`CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC`,
    /// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`).
    pub(crate) const PROGRAMMATIC: Edge = Edge { from: 1, to: 0, kind: 1, reserved: [0; 5] };
}

macro_rules! driver {
    (always { $($name:ident($($argument:ty),*);)* } newer { $($newer:ident($($newer_argument:ty),*);)* }) => {
        /// The driver's functions.
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) struct Driver {
            $(pub(crate) $name: unsafe extern "system" fn($($argument),*) -> i32,)*
            // Missing in older drivers.
            $(pub(crate) $newer: Option<unsafe extern "system" fn($($newer_argument),*) -> i32>,)*
            // The library that contains the functions.
            _library: Library,
        }

        impl Driver {
            #[allow(non_snake_case, reason = "the driver's names")]
            fn of(library: Library) -> Result<Driver, String> {
                $(
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the signatures are those of the driver's header.
                    let $name = *unsafe { library.get(name) }.map_err(|_| {
                        concat!(
                            "the NVIDIA driver has no ",
                            stringify!($name),
                            ": install a driver for CUDA 11.4 or later"
                        )
                    })?;
                )*
                $(
                    let name = concat!(stringify!($newer), "\0").as_bytes();
                    // SAFETY: as above.
                    let $newer = unsafe { library.get(name) }.ok().map(|found| *found);
                )*
                Ok(Driver { $($name,)* $($newer,)* _library: library })
            }
        }
    };
}

driver! {
    always {
        cuInit(u32);
        cuDriverGetVersion(*mut i32);
        cuGetErrorName(i32, *mut *const c_char);
        cuGetErrorString(i32, *mut *const c_char);
        cuDeviceGetCount(*mut i32);
        cuDeviceGet(*mut i32, i32);
        cuDeviceGetName(*mut c_char, i32, i32);
        cuDeviceGetAttribute(*mut i32, i32, i32);
        cuDeviceTotalMem_v2(*mut usize, i32);
        cuDevicePrimaryCtxRetain(*mut Handle, i32);
        cuDevicePrimaryCtxRelease_v2(i32);
        cuCtxSetCurrent(Handle);
        cuModuleLoadDataEx(*mut Handle, *const c_void, u32, *mut i32, *mut Handle);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuMemAlloc_v2(*mut Address, usize);
        cuMemFree_v2(Address);
        cuMemHostAlloc(*mut Handle, usize, u32);
        cuMemFreeHost(Handle);
        cuMemsetD8_v2(Address, u8, usize);
        cuMemcpyHtoD_v2(Address, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, Address, usize);
        cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
        cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
        cuStreamCreate(*mut Handle, u32);
        cuStreamDestroy_v2(Handle);
        cuStreamSynchronize(Handle);
        cuEventCreate(*mut Handle, u32);
        cuEventRecord(Handle, Handle);
        cuEventSynchronize(Handle);
        cuEventElapsedTime(*mut f32, Handle, Handle);
        cuEventDestroy_v2(Handle);
        cuLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut Handle, *mut Handle);
        cuGraphCreate(*mut Handle, u32);
        cuGraphDestroy(Handle);
        cuGraphAddKernelNode(*mut Handle, Handle, *const Handle, usize, *const NodeParameters);
        cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        cuGraphExecKernelNodeSetParams(Handle, Handle, *const NodeParameters);
        cuGraphExecDestroy(Handle);
        cuGraphLaunch(Handle, Handle);
    }
    newer {
        cuGraphAddDependencies_v2(Handle, *const Handle, *const Handle, *const Edge, usize);
    }
}

/// Calls a driver function and checks its result. Used in an `unsafe` block, whose comment says why the call
/// is valid.
macro_rules! call {
    ($driver:expr, $name:ident, $($argument:expr),* $(,)?) => {
        $driver.check(stringify!($name), ($driver.$name)($($argument),*))
    };
}
pub(crate) use call;

impl Driver {
    /// Loads and initializes the driver.
    pub(crate) fn load() -> Result<Driver, String> {
        // SAFETY: loading the driver runs only its own initializers.
        let library = LIBRARIES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let driver = Driver::of(
            library.ok_or_else(|| format!("no NVIDIA driver found: cannot load {}", LIBRARIES[0]))?,
        )?;
        // SAFETY: `cuInit` may be called at any time.
        driver.check("cuInit", unsafe { (driver.cuInit)(0) })?;
        Ok(driver)
    }

    /// Converts a result code of `function` to an error.
    pub(crate) fn check(&self, function: &str, code: i32) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let text = |of: unsafe extern "system" fn(i32, *mut *const c_char) -> i32| {
            let mut text = null();
            // SAFETY: the function leaves null, or writes a static string.
            unsafe {
                of(code, &mut text);
                if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
            }
        };
        let name = text(self.cuGetErrorName).unwrap_or_else(|| format!("error {code}"));
        let meaning = text(self.cuGetErrorString).unwrap_or_default();
        Err(format!("{function}: {meaning} ({name})"))
    }
}
