//! What each architecture knows, without a model of it: for people who look for one, and for those who bring one that
//! forge does not know.
//!
//! Nothing is listed here. An architecture is asked to read a configuration, and what it asks for, passes over and refuses
//! is what it knows.

use crate::architectures::{ALL, Architecture};
use crate::config::{Config, Conventions};
use crate::json;
use crate::json::Document;
use crate::rope_scaling::KNOWS;
use crate::{ignored_keys, mlx_quant};
use forge_ir::Diagnostic;
use std::collections::BTreeSet;

/// An architecture that forge knows.
#[derive(Clone, Debug)]
pub struct Family {
    /// What `architectures` says in config.json.
    pub class: &'static str,
    /// What `model_type` says in config.json.
    pub model_type: &'static str,
    /// Repositories of the hub that hold such models.
    pub hub: &'static [&'static str],
    /// How its positions may be scaled; none where it has no rotation to scale.
    pub scalings: Option<String>,
    /// The keys of config.json that it reads, some of them to refuse what forge cannot compute, beside those that mean
    /// nothing in any architecture.
    pub keys: BTreeSet<String>,
}

/// Every architecture that forge knows.
pub fn families() -> Vec<Family> {
    ALL.iter().map(Family::of).collect()
}

impl Family {
    fn of(architecture: &'static Architecture) -> Family {
        // One that no model has: what is refused comes with what would not be.
        const SCALED: [&str; 2] = [
            r#"{"rope_scaling": {"rope_type": "?"}, "text_config": {"rope_scaling": {"rope_type": "?"}}}"#,
            r#"{"rope_parameters": {"full_attention": {"rope_type": "?"}},
                "text_config": {"rope_parameters": {"full_attention": {"rope_type": "?"}}}}"#,
        ];
        let Architecture { class, family, hub, .. } = *architecture;
        let faults = SCALED.into_iter().flat_map(|text| tried(text, architecture).faults());
        let mut notes = faults.flat_map(|fault| fault.notes);
        let scalings = notes.find_map(|note| Some(note.strip_prefix(KNOWS)?.to_owned()));
        let keys = tried(r#"{"text_config": {}}"#, architecture).keys().read.into_iter().collect();
        Family { class, model_type: family, hub, scalings, keys }
    }
}

/// A configuration of ours that an architecture has read.
fn tried(text: &str, architecture: &Architecture) -> Config {
    let config = Config::new(json::parse("config.json", text).unwrap_or_default(), Conventions::default());
    (architecture.read)(&config.root());
    config
}

/// Reads what is read whatever the architecture.
fn around(config: &Config, family: &str) {
    let root = config.root();
    for key in ["architectures", "model_type", "bos_token_id", "eos_token_id"] {
        root.get(key);
    }
    mlx_quant::read(&root);
    ignored_keys::check(&root, family);
}

/// What to say to who brings an architecture that forge does not know.
pub(crate) fn way_out(name: &str, document: &Document) -> Vec<String> {
    let mut notes = nearest(name, document);
    let names: Vec<&str> = ALL.iter().map(|known| known.class).collect();
    notes.push(format!("it knows {}", names.join(", ")));
    notes.push(
        "what each of them is: docs/models.md; how to add one: docs/contributing/adding-a-model.md"
            .to_owned(),
    );
    notes
}

/// Keys that most configurations have and that say nothing of what is computed: no reason to call one unlike an architecture.
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

/// What an architecture makes of a configuration: the keys that it does not read, and what is wrong with those it does.
struct ProbeConfig {
    class: &'static str,
    unknown: Vec<String>,
    faults: Vec<Diagnostic>,
}

/// The architectures that understand a configuration, or the one that understands most of it, and how much that is.
fn nearest(name: &str, document: &Document) -> Vec<String> {
    let of_file = document.value.as_object().map_or(0, serde_json::Map::len);
    let tries = ALL.iter().map(|architecture| {
        let config = Config::new(document.clone(), Conventions::default());
        (architecture.read)(&config.root());
        around(&config, architecture.family);
        let mut unknown = config.unread_keys(&[]);
        unknown.retain(|path| !BOOKKEEPING.contains(&path.rsplit('.').next().unwrap_or(path)));
        ProbeConfig { class: architecture.class, unknown, faults: config.faults() }
    });
    let tries: Vec<ProbeConfig> = tries.collect();
    let whole: Vec<&str> =
        tries.iter().filter(|it| it.unknown.is_empty() && it.faults.is_empty()).map(|it| it.class).collect();
    if !whole.is_empty() {
        let whole = whole.join(", ");
        let but = "which does not say that it computes the same";
        return vec![format!(
            "this configuration reads like one of {whole}: no key of it is unknown there, {but}"
        )];
    }
    // Of those that read as much, the one of a like name.
    let stem = |class: &str| class.split("For").next().unwrap_or_default().to_lowercase();
    let strangeness = |it: &&ProbeConfig| {
        let unlike = 1.0 - strsim::jaro_winkler(&stem(name), &stem(it.class));
        (it.unknown.len() + it.faults.len(), (1000.0 * unlike) as u32)
    };
    let Some(ProbeConfig { class, unknown, faults }) = tries.iter().min_by_key(strangeness) else {
        return Vec::new();
    };
    if 2 * unknown.len() >= of_file {
        return vec!["none that it knows reads even half of this configuration".to_owned()];
    }
    let known = of_file.saturating_sub(unknown.iter().filter(|path| !path.contains('.')).count());
    let mut notes =
        vec![format!("the nearest that it knows is {class}, which reads {known} of {of_file} keys")];
    if !unknown.is_empty() {
        notes.push(format!("{class} does not know {}", unknown.join(", ")));
    }
    notes.extend(faults.iter().map(|fault| format!("as {class}: {}", fault.message)));
    notes
}
