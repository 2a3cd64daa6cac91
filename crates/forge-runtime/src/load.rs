//! Loading: from the files of a model to a running engine.
//!
//! A [`CompiledModel`] is what the generated crate declares about itself; [`LoadOptions`] are the user's
//! choices. The rest is in the files of the model directory.

use crate::cli::progress::Progress;
use crate::engine::Engine;
use crate::text::chat_template::Template;
use crate::text::tokenizer::Tokenizer;
use forge_device::cpu::CpuDevice;
use forge_device::cpu::format::repacked;
use forge_device::device::Device;
use forge_device::error::Error;
use forge_device::gpu::metal_backend;
use forge_device::model::Model;
use forge_device::model::memory::{GpuMemory, Memory, available};
use forge_device::offload::{CacheLayout, ExpertCache, ExpertPlacement, Repacking, UsageStats, WeightSource};
use forge_device::program::CompiledModel;
use forge_device::sampling::sampler::SamplingParams;
use forge_device::weights::WeightFile;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The device to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// The program's GPU target if this machine has such a GPU, else the CPU
    #[default]
    Auto,
    /// Apple GPU
    Metal,
    #[cfg(feature = "cuda")]
    /// NVIDIA GPU
    Cuda,
    /// CPU
    Cpu,
}

/// Options for loading a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The model directory; the crate's own directory if `None`.
    pub directory: Option<PathBuf>,
    /// The device to run on.
    pub device: DeviceKind,
    /// Threads of the CPU device; all hardware threads if `None`.
    pub threads: Option<usize>,
    /// Whether the CPU device reads the memory-mapped file, without a repacked copy in huge pages.
    pub mmap: bool,
    /// Where MoE expert weights are kept.
    pub experts: ExpertPlacement,
    /// Whether the CPU device skips activation quantization; see [`CpuDevice::exact`].
    pub f32_activations: bool,
    /// Context length of a slot in tokens; what the command needs if `None`.
    pub context: Option<u32>,
    /// Number of slots: parallel sequences.
    pub slots: u32,
    /// Whether decoded rows never depend on the number of slots that decode.
    pub reproducible: bool,
    /// Callback for notes about device setup.
    pub on_message: fn(&str),
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            directory: None,
            device: DeviceKind::Auto,
            threads: None,
            mmap: false,
            experts: ExpertPlacement::Resident,
            f32_activations: false,
            context: None,
            slots: 1,
            reproducible: false,
            on_message: |_| (),
        }
    }
}

/// The default context length in tokens, unless the model's maximum is smaller.
const DEFAULT_CONTEXT: u32 = 8192;

/// A loaded model: weights mapped, layout fixed, not yet on a device.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// The mapped weight file.
    pub weights: WeightFile,
    /// Context length of a slot in tokens.
    pub context: u32,
    /// Memory that the model needs.
    pub memory: Memory,
    /// Layout of the expert cache, if experts are streamed.
    pub cache_layout: Option<CacheLayout>,
}

impl Loaded {
    /// The expert cache, filled with the most used experts, if experts are streamed. `arrangements` are
    /// planes to repack, by their offset in the weight file.
    pub fn expert_cache(&self, repackings: HashMap<usize, Repacking>) -> Result<Option<ExpertCache>, String> {
        let Some(layout) = &self.cache_layout else { return Ok(None) };
        let (layers, source) = (&self.model.layout().experts, Arc::new(WeightSource::new(&self.weights)?));
        let mut progress = Progress::new("loading experts, MB");
        let mut report = |done: usize, all: usize| progress.at(done / 1_000_000, all / 1_000_000);
        let usage = UsageStats::load(self.weights.path(), layers);
        ExpertCache::new(layers, layout.clone(), source, repackings)?.with_usage(usage, &mut report).map(Some)
    }
}

