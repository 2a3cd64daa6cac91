//! From files to a running engine: weights mapped, model laid out, memory checked, device made.
//!
//! A [`Program`] is what the generated crate knows of itself, a [`Setup`] what its user wants. Everything else about a
//! run is in the files of the model's directory.

use crate::cli::progress::Progress;
use crate::cpu::CpuDevice;
use crate::cpu::format::repacked;
use crate::device::Device;
use crate::engine::Engine;
use crate::error::Error;
use crate::model::Model;
use crate::model::memory::{Memory, available};
use crate::offload::{CacheLayout, ExpertCache, ExpertPlacement, Repacking, UsageStats, WeightSource};
use crate::program::CompiledModel;
use crate::sampling::sampler::SamplingParams;
use crate::text::chat_template::Template;
use crate::text::tokenizer::Tokenizer;
use crate::weights::WeightFile;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceKind {
    /// The GPU that the program is compiled for where there is one, else the CPU
    #[default]
    Auto,
    /// The GPU of a Mac
    Metal,
    #[cfg(feature = "cuda")]
    /// An NVIDIA GPU
    Cuda,
    /// The CPU
    Cpu,
}

/// How a program is to be run.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The directory of the model's files; the crate's own if there is none.
    pub directory: Option<PathBuf>,
    /// Where to compute.
    pub device: DeviceKind,
    /// Threads of the CPU device; as many as the machine runs at once if there is no number.
    pub threads: Option<usize>,
    /// Whether the CPU device reads weights from the mapped file, and makes no copy in huge pages.
    pub mapped: bool,
    /// Where experts are.
    pub experts: ExpertPlacement,
    /// Whether the CPU device rounds nothing that it multiplies: see [`CpuDevice::exact`].
    pub exact: bool,
    /// Positions of a slot; what is needed if there is no number.
    pub context: Option<u32>,
    /// Conversations to make room for.
    pub slots: u32,
    /// Who is told what a device has to say of how it was made.
    pub told: fn(&str),
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            directory: None,
            device: DeviceKind::Auto,
            threads: None,
            mapped: false,
            experts: ExpertPlacement::Resident,
            exact: false,
            context: None,
            slots: 1,
            told: |_| (),
        }
    }
}

/// Positions where nobody says how many are needed, if the model has as many.
const ORDINARY_CONTEXT: u32 = 8192;

/// A model with its weights mapped, on no device yet.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// Its weights.
    pub weights: WeightFile,
    /// Positions of a slot.
    pub context: u32,
    /// What it takes.
    pub memory: Memory,
    /// Seats of its experts, if they are streamed.
    pub room: Option<CacheLayout>,
}

impl Loaded {
    /// The region of seats and who fills it, if experts are streamed; with some planes arranged, by where they lie in the weight file.
    pub fn streamed(&self, arrangements: HashMap<usize, Repacking>) -> Result<Option<ExpertCache>, String> {
        let Some(room) = &self.room else { return Ok(None) };
        let (layers, source) = (&self.model.layout().experts, Arc::new(WeightSource::new(&self.weights)?));
        let mut progress = Progress::new("reading experts, MB");
        let mut told = |done: usize, all: usize| progress.at(done / 1_000_000, all / 1_000_000);
        let habits = UsageStats::beside(self.weights.path(), layers);
        ExpertCache::new(layers, room.clone(), source, arrangements)?.with_habits(habits, &mut told).map(Some)
    }
}

