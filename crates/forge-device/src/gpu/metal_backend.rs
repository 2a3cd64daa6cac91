//! Entry points of the Metal device, which exists on Apple systems, or is provided by the program.
//!
//! On other systems a program can provide one ([`provide`]). The tests do: their programs run the same Metal
//! host code over an emulated device.

use crate::device::Device;
use crate::model::Layout;
use crate::offload::ExpertCache;
use crate::program::CompiledModel;
use crate::weights::WeightFile;
use std::path::Path;
use std::sync::OnceLock;

/// The GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetalGpu {
    /// Name of the device.
    pub name: String,
    /// Bytes that the GPU can use without slowing down (`recommendedMaxWorkingSetSize`); none if unknown.
    pub working_set: Option<u64>,
}

/// Opens a device: the program, its weights and layout, the directory of cached pipelines, streamed experts,
/// and a callback with the number of compiled pipelines and of all.
pub type OpenDevice = fn(
    &CompiledModel,
    &WeightFile,
    &Layout,
    Option<&Path>,
    Option<ExpertCache>,
    &mut dyn FnMut(usize, usize),
) -> Result<Box<dyn Device>, String>;

/// The functions of a Metal backend.
#[derive(Clone, Copy)]
pub struct MetalBackend {
    /// Finds the GPU, or returns why no kernel can run on it.
    pub find: fn() -> Result<MetalGpu, String>,
    /// Opens it.
    pub open: OpenDevice,
    /// Describes where a program's kernels come from and where its pipelines are cached, without opening the
    /// device.
    pub route: fn(&CompiledModel, Option<&Path>) -> String,
}

static PROVIDED: OnceLock<MetalBackend> = OnceLock::new();

/// Provides a backend for a system that has none.
pub fn provide(backend: MetalBackend) {
    let _ = PROVIDED.set(backend);
}

/// The backend of this system, if there is one.
pub fn backend() -> Option<MetalBackend> {
    #[cfg(target_vendor = "apple")]
    return Some(crate::gpu::metal::BACKEND);
    #[cfg(not(target_vendor = "apple"))]
    PROVIDED.get().copied()
}

/// The GPU of this machine, or why there is none.
pub fn find() -> Result<MetalGpu, String> {
    let backend = backend().ok_or("no Metal device found: use --device cpu")?;
    (backend.find)()
}

/// The variable that enables a validation layer of Metal, if any does. Archives of pipelines are not used
/// with one: a validation layer can throw an exception for them, which would end the program.
pub fn validation_layer() -> Option<&'static str> {
    let variables = ["MTL_DEBUG_LAYER", "MTL_SHADER_VALIDATION", "METAL_DEVICE_WRAPPER_TYPE"];
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    variables.into_iter().find(is_set)
}
