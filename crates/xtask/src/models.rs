//! `cargo xtask models`: docs/models.md, the page of what forge compiles.
//!
//! Nothing in it is written by hand twice: an architecture's sentence is the first of its own file, its keys and kinds of
//! positions are what its reader answers, and what its models have is read from the graphs of the models that are compared
//! with transformers. A class is listed where the planner plans a published configuration of it, in `tests/published`.

use forge_frontend::{DummyWeights, Family, Memory, Options, families, read_model};
use forge_ir::{Activation, Format, Gating, Graph, Op, Pairing};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// What the page is called, and how it comes about.
pub const PAGE: &str = "docs/models.md";

/// Writes the page.
///
/// # Errors
/// What cannot be read or written.
pub fn write() -> Result<(), String> {
    let path = root().join(PAGE);
    fs::write(&path, page()?).map_err(|error| format!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A model that is compared with transformers.
struct Oracle {
    name: String,
    class: String,
    has: BTreeSet<String>,
    /// Whether the program is compared too, and not the reference alone.
    is_whole: bool,
    /// Whether there are kernels for all that it computes.
    is_planned: bool,
}

/// Where published configurations are.
const PUBLISHED: &str = "tests/published";

/// Where such models are; of the first of these the program is compared.
const FOLDERS: [&str; 3] = ["tests/models", "crates/forge-reference/tests/models", "tests/odd"];

/// The page's text.
///
/// # Errors
/// What cannot be read.
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
        let proof = if names.is_empty() { "none of its own".to_owned() } else { names.join(", ") };
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
        "\nAny of them is stored in any number format: {}, or affine (see [formats](reference/formats.md#number-formats)); \
         and as converters for MLX write it ([checkpoints](guide/checkpoints.md#mlx-conversions)).\n\n\
         Almost all of them read {}.\n",
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
            let _ = writeln!(text, "- compared with transformers: {}", has.join(", "));
        }
        let own: Vec<String> = family.keys.iter().filter(|key| !usual.contains(*key)).map(code).collect();
        if !own.is_empty() {
            let _ = writeln!(text, "- keys of its own: {}", own.join(", "));
        }
        let hub: Vec<String> =
            family.hub.iter().map(|name| format!("[{name}](https://huggingface.co/{name})")).collect();
        if !hub.is_empty() {
            let _ = writeln!(text, "- on the hub: {}", hub.join(", "));
        }
    }
    Ok(text)
}

const HEAD: &str = "<!-- Written by `cargo xtask models` from the architectures' own files; a test fails when it is stale. -->

# Models

What forge compiles. The class that a configuration names decides. A key of the configuration that transformers never reads
for this class has no effect and is listed by `forge compile -v`; one that transformers reads and forge does not stops the
compiler, unless it has its default. For a class that is not listed the compiler says which one is nearest. How to add one:
[adding a model](contributing/adding-a-model.md).

The models in the last column are in `tests/models`, a hundred thousand parameters each, with logits that Hugging Face
transformers computed; the program, the reference and the emulated Metal kernels are compared with them. A published
configuration of each class in this table is in `tests/published`; a test plans a program of each, without its weights.

| class | `model_type` | scaled positions | published configuration | compared with transformers |
|---|---|---|---|---|
";

const READ: &str = "
## Compiled, without a published configuration

No published configuration of these classes is among the tests. Their models in `tests/models` or `tests/odd` are compared with
transformers like all others.

| class | `model_type` | compared with transformers |
|---|---|---|
";

fn code(text: impl AsRef<str>) -> String {
    format!("`{}`", text.as_ref())
}

/// The keys that most classes read.
fn usual_keys(families: &[Family]) -> BTreeSet<String> {
    let mut readers: BTreeMap<&String, usize> = BTreeMap::new();
    for key in families.iter().flat_map(|family| &family.keys) {
        *readers.entry(key).or_default() += 1;
    }
    let most = readers.into_iter().filter(|(_, readers)| 4 * readers >= 3 * families.len());
    most.map(|(key, _)| key.clone()).collect()
}

/// A published configuration of each class, by its repository: those of which a program is planned.
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
            format!("{name} is not compiled: {}", faults.join("; "))
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

/// What an architecture's own file says of it first.
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
    Err(format!("no architecture's file names {class}"))
}

