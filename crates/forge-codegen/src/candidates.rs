//! What `layouts.rs` is made of: the kernels that may stand in for the plan's own, and for what.

use crate::names;
use forge_kernels::Instance;
use forge_kernels::spec::Rows;
use forge_planner::{Attention, ExpertMatrix, ExpertsProduct, Layout, Plan, TuningKey, TuningProblem};
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
pub(crate) struct Context {
    model: String,
    choices: Vec<ChoiceText>,
    stand_ins: Vec<StandInText>,
    cuda: Vec<PtxText>,
}

#[derive(Serialize)]
struct ChoiceText {
    /// For people.
    name: String,
    rows: &'static str,
    said: Vec<Named>,
    sums: String,
    kernels: Vec<String>,
    own: LayoutText,
    others: Vec<OtherText>,
}

#[derive(Serialize)]
struct LayoutText {
    /// For people.
    name: String,
    knobs: Vec<Named>,
}

/// A value by its name, as Rust.
#[derive(Serialize)]
struct Named {
    name: String,
    value: String,
}

#[derive(Serialize)]
struct OtherText {
    layout: LayoutText,
    stand_ins: Vec<String>,
}

#[derive(Serialize)]
struct StandInText {
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

/// What a file of PTX of other layouts is called, beside that of the plan's kernels.
pub(crate) fn ptx_file(of_kernels: &str) -> String {
    of_kernels.replace("kernels", "layouts")
}

impl Context {
    pub(crate) fn new(
        plan: &Plan,
        choices: &[TuningProblem],
        cuda: &[forge_kernels::ptx::Target],
    ) -> Context {
        let instances = choices.iter().flat_map(|choice| &choice.others).flat_map(|other| &other.instances);
        let choice = |choice: &TuningProblem| ChoiceText {
            name: choice.subject.describe(),
            rows: choice.subject.rows().name(),
            said: named(&choice.subject, said),
            sums: sums(&choice.subject, &choice.own),
            kernels: choice.kernels.iter().map(|kernel| plan.kernels[*kernel].name.clone()).collect(),
            own: layout(&choice.own, choice.subject.rows()),
            others: choice
                .others
                .iter()
                .map(|other| OtherText {
                    layout: layout(&other.layout, choice.subject.rows()),
                    stand_ins: other.instances.iter().map(|instance| constant(&instance.name)).collect(),
                })
                .collect(),
        };
        Context {
            model: plan.model.name.clone(),
            choices: choices.iter().map(choice).collect(),
            stand_ins: instances.map(stand_in).collect(),
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

fn stand_in(instance: &Instance) -> StandInText {
    StandInText {
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
    LayoutText { name: layout.describe(rows), knobs: named(layout, said) }
}

/// What it is as JSON, which tables have it as: the subject's kind first, and all else by name.
fn named(it: &impl Serialize, text: impl Fn(&Value) -> String) -> Vec<Named> {
    let Ok(Value::Object(fields)) = serde_json::to_value(it) else { return Vec::new() };
    let mut named: Vec<Named> =
        fields.iter().map(|(name, value)| Named { name: name.clone(), value: text(value) }).collect();
    named.sort_by(|a, b| (a.name != "subject", &a.name).cmp(&(b.name != "subject", &b.name)));
    named
}

/// A value of a table, as the runtime has it.
fn said(value: &Value) -> String {
    match value {
        Value::Bool(flag) => format!("Flag({flag})"),
        Value::String(word) => format!("Word({})", names::literal(word)),
        number => format!("Number({number})"),
    }
}

/// What results are sums of.
fn sums(subject: &TuningKey, own: &Layout) -> String {
    match subject {
        TuningKey::Projection(product) if own.wants_units() => format!("Codes({})", product.inputs),
        TuningKey::Projection(product) => format!("Products({})", product.inputs),
        TuningKey::Experts(ExpertsProduct { product: ExpertMatrix::GateUp, inputs, .. }) => {
            format!("Products({inputs})")
        }
        // Those of all experts of a row are one sum.
        TuningKey::Experts(ExpertsProduct { chosen, inputs, .. }) => format!("Products({})", chosen * inputs),
        TuningKey::Attention(Attention { width, window, .. }) => {
            format!("Attention {{ width: {width}, window: {window:?} }}")
        }
    }
}

/// Threadgroups of a dispatch, as a function of its scalars.
fn groups(instance: &Instance) -> String {
    let grid: Vec<String> = instance.decl.grid.iter().map(ToString::to_string).collect();
    let grid = grid.join(", ");
    let spoken_of = |scalar: &String| {
        grid.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == scalar)
    };
    let scalars = instance.decl.scalars.iter().enumerate().filter(|(_, scalar)| spoken_of(scalar));
    let lets: String = scalars
        .map(|(place, scalar)| format!("let {} = scalars[{place}]; ", names::identifier(scalar)))
        .collect();
    if lets.is_empty() { format!("|_| [{grid}]") } else { format!("|scalars| {{ {lets}[{grid}] }}") }
}