impl LoadOptions {
    /// The path of a model file.
    pub fn path(&self, program: &CompiledModel, name: &str) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| PathBuf::from(program.directory)).join(name)
    }

    /// The tokenizer. It is read on another thread.
    pub fn tokenizer(&self, program: &CompiledModel) -> Tokenizer {
        Tokenizer::read_in_background(self.path(program, "tokenizer.json"))
    }

    /// The chat template, if the model has one.
    pub fn template(&self, program: &CompiledModel) -> Result<Option<Template>, Error> {
        Template::read(&self.path(program, ""))
    }

    /// The default sampling parameters, from `generation_config.json`.
    pub fn sampling(&self, program: &CompiledModel) -> Result<SamplingParams, Error> {
        let path = self.path(program, "generation_config.json");
        let error_at = |what: String| Error::runtime(format!("{}: {what}", path.display()));
        match std::fs::read(&path) {
            Ok(bytes) => SamplingParams::from_generation_config(&bytes).map_err(error_at),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(SamplingParams::ordinary()),
            Err(error) => Err(error_at(format!("cannot be read: {error}"))),
        }
    }

    /// Maps the weights and lays the model out. The context length is [`LoadOptions::context`]; else
    /// `needed`; else a default of up to 8192 tokens.
    pub fn load(&self, program: &CompiledModel, needed: Option<usize>) -> Result<Loaded, Error> {
        let most = program.info.context;
        let context = match (self.context, needed) {
            (Some(context), _) if context > most => {
                return Err(Error::usage(format!(
                    "{} was compiled for contexts up to {most}: --ctx-size {context} is too large",
                    program.info.name
                )));
            }
            (Some(context), _) => context,
            (None, Some(needed)) if needed > most as usize => {
                return Err(Error::usage(format!(
                    "{needed} tokens of context are needed: {} was compiled for contexts up to {most}",
                    program.info.name
                )));
            }
            (None, Some(needed)) => needed.max(1) as u32,
            (None, None) => most.min(DEFAULT_CONTEXT),
        };
        let weights = WeightFile::open(&self.path(program, "weights.safetensors"))?;
        let model = (program.load)(&weights, context, self.slots)?;
        let memory = Memory::of(&weights, model.layout());
        let cache_layout = self.cache_layout(program, &*model, memory)?;
        let memory = match (&cache_layout, self.experts) {
            (None, ExpertPlacement::Resident) => memory,
            (cache_layout, _) => memory.with_expert_cache(
                model.layout(),
                cache_layout.as_ref().map_or(0, |layout| layout.bytes() as u64),
            ),
        };
        Ok(Loaded { model, weights, context, memory, cache_layout })
    }

    /// The layout of the expert cache, if experts are streamed.
    fn cache_layout(
        &self,
        program: &CompiledModel,
        model: &dyn Model,
        memory: Memory,
    ) -> Result<Option<CacheLayout>, Error> {
        let bytes = match self.experts {
            ExpertPlacement::Resident => return Ok(None),
            ExpertPlacement::Mmap => None,
            ExpertPlacement::Stream(bytes) => bytes,
        };
        let layers = &model.layout().experts;
        if layers.is_empty() {
            return Err(Error::usage(format!(
                "{} is not a mixture-of-experts model: remove --experts",
                model.info().name
            )));
        }
        #[cfg(feature = "cuda")]
        if self.device == DeviceKind::Cuda {
            let message = "--experts stream and mmap are not supported on NVIDIA GPUs: use --device cpu";
            return Err(Error::usage(message));
        }
        if self.experts == ExpertPlacement::Mmap {
            if metal_backend::backend().is_some() && self.device != DeviceKind::Cpu {
                let message =
                    "--experts mmap is not supported on Apple GPUs: use --experts resident or --device cpu";
                return Err(Error::usage(message));
            }
            return Ok(None);
        }
        if self.mmap {
            return Err(Error::usage("--mmap cannot be combined with --experts stream"));
        }
        let other = memory.with_expert_cache(model.layout(), 0).total();
        // A GPU slows down or fails beyond its working set.
        let limit = self.gpu_memory(program).map_or(u64::MAX, |gpu| gpu.bytes);
        let bytes = match (bytes, available().map(|free| free.min(limit))) {
            (Some(bytes), _) => bytes,
            // Leaves a tenth of the free memory unused.
            (None, Some(free)) => (free / 10 * 9).saturating_sub(other),
            (None, None) => {
                let message =
                    "the amount of free memory is unknown: give a size, such as --experts stream:20G";
                return Err(Error::usage(message));
            }
        };
        CacheLayout::new(layers, bytes).map(Some)
    }

    /// [`LoadOptions::load`], then places the model on the device.
    pub fn engine(&self, program: &CompiledModel, needed: Option<usize>) -> Result<Engine, Error> {
        let loaded = self.load(program, needed)?;
        loaded.memory.check(loaded.context, self.slots)?;
        if let Some(gpu) = self.gpu_memory(program) {
            loaded.memory.check_gpu(&gpu, loaded.context, self.slots)?;
        }
        if loaded.cache_layout.is_none() {
            loaded.weights.advise_will_need();
        }
        let device = self.device(program, &loaded)?;
        if let Some(kernels) = device.kernels() {
            (self.on_message)(&kernels);
        }
        Ok(Engine::new(loaded.model, device, loaded.context, self.slots).reproducible(self.reproducible))
    }

    /// The device that will be used: the selected one, or the best that this machine has.
    pub fn device_kind(&self, program: &CompiledModel) -> DeviceKind {
        let _ = program;
        match self.device {
            DeviceKind::Auto if metal_backend::find().is_ok() => DeviceKind::Metal,
            #[cfg(feature = "cuda")]
            DeviceKind::Auto if self.experts != ExpertPlacement::Resident => DeviceKind::Cpu,
            #[cfg(feature = "cuda")]
            DeviceKind::Auto if forge_device::gpu::cuda::find_gpu(program.ptx).is_ok() => DeviceKind::Cuda,
            DeviceKind::Auto => DeviceKind::Cpu,
            selected => selected,
        }
    }

    /// The memory that the GPU may use, if the device is a Metal GPU that reports it.
    pub fn gpu_memory(&self, program: &CompiledModel) -> Option<GpuMemory> {
        if self.device_kind(program) != DeviceKind::Metal {
            return None;
        }
        let gpu = metal_backend::find().ok()?;
        Some(GpuMemory { name: gpu.name, bytes: gpu.working_set? })
    }

    fn device(&self, program: &CompiledModel, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
        let kind = self.device_kind(program);
        if self.device == DeviceKind::Auto && kind != DeviceKind::Metal && requires_metal() {
            let why = metal_backend::find().err().unwrap_or_default();
            return Err(Error::usage(format!("{REQUIRE_METAL}=1 is set: {why}")));
        }
        match kind {
            DeviceKind::Metal => metal(program, loaded),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => cuda(program, loaded),
            DeviceKind::Auto | DeviceKind::Cpu => self.cpu(loaded),
        }
    }

    fn cpu(&self, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
        let device = CpuDevice::new(&loaded.weights, loaded.model.layout(), self.threads)?;
        let device = device.exact(self.f32_activations);
        if self.mmap && self.experts == ExpertPlacement::Resident {
            return Ok(Box::new(device));
        }
        let matrices = if device.is_exact() { Vec::new() } else { repacked::survey(&*loaded.model) };
        Ok(Box::new(match self.experts {
            ExpertPlacement::Resident => device.with_copied_weights(&loaded.weights, matrices),
            ExpertPlacement::Mmap | ExpertPlacement::Stream(_) => {
                let streamed = loaded.expert_cache(repacked::arrangements(&matrices))?;
                let layers = &loaded.model.layout().experts;
                device.with_experts_on_disk(&loaded.weights, layers, streamed, matrices)
            }
        }))
    }
}

