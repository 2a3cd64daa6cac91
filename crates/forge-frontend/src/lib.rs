//! Converts a Hugging Face checkpoint or a GGUF file into a graph.
//!
//! [`read_model`] takes a [`Checkpoint`], opened by the caller, and returns an [`Opened`] model: the
//! validated graph and the locations of its tensors. Everything that affects the output is used or rejected.
//! These are errors, all reported at once, each with the nearest known name and a fix:
//!
//! * a configuration key that the reference implementation reads and forge does not,
//! * an unused tensor,
//! * a missing tensor.
//!
//! # Modules
//!
//! * `checkpoint`, `header`, `tensors`: files, safetensors headers, and the tensors of all files. `shapes`: a
//!   checkpoint with dummy weights, made from a configuration.
//! * `json`, `config`: a configuration that records which keys have been read. `reference`: the keys that the
//!   reference implementation reads. `inert`: keys without effect that `reference` cannot identify.
//! * `quantised`, `microscaled`: quantized matrices. `converted`: other changes of MLX's converters. `gguf`:
//!   GGUF files, translated into Hugging Face's files and tensor names. `tekken`: conversion of Mistral's
//!   tokenizer format.
//! * `architectures`: one file per architecture. It reads the configuration into a description made of shared
//!   parts: `decoder`; `attention`, or `latent` or `delta_net` instead; `windows`; `mlp` or `experts`; `rope`
//!   and `scaling`. `wrapped` finds the text model of a multimodal checkpoint. The description builds the
//!   graph with `builder` over tensors found by `binding`. `families` lists what each architecture supports
//!   and finds the one nearest to an unsupported one.
//!
//! This crate does no disk I/O and depends only on `forge-ir`.

pub(crate) mod architecture_info;
mod architectures;
mod attention;
mod binding;
mod builder;
mod checkpoint;
mod config;
mod decoder;
mod delta_net;
mod dummy_weights;
mod experts;
mod gguf;
mod ignored_keys;
mod json;
mod mla;
mod mlp;
mod mlx_layout;
mod mlx_quant;
mod multimodal;
mod mxfp4;
mod per_layer_inputs;
mod reference;
mod rope;
mod rope_scaling;
mod safetensors_header;
mod sliding_window;
mod special_tokens;
mod suggest;
mod tekken;
mod tensors;
mod tied_copies;

pub use crate::architecture_info::{Family, families};
pub use crate::checkpoint::{Checkpoint, Memory};
pub use crate::config::Keys;
pub use crate::dummy_weights::DummyWeights;
pub use crate::safetensors_header::Tensor;
pub use crate::tensors::Tensors;

use crate::builder::Builder;
use crate::config::Conventions;
use crate::mlx_quant::Quantization;
use forge_ir::{Diagnostic, Draft, Graph, Model};

/// User options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The model's name.
    pub name: String,
    /// Keys of config.json to ignore although they are unsupported: `key` or `section.key`.
    pub allow_unknown: Vec<String>,
}

/// A checkpoint that has been read.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The computation graph.
    pub graph: Graph,
    /// Locations of the weights. [`Tensors::read`] reads them by the names in the graph.
    pub tensors: Tensors,
    /// Names of tensors that the model does not need.
    pub ignored: Vec<String>,
    /// Text files that are not in the checkpoint, by their Hugging Face names. For a GGUF file:
    /// configuration, tokenizer and chat template. For a directory: files converted from other formats.
    pub texts: Memory,
    /// Files that are ignored because they are not JSON, as transformers does.
    pub unusable: Vec<String>,
    /// The keys of its configuration.
    pub keys: Keys,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Reads a checkpoint.
