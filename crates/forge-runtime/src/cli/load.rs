//! From files to a running engine: weights mapped, model laid out, memory checked, device made.

use super::super::cpu::CpuDevice;
use super::super::device::Device;
use super::super::engine::Engine;
use super::super::failure::Failure;
use super::super::memory::Memory;
use super::super::model::Model;
use super::super::text::Text;
use super::super::weights::WeightFile;
use super::Program;
use super::arguments::{Common, DeviceName};
use std::path::PathBuf;

/// What context `info` speaks of when none is named.
const ORDINARY_CONTEXT: u32 = 8192;

/// Where a file of the model is.
pub(super) fn path(program: &Program, common: &Common, name: &str) -> PathBuf {
    common.model_dir.clone().unwrap_or_else(|| PathBuf::from(program.directory)).join(name)
}

/// The tokenizer.
pub(super) fn text(program: &Program, common: &Common) -> Result<Text, Failure> {
    Text::read(&path(program, common, "tokenizer.json"))
}

/// A model with its weights mapped, on no device yet.
pub(super) struct Loaded<M> {
    /// The model.
    pub(super) model: M,
    /// Its weights.
    pub(super) weights: WeightFile,
    /// Positions of a slot.
    pub(super) context: u32,
    /// What it takes.
    pub(super) memory: Memory,
}

/// Maps the weights and lays the model out for `--context`, or else for `needed` positions; or for an ordinary
/// context if the command needs none in particular.
pub(super) fn load<M: Model>(
    program: &Program,
    common: &Common,
    needed: Option<usize>,
) -> Result<Loaded<M>, Failure> {
    let most = M::INFO.context;
    let context = match (common.context, needed) {
        (Some(context), _) if context > most => {
            return Err(Failure::misuse(format!(
                "{} was compiled for contexts up to {most}, and --context asks for {context}",
                M::INFO.name
            )));
        }
        (Some(context), _) => context,
        (None, Some(needed)) if needed > most as usize => {
            return Err(Failure::misuse(format!(
                "{needed} positions are needed, and {} was compiled for contexts up to {most}",
                M::INFO.name
            )));
        }
        (None, Some(needed)) => needed.max(1) as u32,
        (None, None) => most.min(ORDINARY_CONTEXT),
    };
    let weights = WeightFile::open(&path(program, common, "weights.safetensors"))?;
    let model = M::new(&weights, context, common.slots)?;
    let memory = Memory::of(&weights, model.layout());
    Ok(Loaded { model, weights, context, memory })
}

/// [`load`], and then puts the model on the device that `--device` names.
pub(super) fn engine<M: Model>(
    program: &Program,
    common: &Common,
    needed: Option<usize>,
) -> Result<Engine<M>, Failure> {
    let loaded = load::<M>(program, common, needed)?;
    loaded.memory.check(loaded.context, common.slots)?;
    let device = device(program, common, &loaded)?;
    Ok(Engine::new(loaded.model, device, loaded.context, common.slots))
}

#[cfg(target_vendor = "apple")]
fn device<M: Model>(
    program: &Program,
    common: &Common,
    loaded: &Loaded<M>,
) -> Result<Box<dyn Device>, Failure> {
    use super::super::metal::MetalDevice;
    if common.device == DeviceName::Cpu {
        return cpu(common, loaded);
    }
    Ok(Box::new(MetalDevice::new(program.metal, program.kernels, &loaded.weights, loaded.model.layout())?))
}

#[cfg(not(target_vendor = "apple"))]
fn device<M: Model>(
    _program: &Program,
    common: &Common,
    loaded: &Loaded<M>,
) -> Result<Box<dyn Device>, Failure> {
    match common.device {
        DeviceName::Metal => Err(Failure::misuse("there is no Metal on this machine: --device cpu")),
        DeviceName::Auto | DeviceName::Cpu => cpu(common, loaded),
    }
}

fn cpu<M: Model>(common: &Common, loaded: &Loaded<M>) -> Result<Box<dyn Device>, Failure> {
    let threads = common.threads.map(usize::from);
    Ok(Box::new(CpuDevice::new(&loaded.weights, loaded.model.layout(), threads)?))
}
