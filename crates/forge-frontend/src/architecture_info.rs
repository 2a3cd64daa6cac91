//! What each architecture supports: for documentation, and for suggestions when an architecture is
//! unsupported.
//!
//! Nothing is listed by hand. An architecture reads a probe configuration, and the keys that it reads,
//! ignores and rejects show what it supports.

use crate::architectures::ALL;
use crate::blueprint::Architecture;
use crate::config::conventions::Conventions;
use crate::config::file::Config;
use crate::config::ignored_keys;
use crate::gguf;
use crate::json;
use crate::json::Document;
use crate::layers::rope_scaling::KNOWS;
use crate::quantization::mlx;
use forge_ir::Diagnostic;
use std::collections::BTreeSet;

/// A supported architecture.
#[derive(Clone, Debug)]
pub struct Family {
    /// `architectures` in config.json.
    pub class: &'static str,
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// Example repositories on the hub.
    pub hub: &'static [&'static str],
    /// `general.architecture` of GGUF files that are read as this class, if any.
    pub gguf: Option<&'static str>,
    /// Supported RoPE scaling types; `None` without RoPE scaling.
    pub scalings: Option<String>,
    /// The keys of config.json that it reads, including those it reads only to reject values, and without the
    /// keys that have no effect in any architecture.
    pub keys: BTreeSet<String>,
}

/// All supported architectures.
pub fn families() -> Vec<Family> {
    ALL.iter().map(Family::of).collect()
}

impl Family {
    fn of(architecture: &'static Architecture) -> Family {
        // An unknown scaling type: the error lists the supported ones.
        const SCALED: [&str; 2] = [
            r#"{"rope_scaling": {"rope_type": "?"}, "text_config": {"rope_scaling": {"rope_type": "?"}}}"#,
            r#"{"rope_parameters": {"full_attention": {"rope_type": "?"}},
                "text_config": {"rope_parameters": {"full_attention": {"rope_type": "?"}}}}"#,
        ];
        let Architecture { class, family, hub, .. } = *architecture;
        let faults = SCALED.into_iter().flat_map(|text| probe(text, architecture).faults());
        let mut notes = faults.flat_map(|fault| fault.notes);
        let scalings = notes.find_map(|note| Some(note.strip_prefix(KNOWS)?.to_owned()));
        let keys = probe(r#"{"text_config": {}}"#, architecture).keys().read.into_iter().collect();
        let gguf = gguf::families::of_class(class).map(|family| family.name);
        Family { class, model_type: family, hub, gguf, scalings, keys }
    }
}

/// A probe configuration read by an architecture.
fn probe(text: &str, architecture: &Architecture) -> Config {
    let config = Config::new(json::parse("config.json", text).unwrap_or_default(), Conventions::default());
    (architecture.read)(&config.root());
    config
}

/// Reads the keys that are independent of the architecture.
fn read_common_keys(config: &Config, family: &str) {
    let root = config.root();
    for key in ["architectures", "model_type", "bos_token_id", "eos_token_id"] {
        root.get(key);
    }
    mlx::read(&root);
    ignored_keys::check(&root, family);
}

/// Notes for the error about an unsupported architecture.
pub(crate) fn remedies(name: &str, document: &Document) -> Vec<String> {
    let mut notes = nearest(name, document);
    let names: Vec<&str> = ALL.iter().map(|known| known.class).collect();
    notes.push(format!("supported: {}", names.join(", ")));
    notes.push("see docs/models.md; to add an architecture, docs/contributing/adding-a-model.md".to_owned());
    notes
}

/// Keys that most configurations have and that do not describe the computation. They do not count in
/// comparisons.
const BOOKKEEPING: [&str; 14] = [
    "_name_or_path",
    "attention_dropout",
    "auto_map",
    "do_sample",
    "dtype",
    "id2label",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "output_router_logits",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// How an architecture reads a configuration: the keys that it does not support, and other problems.
struct ProbeConfig {
    class: &'static str,
    unknown: Vec<String>,
    faults: Vec<Diagnostic>,
}

/// Notes on the architectures that can read a configuration, or on the one that reads most of it.
fn nearest(name: &str, document: &Document) -> Vec<String> {
    let of_file = document.value.as_object().map_or(0, serde_json::Map::len);
    let tries = ALL.iter().map(|architecture| {
        let config = Config::new(document.clone(), Conventions::default());
        (architecture.read)(&config.root());
        read_common_keys(&config, architecture.family);
        let mut unknown = config.unread_keys(&[]);
        unknown.retain(|path| !BOOKKEEPING.contains(&path.rsplit('.').next().unwrap_or(path)));
        ProbeConfig { class: architecture.class, unknown, faults: config.faults() }
    });
    let tries: Vec<ProbeConfig> = tries.collect();
    let whole: Vec<&str> =
        tries.iter().filter(|it| it.unknown.is_empty() && it.faults.is_empty()).map(|it| it.class).collect();
    if !whole.is_empty() {
        let whole = whole.join(", ");
        let but = "but it may compute something else";
        return vec![format!("the configuration can be read as {whole}, {but}")];
    }
    // Among equals, prefer the most similar name.
    let stem = |class: &str| class.split("For").next().unwrap_or_default().to_lowercase();
    let strangeness = |it: &&ProbeConfig| {
        let unlike = 1.0 - strsim::jaro_winkler(&stem(name), &stem(it.class));
        (it.unknown.len() + it.faults.len(), (1000.0 * unlike) as u32)
    };
    let Some(ProbeConfig { class, unknown, faults }) = tries.iter().min_by_key(strangeness) else {
        return Vec::new();
    };
    if 2 * unknown.len() >= of_file {
        return vec!["no supported architecture reads half of this configuration".to_owned()];
    }
    let known = of_file.saturating_sub(unknown.iter().filter(|path| !path.contains('.')).count());
    let mut notes = vec![format!("nearest architecture: {class}, which reads {known} of {of_file} keys")];
    if !unknown.is_empty() {
        notes.push(format!("{class} does not support {}", unknown.join(", ")));
    }
    notes.extend(faults.iter().map(|fault| format!("as {class}: {}", fault.message)));
    notes
}
