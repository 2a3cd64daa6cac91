//! Properties of this machine's NVIDIA GPU, and selection of the PTX module for it.

use crate::gpu::cuda::driver::{Driver, call};
use crate::program::Ptx;
use std::ffi::{CStr, c_char};

/// `CU_DEVICE_ATTRIBUTE_…` of the driver's header.
const MULTIPROCESSORS: i32 = 16;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

/// An NVIDIA GPU: the first one that the driver lists.
pub(crate) struct Gpu {
    pub(crate) device: i32,
    name: String,
    capability: (i32, i32),
    /// CUDA version of the driver.
    release: (i32, i32),
    pub(crate) multiprocessors: u32,
    /// Memory in bytes.
    pub(crate) memory: usize,
}

impl Gpu {
    /// The first GPU of this machine.
    pub(crate) fn first(driver: &Driver) -> Result<Gpu, String> {
        let (mut count, mut device, mut version, mut memory) = (0, 0, 0, 0);
        let mut name = [0 as c_char; 256];
        // SAFETY: all pointers are to what the driver writes.
        unsafe {
            call!(driver, cuDriverGetVersion, &mut version)?;
            call!(driver, cuDeviceGetCount, &mut count)?;
            if count == 0 {
                return Err("the NVIDIA driver found no GPU on this machine".to_owned());
            }
            call!(driver, cuDeviceGet, &mut device, 0)?;
            call!(driver, cuDeviceGetName, name.as_mut_ptr(), name.len() as i32 - 1, device)?;
            call!(driver, cuDeviceTotalMem_v2, &mut memory, device)?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: as above.
            unsafe { call!(driver, cuDeviceGetAttribute, &mut value, which, device) }.map(|()| value)
        };
        let gpu = Gpu {
            device,
            // SAFETY: the last character was left zero.
            name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
            capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
            release: (version / 1000, version % 1000 / 10),
            multiprocessors: attribute(MULTIPROCESSORS)? as u32,
            memory,
        };
        Ok(gpu)
    }

    /// The PTX module for the highest compute capability that this GPU supports.
    pub(crate) fn best_of(&self, texts: &[Ptx]) -> Result<Ptx, String> {
        let own = (self.capability.0 * 10 + self.capability.1) as u32;
        let best = texts.iter().rev().find(|ptx| ptx.capability <= own);
        best.copied().ok_or_else(|| match texts.first() {
            Some(Ptx { capability, .. }) => {
                format!(
                    "{self}: the kernels need compute capability {}.{} or later",
                    capability / 10,
                    capability % 10
                )
            }
            None => "this program was compiled without CUDA kernels".to_owned(),
        })
    }
}

/// `NVIDIA H200, compute capability 9.0, driver of CUDA 13.0`
impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gpu { name, capability, release, .. } = self;
        let ((major, minor), (year, part)) = (capability, release);
        write!(f, "{name}, compute capability {major}.{minor}, driver of CUDA {year}.{part}")
    }
}
