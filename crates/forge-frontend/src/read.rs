//! Reads a checkpoint into a validated graph.

use crate::checkpoint::files::{Checkpoint, MemoryCheckpoint};
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::tied_copies;
use crate::config::conventions::Conventions;
use crate::config::file::Keys;
use crate::description::{Description, describe};
use crate::gguf;
use crate::graph::builder::Builder;
use crate::options::Options;
use crate::quantization::resolve::{Resolved, StoredMatrices, resolve, resolve_blocks};
use crate::quantization::scheme::Scheme;
use crate::tokenizer::tekken;
use forge_ir::{Diagnostic, Draft, Graph};

/// A checkpoint that has been read.
#[derive(Clone, Debug)]
pub struct LoadedCheckpoint {
    /// The computation graph.
    pub graph: Graph,
    /// Locations of the weights. [`Tensors::read`] reads them by the names in the graph.
    pub tensors: Tensors,
    /// Names of tensors that the model does not need.
    pub ignored: Vec<String>,
    /// Text files that are not in the checkpoint, by their Hugging Face names. For a GGUF file:
    /// configuration, tokenizer and chat template. For a directory: files converted from other formats.
    pub texts: MemoryCheckpoint,
    /// Files that are ignored because they are not JSON, as transformers does.
    pub unusable: Vec<String>,
    /// The keys of its configuration.
    pub keys: Keys,
    /// Quantized matrices that are stored as several tensors, by storage.
    pub matrices: Vec<StoredMatrices>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Reads a checkpoint.
///
/// # Errors
/// All problems found, in the order of the stages: checkpoint, configuration, tensors.
pub fn read_model(
    checkpoint: &dyn Checkpoint,
    options: &Options,
) -> Result<LoadedCheckpoint, Vec<Diagnostic>> {
    let translated = gguf::translate(checkpoint, &options.allow_unknown)?;
    let mut options = options.clone();
    let mut ignored_keys = Vec::new();
    let (mut file_notes, mut unused_layers) = (Vec::new(), Vec::new());
    let (texts, tensors, conventions) = match translated {
        Some(translated) => {
            ignored_keys = translated.ignored_keys;
            file_notes = translated.notes;
            unused_layers = translated.ignored;
            options.allow_unknown.retain(|key| !translated.keys.contains(key));
            (translated.texts, Ok(translated.tensors), translated.conventions)
        }
        None => (MemoryCheckpoint::default(), Tensors::open_directory(checkpoint), Conventions::default()),
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
    let Description {
        mut model,
        mut blueprint,
        quantization,
        scheme,
        float,
        mut faults,
        mut notes,
        unusable,
        mut keys,
    } = described;
    let mut tensors = tensors;
    let scheme = scheme.as_deref().or(quantization.as_ref().map(|mlx| mlx as &dyn Scheme));
    let resolved = match scheme {
        Some(scheme) => resolve(scheme, checkpoint, &mut tensors, float),
        None => Ok(resolve_blocks(&tensors)),
    };
    let Resolved { matrices, unused, notes: notes_on_storage } = match resolved {
        Ok(resolved) => resolved,
        Err(more) => return Err(faults.into_iter().chain(more).collect()),
    };

    let mut builder = Builder::new(Some(&tensors));
    builder.bindings.quantization = quantization.clone();
    builder.bindings.ignore(|name| unused.contains(name));
    notes.extend(file_notes.into_iter().chain(notes_on_storage).chain(blueprint.find(&tensors)));
    let parts = blueprint.build(&mut builder);
    for copy in &parts.copies {
        if let Some(fault) = tied_copies::check(checkpoint, &tensors, copy) {
            builder.bindings.fault(fault);
        }
    }
    let mut texts = texts;
    if texts.0.is_empty() {
        match tekken::files(checkpoint, parts.vocabulary) {
            Ok(files) if files.0.is_empty() => {}
            Ok(files) => {
                notes.push("the checkpoint has no tokenizer.json: converting tekken.json".to_owned());
                texts = files;
            }
            Err(fault) => faults.push(fault),
        }
    }
    let mut ignored = match builder.bindings.finish() {
        Ok(ignored) if faults.is_empty() => ignored,
        finished => {
            faults.extend(finished.err().into_iter().flatten());
            return Err(faults);
        }
    };
    ignored.extend(unused_layers);
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
    Ok(LoadedCheckpoint {
        graph: draft.validate()?,
        tensors,
        ignored,
        texts,
        unusable,
        keys,
        matrices,
        notes,
    })
}
