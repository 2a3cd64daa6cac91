//! Template context of `layouts.rs`: the candidate kernels of `tune` and the kernels that they may replace.

use crate::names;
use forge_kernels::Instance;
use forge_kernels::spec::Rows;
use forge_planner::{Attention, ExpertMatrix, ExpertsProduct, Layout, Plan, TuningKey, TuningProblem};
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
pub(crate) struct Context {
    model: String,
    choices: Vec<TuningProblemText>,
    candidate_kernels: Vec<CandidateKernelText>,
    cuda: Vec<PtxText>,
}

#[derive(Serialize)]
struct TuningProblemText {
    /// Display name.
    name: String,
    rows: &'static str,
    key_values: Vec<Named>,
    error_model: String,
    kernels: Vec<String>,
    default: LayoutText,
    candidates: Vec<CandidateText>,
}

#[derive(Serialize)]
struct LayoutText {
    /// Display name.
    name: String,
    knobs: Vec<Named>,
}

/// A named value as Rust code.
#[derive(Serialize)]
struct Named {
    name: String,
    value: String,
}

#[derive(Serialize)]
struct CandidateText {
    layout: LayoutText,
    candidate_kernels: Vec<String>,
}

#[derive(Serialize)]
struct CandidateKernelText {
    constant: String,
    name: String,
    buffers: Vec<String>,
    threads: usize,
    groups: String,
}

#[derive(Serialize)]
struct PtxText {
    capability: u32,
    waits: bool,
    file: String,
}

/// The file name of the candidates' PTX, given that of the plan's kernels.
pub(crate) fn ptx_file(of_kernels: &str) -> String {
    of_kernels.replace("kernels", "layouts")
}

impl Context {
    pub(crate) fn new(
        plan: &Plan,
        choices: &[TuningProblem],
        cuda: &[forge_kernels::ptx::Target],
    ) -> Context {
        let instances =
            choices.iter().flat_map(|choice| &choice.candidates).flat_map(|candidate| &candidate.instances);
        let choice = |choice: &TuningProblem| TuningProblemText {
            name: choice.subject.describe(),
            rows: choice.subject.rows().name(),
            key_values: named(&choice.subject, key_value),
            error_model: error_model(&choice.subject, &choice.default),
            kernels: choice.kernels.iter().map(|kernel| plan.kernels[*kernel].name.clone()).collect(),
            default: layout(&choice.default, choice.subject.rows()),
            candidates: choice
                .candidates
                .iter()
                .map(|candidate| CandidateText {
                    layout: layout(&candidate.layout, choice.subject.rows()),
                    candidate_kernels: candidate
                        .instances
                        .iter()
                        .map(|instance| constant(&instance.name))
                        .collect(),
                })
                .collect(),
        };
        Context {
            model: plan.model.name.clone(),
            choices: choices.iter().map(choice).collect(),
            candidate_kernels: instances.map(candidate_kernel).collect(),
            cuda: cuda
                .iter()
                .map(|target| PtxText {
                    capability: target.capability,
                    waits: target.waits,
                    file: ptx_file(target.file),
                })
                .collect(),
        }
    }
}

fn candidate_kernel(instance: &Instance) -> CandidateKernelText {
    CandidateKernelText {
        constant: constant(&instance.name),
        name: instance.name.clone(),
        buffers: instance.decl.buffers.iter().map(|buffer| buffer.name.clone()).collect(),
        threads: instance.decl.threads as usize,
        groups: groups(instance),
    }
}

fn constant(name: &str) -> String {
    name.to_ascii_uppercase()
}

fn layout(layout: &Layout, rows: Rows) -> LayoutText {
    LayoutText { name: layout.describe(rows), knobs: named(layout, key_value) }
}

/// The JSON fields of a value, as in tuning tables: `subject` first, the others by name.
fn named(it: &impl Serialize, text: impl Fn(&Value) -> String) -> Vec<Named> {
    let Ok(Value::Object(fields)) = serde_json::to_value(it) else { return Vec::new() };
    let mut named: Vec<Named> =
        fields.iter().map(|(name, value)| Named { name: name.clone(), value: text(value) }).collect();
    named.sort_by(|a, b| (a.name != "subject", &a.name).cmp(&(b.name != "subject", &b.name)));
    named
}

/// A value of a tuning table as a `KeyValue` variant.
fn key_value(value: &Value) -> String {
    match value {
        Value::Bool(flag) => format!("Flag({flag})"),
        Value::String(word) => format!("Word({})", names::literal(word)),
        number => format!("Number({number})"),
    }
}

/// The `ErrorModel` of a kernel's results: what they are sums of.
fn error_model(subject: &TuningKey, own: &Layout) -> String {
    match subject {
        TuningKey::Projection(product) if own.uses_mma() => format!("Codes({})", product.inputs),
        TuningKey::Projection(product) => format!("Products({})", product.inputs),
        TuningKey::Experts(ExpertsProduct { product: ExpertMatrix::GateUp, inputs, .. }) => {
            format!("Products({inputs})")
        }
        // One sum runs over all experts of a row.
        TuningKey::Experts(ExpertsProduct { chosen, inputs, .. }) => format!("Products({})", chosen * inputs),
        TuningKey::Attention(Attention { width, window, .. }) => {
            format!("Attention {{ width: {width}, window: {window:?} }}")
        }
    }
}

/// The grid of a dispatch, as a Rust closure of its scalars.
fn groups(instance: &Instance) -> String {
    let grid: Vec<String> = instance.decl.grid.iter().map(ToString::to_string).collect();
    let grid = grid.join(", ");
    let is_used = |scalar: &String| {
        grid.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == scalar)
    };
    let scalars = instance.decl.scalars.iter().enumerate().filter(|(_, scalar)| is_used(scalar));
    let lets: String = scalars
        .map(|(place, scalar)| format!("let {} = scalars[{place}]; ", names::identifier(scalar)))
        .collect();
    if lets.is_empty() { format!("|_| [{grid}]") } else { format!("|scalars| {{ {lets}[{grid}] }}") }
}
