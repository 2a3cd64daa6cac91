//! `cargo xtask models`: writes docs/models.md, the list of supported models.
//!
//! All content is derived from the sources. The description of an architecture is the header of its module; its config keys and
//! RoPE types come from its config reader; the features come from the graphs of the models that are compared with transformers.
//! A class is listed if the planner can plan a published configuration of it, in `tests/published`.

use forge_frontend::{DummyWeights, Family, MemoryCheckpoint, Options, families, read_model};
use forge_ir::{Activation, Format, Gating, Graph, Op, Pairing};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Path of the page.
pub const PAGE: &str = "docs/models.md";

/// Writes the page.
///
/// # Errors
/// A file cannot be read or written.
pub fn write() -> Result<(), String> {
    let path = root().join(PAGE);
    fs::write(&path, page()?).map_err(|error| format!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A test model that is compared with transformers.
struct ComparedModel {
    name: String,
    class: String,
    has: BTreeSet<String>,
    /// Whether the compiled program is compared too, not only the reference implementation.
    is_whole: bool,
    /// Whether it can be planned: kernels exist for all operations.
    is_planned: bool,
}

/// Directory of published configurations.
const PUBLISHED: &str = "tests/published";

/// Directories of test models. The compiled program is only compared for the first.
const FOLDERS: [&str; 3] = ["tests/models", "crates/forge-reference/tests/models", "tests/odd"];

/// Renders the page.
///
/// # Errors
/// A file cannot be read.
pub fn page() -> Result<String, String> {
    let (families, oracles, published) = (families(), oracles()?, published()?);
    let usual = usual_keys(&families);
    let of_class = |class: &'static str| oracles.iter().filter(move |oracle| oracle.class == class);
    let (compiled, read): (Vec<&Family>, Vec<&Family>) =
        families.iter().partition(|family| published.contains_key(family.class));
    let mut text = String::from(HEAD);
    for family in compiled {
        let proof = of_class(family.class).filter(|oracle| oracle.is_whole && oracle.is_planned);
        let names: Vec<String> = proof.map(|oracle| code(&oracle.name)).collect();
        let scalings = family.scalings.as_deref().unwrap_or("learned");
        let proof = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let (class, kind) = (code(family.class), code(family.model_type));
        let name = &published[family.class];
        let _ = writeln!(text, "| {class} | {kind} | {scalings} | {name} | {proof} |");
    }
    if !read.is_empty() {
        text.push_str(READ);
        for family in read {
            let names: Vec<String> = of_class(family.class).map(|oracle| code(&oracle.name)).collect();
            let (class, kind) = (code(family.class), code(family.model_type));
            let _ = writeln!(text, "| {class} | {kind} | {} |", names.join(", "));
        }
    }
    let formats = Format::ALL.map(Format::name).into_iter().filter(|name| !name.starts_with("affine"));
    let formats: Vec<String> = formats.map(code).collect();
    let usual_list: Vec<String> = usual.iter().map(code).collect();
    let _ = write!(
        text,
        "\nEvery model supports every weight format: {}, and affine (see [formats](reference/formats.md#number-formats)). \
         It reads [quantized checkpoints](guide/checkpoints.md#quantized-checkpoints) of other tools, \
         [MLX conversions](guide/checkpoints.md#mlx-conversions) and [GGUF files](guide/gguf.md).\n\n\
         Most classes read these config keys: {}.\n",
        formats.join(", "),
        usual_list.join(", ")
    );
    for family in &families {
        let _ = write!(text, "\n## {}\n\n{}\n\n", family.class, sentence(family.class)?);
        let has: BTreeSet<&str> = of_class(family.class)
            .filter(|oracle| oracle.is_whole)
            .flat_map(|oracle| &oracle.has)
            .map(String::as_str)
            .collect();
        if !has.is_empty() {
            let has: Vec<&str> = has.into_iter().collect();
            let _ = writeln!(text, "- features compared with transformers: {}", has.join(", "));
        }
        let own: Vec<String> = family.keys.iter().filter(|key| !usual.contains(*key)).map(code).collect();
        if !own.is_empty() {
            let _ = writeln!(text, "- additional config keys: {}", own.join(", "));
        }
        if let Some(name) = family.gguf {
            let _ = writeln!(text, "- in GGUF files: `{name}`");
        }
        let hub: Vec<String> =
            family.hub.iter().map(|name| format!("[{name}](https://huggingface.co/{name})")).collect();
        if !hub.is_empty() {
            let _ = writeln!(text, "- on the Hugging Face Hub: {}", hub.join(", "));
        }
    }
    Ok(text)
}

const HEAD: &str = "<!-- Generated by `cargo xtask models`; a test fails when it is stale. -->

# Models

Supported models, by the class in `architectures` of config.json. Config keys that transformers never reads for a class are
ignored; `forge compile -v` lists them. A key that transformers reads and forge does not is an error, unless it has its
default value. For an unsupported class the compiler names the nearest supported one. To add a class, see
[adding a model](contributing/adding-a-model.md).

The models in the last column are in `tests/models`, with 100K parameters each and logits computed by Hugging Face
transformers. The compiled program, the reference implementation and the emulated Metal kernels are compared with these
logits. `tests/published` has a published configuration of each class in this table; a test plans each without weights.

| class | `model_type` | RoPE types | published configuration | compared with transformers |
|---|---|---|---|---|
";

const READ: &str = "
## Supported, without a published configuration

The tests have no published configuration of these classes. Their models in `tests/models` or `tests/odd` are compared with
transformers like all others.

| class | `model_type` | compared with transformers |
|---|---|---|
";

fn code(text: impl AsRef<str>) -> String {
    format!("`{}`", text.as_ref())
}

/// Config keys that most classes read.
fn usual_keys(families: &[Family]) -> BTreeSet<String> {
    let mut readers: BTreeMap<&String, usize> = BTreeMap::new();
    for key in families.iter().flat_map(|family| &family.keys) {
        *readers.entry(key).or_default() += 1;
    }
    let most = readers.into_iter().filter(|(_, readers)| 4 * readers >= 3 * families.len());
    most.map(|(key, _)| key.clone()).collect()
}

/// The published configurations that can be planned, by class and repository.
fn published() -> Result<BTreeMap<String, String>, String> {
    let folder = root().join(PUBLISHED);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut published = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let text = fs::read_to_string(&path).map_err(failed)?;
        let file: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let name = file["name"].as_str().unwrap_or_default().to_owned();
        let faults = |faults: Vec<forge_ir::Diagnostic>| {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            format!("{name} cannot be planned: {}", faults.join("; "))
        };
        let options = Options { name: name.clone(), ..Options::default() };
        let shapes = DummyWeights::new(&file["config"].to_string(), &options).map_err(faults)?;
        let graph = read_model(&shapes, &options).map_err(faults)?.graph;
        let class = graph.model.architecture.clone();
        forge_planner::plan(&graph, &forge_planner::Options::default()).map_err(faults)?;
        published.insert(class, name);
    }
    Ok(published)
}

/// The description of an architecture: the header of its module.
fn sentence(class: &str) -> Result<String, String> {
    let folder = root().join("crates/forge-frontend/src/architectures");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let text = fs::read_to_string(entry.map_err(failed)?.path()).map_err(failed)?;
        if text.contains(&format!("\"{class}\"")) {
            let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
            return Ok(lines.map(str::trim).collect::<Vec<_>>().join("\n"));
        }
    }
    Err(format!("no architecture module mentions {class}"))
}