///
/// # Errors
/// All problems found, in the order of the stages: checkpoint, configuration, tensors.
pub fn read_model(checkpoint: &dyn Checkpoint, options: &Options) -> Result<Opened, Vec<Diagnostic>> {
    let translated = crate::gguf::translate(checkpoint, &options.allow_unknown)?;
    let mut options = options.clone();
    let mut ignored_keys = Vec::new();
    let mut file_notes = Vec::new();
    let (texts, tensors, conventions) = match translated {
        Some(translated) => {
            ignored_keys = translated.ignored_keys;
            file_notes = translated.notes;
            options.allow_unknown.retain(|key| !translated.keys.contains(key));
            (translated.texts, Ok(translated.tensors), translated.conventions)
        }
        None => (Memory::default(), Tensors::of_folder(checkpoint), Conventions::default()),
    };
    let described = describe(if texts.0.is_empty() { checkpoint } else { &texts }, conventions, &options);
    let (described, tensors) = match (described, tensors) {
        (Ok(described), Ok(tensors)) => (described, tensors),
        (described, tensors) => {
            let faults = |first: Option<Vec<Diagnostic>>| first.into_iter().flatten();
            let configuration = described.map_or_else(|faults| faults, |described| described.faults);
            return Err(faults(tensors.err()).chain(configuration).collect());
        }
    };
    let Described { mut model, mut blueprint, quantization, mut faults, mut notes, unusable, mut keys } =
        described;

    let mut builder = Builder::new(Some(&tensors));
    builder.bindings.quantization = quantization;
    notes.extend(file_notes.into_iter().chain(blueprint.find(&tensors)));
    let parts = blueprint.build(&mut builder);
    for copy in &parts.copies {
        if let Some(fault) = crate::tied_copies::check(checkpoint, &tensors, copy) {
            builder.bindings.fault(fault);
        }
    }
    let mut texts = texts;
    if texts.0.is_empty() {
        match crate::tekken::files(checkpoint, parts.vocabulary) {
            Ok(files) if files.0.is_empty() => {}
            Ok(files) => {
                notes.push("the checkpoint has no tokenizer.json: converting tekken.json".to_owned());
                texts = files;
            }
            Err(fault) => faults.push(fault),
        }
    }
    let ignored = match builder.bindings.finish() {
        Ok(ignored) if faults.is_empty() => ignored,
        finished => {
            faults.extend(finished.err().into_iter().flatten());
            return Err(faults);
        }
    };
    keys.ignored.extend(ignored_keys);
    (model.vocabulary, model.hidden, model.context) = (parts.vocabulary, parts.hidden, parts.context);
    let draft = Draft {
        model,
        weights: builder.bindings.weights,
        states: builder.states,
        bodies: builder.bodies,
        prologue: parts.prologue,
        layers: parts.layers,
        epilogue: parts.epilogue,
    };
    Ok(Opened { graph: draft.validate()?, tensors, ignored, texts, unusable, keys, notes })
}

/// The configuration's content.
struct Described {
    model: Model,
    blueprint: Box<dyn crate::architectures::Blueprint>,
    quantization: Option<Quantization>,
    /// Problems that leave the description complete.
    faults: Vec<Diagnostic>,
    notes: Vec<String>,
    unusable: Vec<String>,
    keys: Keys,
}

fn describe(
    checkpoint: &dyn Checkpoint,
    conventions: Conventions,
    options: &Options,
) -> Result<Described, Vec<Diagnostic>> {
    const FILE: &str = "config.json";
    let Some(text) = crate::checkpoint::text(checkpoint, FILE).map_err(|fault| vec![fault])? else {
        let fault = Diagnostic::new("F0101", format!("{FILE} not found"));
        return Err(vec![fault.note("expected a Hugging Face model directory")]);
    };
    let config = crate::config::Config::new(crate::json::parse(FILE, &text)?, conventions);
    let root = config.root();
    let Some(architecture) = crate::architectures::of(&root) else { return Err(config.faults()) };
    let blueprint = (architecture.read)(&root);
    let unusable_generation = crate::special_tokens::unusable_generation(checkpoint);
    let specials = crate::special_tokens::read(checkpoint, &root, unusable_generation.is_none());
    let mut notes: Vec<String> = crate::architectures::note(&root, architecture).into_iter().collect();
    notes.extend(unusable_generation.iter().map(|fault| {
        let why = fault.place.as_ref().map(|place| format!(" ({})", place.label)).unwrap_or_default();
        format!("{}{why}: ignoring the file, as transformers does", fault.message)
    }));
    if root.has_beside("auto_map") {
        notes.push(format!(
            "custom code (auto_map) is ignored: compiling as transformers' {}",
            architecture.class
        ));
    }
    let quantization = crate::mlx_quant::read(&root);
    crate::ignored_keys::check(&root, architecture.family);
    root.configures(architecture.family);
    config.refuse_unread(architecture.family, &options.allow_unknown);
    config.refuse_absent(&options.allow_unknown);
    notes.extend(config.notes());

    let (broken, keys) = (config.is_broken(), config.keys());
    let mut faults = config.faults();
    let specials = specials.unwrap_or_else(|more| {
        faults.extend(more);
        forge_ir::SpecialTokens::default()
    });
    if broken {
        return Err(faults);
    }
    let model = Model {
        name: options.name.clone(),
        architecture: architecture.class.to_owned(),
        vocabulary: 0,
        hidden: 0,
        context: 0,
        specials,
    };
    let unusable =
        unusable_generation.map(|_| crate::special_tokens::GENERATION.to_owned()).into_iter().collect();
    Ok(Described { model, blueprint, quantization, faults, notes, unusable, keys })
}
