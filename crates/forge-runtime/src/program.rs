//! A compiled model as the generated crate declares it: static data.

use crate::device::Kernel;
use crate::measure::tune::TuningSpace;
use crate::model::{LoadModel, ModelInfo};

/// A compiled model: its kernels, its constants and where its files are.
#[derive(Clone, Copy)]
pub struct CompiledModel {
    /// The directory of `weights.safetensors`, `tokenizer.json` and `golden.json`, unless a [`crate::load::Setup`] names another.
    pub directory: &'static str,
    /// The source of the Metal kernels.
    pub metal: &'static str,
    /// The compiled Metal kernels, if Apple's compiler was installed when the program was built.
    pub metallib: Option<&'static [u8]>,
    /// The kernels for NVIDIA GPUs, by compute capability, the lowest first; empty if the program is not for them.
    pub ptx: &'static [Ptx],
    /// Constants of the model.
    pub info: &'static ModelInfo,
    /// Makes the model.
    pub load: LoadModel,
    /// Every kernel.
    pub kernels: &'static [&'static Kernel],
    /// Candidate kernel layouts for `tune`.
    pub tunable: Option<&'static TuningSpace>,
}

/// Kernels for NVIDIA GPUs of a compute capability, such as 70 for 7.0, and newer ones.
#[derive(Clone, Copy)]
pub struct Ptx {
    /// The lowest compute capability.
    pub capability: u32,
    /// Whether kernels are launched before their predecessors have ended, and wait for them themselves.
    pub waits: bool,
    /// The PTX that clang made of `kernels.metal`.
    pub text: &'static str,
}
