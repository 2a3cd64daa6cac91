//! What `layouts.rs` is made of: the kernels that may stand in for the plan's own, and for what.

use crate::names;
use forge_kernels::Instance;
use forge_planner::{Choice, Plan};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Context {
    model: String,
    choices: Vec<ChoiceText>,
    stand_ins: Vec<StandInText>,
    cuda: Vec<PtxText>,
}

#[derive(Serialize)]
struct ChoiceText {
    rows: &'static str,
    format: &'static str,
    outputs: usize,
    inputs: usize,
    leaves: bool,
    kernels: Vec<String>,
    own: String,
    others: Vec<OtherText>,
}

#[derive(Serialize)]
struct OtherText {
    knobs: String,
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
    file: String,
}

/// What a file of PTX of other layouts is called, beside that of the plan's kernels.
pub(crate) fn ptx_file(of_kernels: &str) -> String {
    of_kernels.replace("kernels", "layouts")
}

impl Context {
    pub(crate) fn new(plan: &Plan, choices: &[Choice], cuda: &[forge_kernels::ptx::Target]) -> Context {
        let instances = choices.iter().flat_map(|choice| &choice.others).flat_map(|other| &other.instances);
        let choice = |choice: &Choice| ChoiceText {
            rows: choice.product.rows.name(),
            format: choice.product.format.name(),
            outputs: choice.product.outputs,
            inputs: choice.product.inputs,
            leaves: choice.product.leaves,
            kernels: choice.kernels.iter().map(|kernel| plan.kernels[*kernel].name.clone()).collect(),
            own: knobs(&choice.own),
            others: choice
                .others
                .iter()
                .map(|other| OtherText {
                    knobs: knobs(&other.knobs),
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
                .map(|target| PtxText { capability: target.capability, file: ptx_file(target.file) })
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

/// In the order of the runtime's.
fn knobs(knobs: &forge_kernels::spec::Knobs) -> String {
    let forge_kernels::spec::Knobs {
        rows_per_simdgroup,
        simdgroups,
        split,
        packets,
        tile_rows,
        tile_outputs,
    } = knobs;
    format!("[{rows_per_simdgroup}, {simdgroups}, {split}, {packets}, {tile_rows}, {tile_outputs}]")
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
