//! The content of config.json: the model's description, without its tensors.

use crate::architecture_lookup;
use crate::blueprint::Blueprint;
use crate::checkpoint::files;
use crate::checkpoint::files::Checkpoint;
use crate::config::conventions::Conventions;
use crate::config::file::{Config, Keys};
use crate::config::ignored_keys;
use crate::config::section::Section;
use crate::json;
use crate::options::Options;
use crate::quantization::mlx;
use crate::quantization::mlx::Quantization;
use crate::quantization::scheme;
use crate::quantization::scheme::Scheme;
use crate::tokenizer::special_tokens;
use forge_ir::{Diagnostic, Format, Model, SpecialTokens};
use serde_json::Value;

/// The configuration's content.
pub(crate) struct Description {
    /// Its size is known once the graph is built.
    pub(crate) model: Model,
    /// Builds the graph.
    pub(crate) blueprint: Box<dyn Blueprint>,
    /// Of the tensors, if any.
    pub(crate) quantization: Option<Quantization>,
    /// How quantized matrices are stored, if not as MLX does.
    pub(crate) scheme: Option<Box<dyn Scheme>>,
    /// The format that the model computes in.
    pub(crate) float: Format,
    /// Problems that leave the description complete.
    pub(crate) faults: Vec<Diagnostic>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
    /// Names of files that are ignored because they are not JSON.
    pub(crate) unusable: Vec<String>,
    /// The keys of the configuration.
    pub(crate) keys: Keys,
}

/// Reads the configuration.
pub(crate) fn describe(
    checkpoint: &dyn Checkpoint,
    conventions: Conventions,
    options: &Options,
) -> Result<Description, Vec<Diagnostic>> {
    const FILE: &str = "config.json";
    let Some(text) = files::text(checkpoint, FILE).map_err(|fault| vec![fault])? else {
        let fault = Diagnostic::new("F0101", format!("{FILE} not found"));
        return Err(vec![fault.note("expected a Hugging Face model directory")]);
    };
    let config = Config::new(json::parse(FILE, &text)?, conventions);
    let root = config.root();
    let Some(architecture) = architecture_lookup::of(&root) else { return Err(config.faults()) };
    let blueprint = (architecture.read)(&root);
    let unusable_generation = special_tokens::unusable_generation(checkpoint);
    let specials = special_tokens::read(checkpoint, &root, unusable_generation.is_none());
    let mut notes: Vec<String> = architecture_lookup::note(&root, architecture).into_iter().collect();
    notes.extend(unusable_generation.iter().map(|fault| {
        let why = fault.place.as_ref().map(|place| format!(" ({})", place.label)).unwrap_or_default();
        format!("{}{why}: ignoring the file, as transformers does", fault.message)
    }));
    if root.contains_key_unread("auto_map") {
        notes.push(format!(
            "custom code (auto_map) is ignored: compiling as transformers' {}",
            architecture.class
        ));
    }
    let quantization = mlx::read(&root);
    let scheme = scheme::read(&root, checkpoint);
    let float = float(&root);
    ignored_keys::check(&root, architecture.family);
    root.configures(architecture.family);
    config.reject_unread_keys(architecture.family, &options.allow_unknown);
    config.reject_absent_keys(&options.allow_unknown);
    notes.extend(config.notes());

    let (incomplete, keys) = (config.is_incomplete(), config.keys());
    let mut faults = config.faults();
    let specials = specials.unwrap_or_else(|more| {
        faults.extend(more);
        SpecialTokens::default()
    });
    if incomplete {
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
    let unusable = unusable_generation.map(|_| special_tokens::GENERATION.to_owned()).into_iter().collect();
    Ok(Description { model, blueprint, quantization, scheme, float, faults, notes, unusable, keys })
}

/// The format that the reference computes in: bf16 unless the configuration names another.
fn float(root: &Section<'_>) -> Format {
    let value = &root.document().value;
    let named = |object: &Value| {
        ["dtype", "torch_dtype"].iter().find_map(|key| object.get(*key)?.as_str().map(str::to_owned))
    };
    match named(value).or_else(|| named(value.get("text_config")?)).as_deref() {
        Some("float16") => Format::F16,
        Some("float32") => Format::F32,
        _ => Format::Bf16,
    }
}