/// All test models with their features.
fn oracles() -> Result<Vec<ComparedModel>, String> {
    let mut oracles = Vec::new();
    for folder in FOLDERS {
        let path = root().join(folder);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        for entry in fs::read_dir(&path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.join("config.json").is_file() {
                oracles.push(oracle(&path, folder == FOLDERS[0])?);
            }
        }
    }
    oracles.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(oracles)
}

/// The test model in a directory.
fn oracle(path: &Path, is_whole: bool) -> Result<ComparedModel, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = BTreeMap::new();
    for file in fs::read_dir(path).map_err(failed)? {
        let file = file.map_err(failed)?;
        let name = file.file_name().to_string_lossy().into_owned();
        files.insert(name, fs::read(file.path()).map_err(failed)?);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kind = files.get("config.json").and_then(|config| scaled(config));
    let opened = read_model(&MemoryCheckpoint(files), &Options { name: name.clone(), ..Options::default() });
    let graph = opened.map_err(|faults| format!("{name}: {faults:?}"))?.graph;
    let (class, mut has) = (graph.model.architecture.clone(), has(&graph));
    has.extend(kind);
    let is_planned = forge_planner::plan(&graph, &forge_planner::Options::default()).is_ok();
    Ok(ComparedModel { name, class, has, is_whole, is_planned })
}