/// Finishes a device's background work, such as copying weights. Used before measurements and before serving.
pub fn finish_background_work(device: &mut dyn Device) -> Result<(), Error> {
    /// Time between progress updates.
    const STEP: Duration = Duration::from_millis(100);
    let mut progress = Progress::new("copying weights, MB");
    while let Some([done, all]) = device.finish_background_work(STEP).map_err(Error::from)? {
        progress.at(done / 1_000_000, all / 1_000_000);
    }
    Ok(())
}

/// The variable that makes it an error if `--device auto` finds no Metal GPU. Tests on machines with one set it.
const REQUIRE_METAL: &str = "FORGE_REQUIRE_METAL";

fn requires_metal() -> bool {
    std::env::var_os(REQUIRE_METAL).is_some_and(|value| value == "1")
}

fn metal(program: &CompiledModel, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
    let backend =
        metal_backend::backend().ok_or_else(|| Error::usage("no Metal device found: use --device cpu"))?;
    let (weights, layout, experts) =
        (&loaded.weights, loaded.model.layout(), loaded.expert_cache(HashMap::new())?);
    let mut progress = Progress::new("compiling kernels,");
    let mut report = |done: usize, all: usize| progress.at(done, all);
    let cache = cache_directory();
    Ok((backend.open)(program, weights, layout, cache.as_deref(), experts, &mut report)?)
}

/// The directory for files that can be recreated, such as compiled kernels. The home directory of an iOS app
/// is its container.
pub(crate) fn cache_directory() -> Option<PathBuf> {
    std::env::home_dir().map(|home| home.join("Library/Caches/forge"))
}

#[cfg(feature = "cuda")]
fn cuda(program: &CompiledModel, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
    forge_device::gpu::cuda::find_gpu(program.ptx)
        .map_err(|why| Error::usage(format!("{why}: use --device cpu")))?;
    let mut progress = Progress::new("copying weights to the GPU, MB");
    let mut copied = |done: usize, all: usize| progress.at(done / 1_000_000, all / 1_000_000);
    let (weights, layout) = (&loaded.weights, loaded.model.layout());
    let device =
        forge_device::gpu::cuda::CudaDevice::new(program.ptx, program.kernels, weights, layout, &mut copied)?;
    Ok(Box::new(device))
}
