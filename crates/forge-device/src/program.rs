//! A compiled model as the generated crate declares it: static data.

use crate::device::Kernel;
use crate::model::{LoadModel, ModelInfo};
use crate::tuning_space::TuningSpace;

/// A compiled model: its kernels, its constants and its files.
#[derive(Clone, Copy)]
pub struct CompiledModel {
    /// The directory of `weights.safetensors`, `tokenizer.json` and `golden.json`, unless the program is
    /// started with another one.
    pub directory: &'static str,
    /// The source of the Metal kernels.
    pub metal: &'static str,
    /// The compiled Metal kernels, if Apple's compiler was installed at build time.
    pub metallib: Option<&'static [u8]>,
    /// The same compiled as Metal 4, with products of tensors.
    pub tensor_metallib: Option<&'static [u8]>,
    /// PTX by ascending compute capability; empty if the program was compiled without the CUDA target.
    pub ptx: &'static [Ptx],
    /// Constants of the model.
    pub info: &'static ModelInfo,
    /// Constructs the model from its weight file.
    pub load: LoadModel,
    /// All kernels.
    pub kernels: &'static [&'static Kernel],
    /// Candidate kernel layouts for `tune`.
    pub tunable: Option<&'static TuningSpace>,
}

/// PTX for GPUs of at least this compute capability.
#[derive(Clone, Copy)]
pub struct Ptx {
    /// The minimum compute capability, such as 70 for 7.0.
    pub capability: u32,
    /// Whether kernels use programmatic dependent launch: they start before their predecessor ends and wait
    /// for it themselves.
    pub waits: bool,
    /// The PTX text, compiled by clang from `kernels.metal`.
    pub text: &'static str,
}