impl LoadOptions {
    /// Where a file of the model is.
    pub fn path(&self, program: &CompiledModel, name: &str) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| PathBuf::from(program.directory)).join(name)
    }

    /// The tokenizer, which is being read.
    pub fn text(&self, program: &CompiledModel) -> Tokenizer {
        Tokenizer::being_read(self.path(program, "tokenizer.json"))
    }

    /// The chat template, if the model has one.
    pub fn template(&self, program: &CompiledModel) -> Result<Option<Template>, Error> {
        Template::read(&self.path(program, ""))
    }

    /// How the model's makers would have ids chosen: by `generation_config.json`.
    pub fn sampling(&self, program: &CompiledModel) -> Result<SamplingParams, Error> {
        let path = self.path(program, "generation_config.json");
        let trouble = |what: String| Error::runtime(format!("{}: {what}", path.display()));
        match std::fs::read(&path) {
            Ok(bytes) => SamplingParams::configured(&bytes).map_err(trouble),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(SamplingParams::ordinary()),
            Err(error) => Err(trouble(format!("cannot be read: {error}"))),
        }
    }

    /// Maps the weights and lays the model out for the context that was asked for, or else for `needed` positions; or
    /// for an ordinary context if nobody says how many are needed.
    pub fn load(&self, program: &CompiledModel, needed: Option<usize>) -> Result<Loaded, Error> {
        let most = program.info.context;
        let context = match (self.context, needed) {
            (Some(context), _) if context > most => {
                return Err(Error::usage(format!(
                    "{} was compiled for contexts up to {most}, and --ctx-size asks for {context}",
                    program.info.name
                )));
            }
            (Some(context), _) => context,
            (None, Some(needed)) if needed > most as usize => {
                return Err(Error::usage(format!(
                    "{needed} positions are needed, and {} was compiled for contexts up to {most}",
                    program.info.name
                )));
            }
            (None, Some(needed)) => needed.max(1) as u32,
            (None, None) => most.min(ORDINARY_CONTEXT),
        };
        let weights = WeightFile::open(&self.path(program, "weights.safetensors"))?;
        let model = (program.load)(&weights, context, self.slots)?;
        let memory = Memory::of(&weights, model.layout());
        let room = self.room(&*model, memory)?;
        let memory = match (&room, self.experts) {
            (None, ExpertPlacement::Resident) => memory,
            (room, _) => {
                memory.with_seats(model.layout(), room.as_ref().map_or(0, |room| room.bytes() as u64))
            }
        };
        Ok(Loaded { model, weights, context, memory, room })
    }

    /// Seats for the experts, if they are to be streamed.
    fn room(&self, model: &dyn Model, memory: Memory) -> Result<Option<CacheLayout>, Error> {
        let bytes = match self.experts {
            ExpertPlacement::Resident => return Ok(None),
            ExpertPlacement::Mapped => None,
            ExpertPlacement::Streamed(bytes) => bytes,
        };
        let layers = &model.layout().experts;
        if layers.is_empty() {
            return Err(Error::usage(format!("{} has no experts: --experts resident", model.info().name)));
        }
        #[cfg(feature = "cuda")]
        if self.device == DeviceKind::Cuda {
            let what = "experts are read from disk for a Mac's GPU or for the CPU, not for an NVIDIA GPU: --device cpu";
            return Err(Error::usage(what));
        }
        if self.experts == ExpertPlacement::Mapped {
            #[cfg(target_vendor = "apple")]
            if self.device != DeviceKind::Cpu {
                let what =
                    "for a Mac's GPU all weights are in the mapped file: --experts resident, or --device cpu";
                return Err(Error::usage(what));
            }
            return Ok(None);
        }
        if self.mapped {
            return Err(Error::usage("--mmap leaves all weights in the file: without --experts stream"));
        }
        let other = memory.with_seats(model.layout(), 0).total();
        let bytes = match (bytes, available()) {
            (Some(bytes), _) => bytes,
            // What is left where a tenth of what is free stays free.
            (None, Some(free)) => (free / 10 * 9).saturating_sub(other),
            (None, None) => {
                let what = "this system does not tell how much memory is free: --experts stream:20G, say";
                return Err(Error::usage(what));
            }
        };
        CacheLayout::new(layers, bytes).map(Some)
    }

    /// [`Setup::load`], and then puts the model on the device.
    pub fn engine(&self, program: &CompiledModel, needed: Option<usize>) -> Result<Engine, Error> {
        let loaded = self.load(program, needed)?;
        loaded.memory.check(loaded.context, self.slots)?;
        if loaded.room.is_none() {
            loaded.weights.will_be_read();
        }
        let device = self.device(program, &loaded)?;
        if let Some(kernels) = device.kernels() {
            (self.told)(&kernels);
        }
        Ok(Engine::new(loaded.model, device, loaded.context, self.slots))
    }

    /// Where it will be computed: the device that was asked for, or that this machine has.
    pub fn kind(&self, program: &CompiledModel) -> DeviceKind {
        let _ = program;
        match self.device {
            DeviceKind::Auto if has_metal() => DeviceKind::Metal,
            #[cfg(feature = "cuda")]
            DeviceKind::Auto if self.experts != ExpertPlacement::Resident => DeviceKind::Cpu,
            #[cfg(feature = "cuda")]
            DeviceKind::Auto if crate::gpu::cuda::card(program.ptx).is_ok() => DeviceKind::Cuda,
            DeviceKind::Auto => DeviceKind::Cpu,
            asked => asked,
        }
    }

    fn device(&self, program: &CompiledModel, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
        match self.kind(program) {
            DeviceKind::Metal => metal(program, loaded),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => cuda(program, loaded),
            DeviceKind::Auto | DeviceKind::Cpu => self.cpu(loaded),
        }
    }

    fn cpu(&self, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
        let device = CpuDevice::new(&loaded.weights, loaded.model.layout(), self.threads)?;
        let device = device.exact(self.exact);
        if self.mapped && self.experts == ExpertPlacement::Resident {
            return Ok(Box::new(device));
        }
        let matrices = if self.exact { Vec::new() } else { repacked::survey(&*loaded.model) };
        Ok(Box::new(match self.experts {
            ExpertPlacement::Resident => device.with_copied_weights(&loaded.weights, matrices),
            ExpertPlacement::Mapped | ExpertPlacement::Streamed(_) => {
                let streamed = loaded.streamed(repacked::arrangements(&matrices))?;
                let layers = &loaded.model.layout().experts;
                device.with_experts_on_disk(&loaded.weights, layers, streamed, matrices)
            }
        }))
    }
}