/// Every model that is compared with transformers, and what it has.
fn oracles() -> Result<Vec<Oracle>, String> {
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

/// The model of a folder.
fn oracle(path: &Path, is_whole: bool) -> Result<Oracle, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = BTreeMap::new();
    for file in fs::read_dir(path).map_err(failed)? {
        let file = file.map_err(failed)?;
        let name = file.file_name().to_string_lossy().into_owned();
        files.insert(name, fs::read(file.path()).map_err(failed)?);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kind = files.get("config.json").and_then(|config| scaled(config));
    let opened = read_model(&Memory(files), &Options { name: name.clone(), ..Options::default() });
    let graph = opened.map_err(|faults| format!("{name}: {faults:?}"))?.graph;
    let (class, mut has) = (graph.model.architecture.clone(), has(&graph));
    has.extend(kind);
    let is_planned = forge_planner::plan(&graph, &forge_planner::Options::default()).is_ok();
    Ok(Oracle { name, class, has, is_whole, is_planned })
}

/// What a graph has that the standard decoder lacks.
fn has(graph: &Graph) -> BTreeSet<String> {
    let mut has = BTreeSet::new();
    for body in &graph.bodies {
        let any = |is: fn(&Op) -> bool| body.nodes.iter().any(|node| is(&node.op));
        let is_placed =
            graph.bodies[graph.prologue.body.0].nodes.iter().any(|node| matches!(node.op, Op::Place { .. }));
        if any(|op| matches!(op, Op::Attention { .. }))
            && !any(|op| matches!(op, Op::Rotate { .. }))
            && !is_placed
        {
            has.insert("layers without rotation");
        }
        body.nodes.iter().for_each(|node| has.extend(of(&node.op)));
    }
    has.into_iter().map(str::to_owned).collect()
}

/// What of it an operation is.
fn of(op: &Op) -> Vec<&'static str> {
    let found = match op {
        Op::Place { .. } => vec![(true, "learned positions")],
        Op::Embed { scale, .. } => vec![(*scale != 1.0, "factors")],
        Op::Scale(_) => vec![(true, "factors")],
        Op::RmsNorm { parts, .. } => vec![(*parts > 1, "norms of heads")],
        Op::LayerNorm { .. } => vec![(true, "norms that take the mean off")],
        Op::Linear { bias, .. } => vec![(bias.is_some(), "biases")],
        Op::Softcap(_) => vec![(true, "capped logits")],
        Op::Rotate { rotation, width, .. } => vec![
            (rotation.pairing == Pairing::Interleaved, "neighbouring channels that turn together"),
            (2 * rotation.frequencies.len() < *width, "heads that turn in part"),
            (rotation.long.is_some(), "frequencies that depend on the context"),
        ],
        Op::ScaleBy { .. } => vec![(true, "factors of layers")],
        Op::Leave => vec![(true, "inputs of each layer's own")],
        Op::Attention { window, softcap, sinks, .. } => vec![
            (window.is_some(), "windows"),
            (softcap.is_some(), "capped scores"),
            (sinks.is_some(), "sinks of attention"),
        ],
        Op::LatentAttention { .. } => vec![(true, "latents in the place of keys and values")],
        Op::Convolve { .. } => vec![(true, "convolutions")],
        Op::DeltaRule { .. } => vec![(true, "memories that learn by the delta rule")],
        Op::Activate(Activation::Sigmoid) => vec![(true, "gates")],
        Op::Route(routing) => vec![
            (true, "experts"),
            (routing.correction.is_some(), "corrected scores of experts"),
            (routing.groups.is_some(), "groups of experts"),
        ],
        Op::Experts(experts) => vec![
            (experts.biases.is_some(), "biases of experts"),
            (matches!(experts.gating, Gating::Clamped { .. }), "clamped gates"),
        ],
        Op::Take { .. } | Op::EachHead { .. } => Vec::new(),
        Op::Activate(_) | Op::Multiply | Op::Add => Vec::new(),
    };
    found.into_iter().filter_map(|(is, name)| is.then_some(name)).collect()
}

/// The kind of scaled positions that a configuration asks for.
fn scaled(config: &[u8]) -> Option<String> {
    let config: serde_json::Value = serde_json::from_slice(config).ok()?;
    let scaling = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| config[key].as_object())?;
    let kind = scaling.get("rope_type").or(scaling.get("type"))?.as_str()?;
    (kind != "default").then(|| format!("{kind} positions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_that_of_the_architectures() {
        let written = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
        assert!(written == page().unwrap(), "{PAGE} is stale: cargo xtask models");
    }

    /// The page lists a class by the name of its file's configuration.
    #[test]
    fn published_configurations_are_planned_and_named_by_their_class() {
        let published = published().unwrap();
        let files = fs::read_dir(root().join(PUBLISHED)).unwrap().map(|file| file.unwrap().path());
        let classes = files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned());
        assert_eq!(classes.collect::<BTreeSet<_>>(), published.keys().cloned().collect());
    }

    #[test]
    fn every_class_is_compared_with_transformers() {
        let oracles = oracles().unwrap();
        for Family { class, .. } in families() {
            let of_class = || oracles.iter().filter(|oracle| oracle.class == class);
            assert!(of_class().count() > 0, "no model of {class} is compared");
            // Beside what sees pictures these are themselves with other names of tensors: the frontend's tests want the same
            // graph of both.
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