/// Features of a graph beyond a standard decoder.
fn has(graph: &Graph) -> BTreeSet<String> {
    let mut has = BTreeSet::new();
    for body in &graph.bodies {
        let any = |is: fn(&Op) -> bool| body.nodes.iter().any(|node| is(&node.op));
        let is_placed = graph.bodies[graph.prologue.body.0]
            .nodes
            .iter()
            .any(|node| matches!(node.op, Op::PositionEmbedding { .. }));
        if any(|op| matches!(op, Op::Attention { .. }))
            && !any(|op| matches!(op, Op::Rope { .. }))
            && !is_placed
        {
            has.insert("layers without RoPE");
        }
        body.nodes.iter().for_each(|node| has.extend(of(&node.op)));
    }
    has.into_iter().map(str::to_owned).collect()
}

/// The features of one operation.
fn of(op: &Op) -> Vec<&'static str> {
    let found = match op {
        Op::PositionEmbedding { .. } => vec![(true, "learned positions")],
        Op::Embed { scale, .. } => vec![(*scale != 1.0, "scaling factors")],
        Op::Scale(_) => vec![(true, "scaling factors")],
        Op::RmsNorm { parts, .. } => vec![(*parts > 1, "QK norm")],
        Op::LayerNorm { .. } => vec![(true, "LayerNorm")],
        Op::Linear { bias, .. } => vec![(bias.is_some(), "biases")],
        Op::Softcap(_) => vec![(true, "logit softcapping")],
        Op::Rope { rope, width, .. } => vec![
            (rope.pairing == Pairing::Interleaved, "interleaved RoPE"),
            (2 * rope.frequencies.len() < *width, "partial RoPE"),
            (rope.long.is_some(), "long-context RoPE frequencies"),
        ],
        Op::ScaleBy { .. } => vec![(true, "layer scalars")],
        Op::StorePerLayerInputs => vec![(true, "per-layer inputs")],
        Op::Attention { window, softcap, sinks, .. } => vec![
            (window.is_some(), "sliding windows"),
            (softcap.is_some(), "attention softcapping"),
            (sinks.is_some(), "attention sinks"),
        ],
        Op::LatentAttention { .. } => vec![(true, "MLA")],
        Op::Convolve { .. } => vec![(true, "causal convolutions")],
        Op::DeltaRule { .. } => vec![(true, "Gated DeltaNet")],
        Op::Activate(Activation::Sigmoid) => vec![(true, "sigmoid gates")],
        Op::Route(routing) => vec![
            (true, "mixture of experts"),
            (routing.correction.is_some(), "router score correction"),
            (routing.groups.is_some(), "expert groups"),
        ],
        Op::Experts(experts) => vec![
            (experts.biases.is_some(), "expert biases"),
            (matches!(experts.gating, Gating::Clamped { .. }), "clamped SwiGLU"),
        ],
        Op::PerLayerInput { .. } | Op::PerHeadLinear { .. } => Vec::new(),
        Op::Activate(_) | Op::Multiply | Op::Add => Vec::new(),
    };
    found.into_iter().filter_map(|(is, name)| is.then_some(name)).collect()
}

/// The RoPE scaling type of a configuration.
fn scaled(config: &[u8]) -> Option<String> {
    let config: serde_json::Value = serde_json::from_slice(config).ok()?;
    let scaling = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| config[key].as_object())?;
    let kind = scaling.get("rope_type").or(scaling.get("type"))?.as_str()?;
    (kind != "default").then(|| format!("{kind} RoPE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_page_lists_all_architectures() {
        let written = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
        assert!(written == page().unwrap(), "{PAGE} is stale: cargo xtask models");
    }

    /// Every listed class has a published configuration.
    #[test]
    fn published_configs_are_planned_for_their_architecture() {
        let published = published().unwrap();
        let files = fs::read_dir(root().join(PUBLISHED)).unwrap().map(|file| file.unwrap().path());
        let classes = files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned());
        assert_eq!(classes.collect::<BTreeSet<_>>(), published.keys().cloned().collect());
    }

    #[test]
    fn every_architecture_is_compared_with_transformers() {
        let oracles = oracles().unwrap();
        for Family { class, .. } in families() {
            let of_class = || oracles.iter().filter(|oracle| oracle.class == class);
            assert!(of_class().count() > 0, "no model of {class} is compared");
            // Multimodal classes whose text model equals another class; the frontend's tests compare the graphs.
            let is_other = [
                "Gemma3ForConditionalGeneration",
                "Gemma4ForConditionalGeneration",
                "Qwen3_5ForConditionalGeneration",
                "Qwen3_5MoeForConditionalGeneration",
            ]
            .contains(&class);
            let is_whole = of_class().any(|oracle| oracle.is_whole);
            assert_eq!(of_class().any(|oracle| oracle.is_planned), is_whole || is_other, "{class}");
        }
    }
}