/// Has a device do now what passes would find it doing, where there is time before the first or all are to be alike.
pub fn settle(device: &mut dyn Device) -> Result<(), Error> {
    /// Between one word and the next.
    const A_WHILE: Duration = Duration::from_millis(100);
    let mut progress = Progress::new("copying weights, MB");
    while let Some([done, all]) = device.settle(A_WHILE).map_err(Error::from)? {
        progress.at(done / 1_000_000, all / 1_000_000);
    }
    Ok(())
}

#[cfg(target_vendor = "apple")]
use crate::gpu::metal::has_metal;

#[cfg(not(target_vendor = "apple"))]
fn has_metal() -> bool {
    false
}

#[cfg(target_vendor = "apple")]
fn metal(program: &CompiledModel, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
    let (weights, layout, experts) =
        (&loaded.weights, loaded.model.layout(), loaded.streamed(HashMap::new())?);
    Ok(Box::new(crate::gpu::metal::MetalDevice::new(program, weights, layout, cache().as_deref(), experts)?))
}

/// Where Apple's systems have programs keep what they can make again.
#[cfg(target_vendor = "apple")]
pub(crate) fn cache() -> Option<PathBuf> {
    std::env::home_dir().map(|home| home.join("Library/Caches/forge"))
}

#[cfg(not(target_vendor = "apple"))]
fn metal(_: &CompiledModel, _: &Loaded) -> Result<Box<dyn Device>, Error> {
    Err(Error::usage("there is no Metal on this machine: --device cpu"))
}

#[cfg(feature = "cuda")]
fn cuda(program: &CompiledModel, loaded: &Loaded) -> Result<Box<dyn Device>, Error> {
    crate::gpu::cuda::card(program.ptx).map_err(|why| Error::usage(format!("{why}: --device cpu")))?;
    let mut progress = Progress::new("copying weights to the GPU, MB");
    let mut copied = |done: usize, all: usize| progress.at(done / 1_000_000, all / 1_000_000);
    let (weights, layout) = (&loaded.weights, loaded.model.layout());
    let device =
        crate::gpu::cuda::CudaDevice::new(program.ptx, program.kernels, weights, layout, &mut copied)?;
    Ok(Box::new(device))
}
