//! The crate's files: contexts meet templates.

use crate::{candidates, kernels, model, names, runtime_files};
use forge_kernels::ptx;
use forge_planner::Plan;
use minijinja::{Environment, UndefinedBehavior, Value};
use std::collections::BTreeMap;

/// A crate: paths within it, and their bytes.
pub type CrateFiles = BTreeMap<String, Vec<u8>>;

/// What a crate is told besides its plan.
#[derive(Clone, Debug)]
pub struct CrateOptions {
    /// What the program is called; made fit for a crate's name.
    pub name: String,
    /// Numbers in the model's weights.
    pub parameters: u64,
    /// Whether the checkpoint has a chat template.
    pub converses: bool,
    /// Whether it is for NVIDIA GPUs too. Then who writes it adds what `src/kernels.metal` becomes for each of [`forge_kernels::ptx::TARGETS`].
    pub cuda: bool,
    /// Whether it has other layouts of its kernels beside, for `tune` to choose from: `src/layouts.rs` and [`LAYOUTS`]. For NVIDIA
    /// GPUs who writes it adds what that becomes for each target, too, as [`layouts_ptx`] calls it.
    pub tunable: bool,
    /// The folder of the runtime that it depends on; without one it carries its own, in [`RUNTIME`].
    pub runtime: Option<String>,
    /// The command that makes this crate again.
    pub command: String,
    /// Of this compiler.
    pub version: &'static str,
}

/// Where a crate has its runtime.
pub const RUNTIME: &str = "runtime";

/// Where a crate has the text of other layouts, which is whole: the plan's own kernels are in it, too.
pub const LAYOUTS: &str = "src/layouts.metal";

/// Where a crate has what [`LAYOUTS`] becomes for a target.
pub fn layouts_ptx(target: &ptx::Target) -> String {
    format!("src/{}", candidates::ptx_file(target.file))
}

/// A template that did not render: a fault of the compiler, not of the model.
#[derive(Debug, thiserror::Error)]
#[error("template {name}: {source:#}")]
pub struct RenderError {
    name: &'static str,
    source: minijinja::Error,
}

impl RenderError {
    pub(crate) fn of(name: &'static str, source: minijinja::Error) -> RenderError {
        RenderError { name, source }
    }
}

const TEMPLATES: [(&str, &str); 7] = [
    ("Cargo.toml", include_str!("../../../templates/crate/Cargo.toml.jinja")),
    ("README.md", include_str!("../../../templates/crate/README.md.jinja")),
    ("build.rs", include_str!("../../../templates/crate/build.rs")),
    ("src/lib.rs", include_str!("../../../templates/crate/src/lib.rs.jinja")),
    ("src/main.rs", include_str!("../../../templates/crate/src/main.rs.jinja")),
    ("src/model.rs", include_str!("../../../templates/crate/src/model.rs.jinja")),
    ("src/kernels.rs", include_str!("../../../templates/crate/src/kernels.rs.jinja")),
];

const LAYOUTS_TEMPLATE: (&str, &str) =
    ("src/layouts.rs", include_str!("../../../templates/crate/src/layouts.rs.jinja"));

/// Renders every text file of the crate.
pub fn render(plan: &Plan, options: &CrateOptions) -> Result<CrateFiles, RenderError> {
    let context = Value::from(minijinja::value::Serde(&model::Context::new(
        plan,
        options,
        kernels::Context::new(plan),
    )));
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("literal", |text: String| names::literal(&text));
    let mut files = CrateFiles::new();
    for (name, template) in TEMPLATES {
        let text =
            environment.render_str(template, &context).map_err(|source| RenderError { name, source })?;
        files.insert(name.to_owned(), tidy(&text).into_bytes());
    }
    let header = format!(
        "{} by forge {}: every kernel that this model uses, and no other.",
        plan.model.name, options.version
    );
    files
        .insert("src/kernels.metal".to_owned(), forge_kernels::assemble(&plan.kernels, &header).into_bytes());
    if options.tunable {
        let choices = plan.choices();
        let targets: &[ptx::Target] = if options.cuda { &ptx::TARGETS } else { &[] };
        let context =
            Value::from(minijinja::value::Serde(&candidates::Context::new(plan, &choices, targets)));
        let (name, template) = LAYOUTS_TEMPLATE;
        let text =
            environment.render_str(template, &context).map_err(|source| RenderError { name, source })?;
        files.insert(name.to_owned(), tidy(&text).into_bytes());
        let others = choices.into_iter().flat_map(|choice| choice.others).flat_map(|other| other.instances);
        let all: Vec<_> = plan.kernels.iter().cloned().chain(others).collect();
        let header = format!(
            "{} by forge {}: every kernel that this model uses, and those that may stand in for them.",
            plan.model.name, options.version
        );
        files.insert(LAYOUTS.to_owned(), forge_kernels::assemble(&all, &header).into_bytes());
    }
    files
        .insert("Cargo.lock".to_owned(), runtime_files::lock(&names::crate_name(&options.name)).into_bytes());
    if options.runtime.is_none() {
        let vendored = runtime_files::runtime().into_iter();
        files.extend(vendored.map(|(path, bytes)| (format!("{RUNTIME}/{path}"), bytes)));
    }
    Ok(files)
}

/// No trailing blanks, no two empty lines in a row, one line end at the end.
fn tidy(text: &str) -> String {
    let mut tidy = String::with_capacity(text.len());
    let mut empty = true;
    for line in text.lines().map(str::trim_end) {
        if !(line.is_empty() && empty) {
            tidy.push_str(line);
            tidy.push('\n');
        }
        empty = line.is_empty();
    }
    while tidy.ends_with("\n\n") {
        tidy.pop();
    }
    tidy
}
