//! What a step costs: bytes moved and operations done, for any number of rows and any length of cache.
//!
//! These are the least that the step's kernels must move: weights and caches once, vectors once a row. What a kernel
//! moves beyond that (a row of x read by every threadgroup) stays in the chip's caches, and is not counted here; the
//! referee counts what is really loaded.

use crate::plan::{FieldKind, Operand, Plan, Regime, Section, Step, packed_bytes};
use forge_ir::Format;
use forge_kernels::Spec;
use serde::Serialize;
use std::ops::AddAssign;

/// How much a pass is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Rows of the pass.
    pub rows: u64,
    /// Rows that the head is applied to.
    pub wanted: u64,
    /// Positions that each row attends to.
    pub length: u64,
}

/// Bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of keys and values read and written.
    pub cache_bytes: u64,
    /// Bytes of scratch read and written.
    pub scratch_bytes: u64,
    /// Additions and multiplications.
    pub operations: u64,
}

impl Cost {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.cache_bytes + self.scratch_bytes
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.scratch_bytes += other.scratch_bytes;
        self.operations += other.operations;
    }
}

/// The cost of one step under a load.
pub fn step_cost(plan: &Plan, section: &Section, step: &Step, load: Load) -> Cost {
    let Some(kernel) = plan.functions[step.function].kernel(Regime::of(load.rows as usize)) else {
        return Cost::default();
    };
    let instance = &plan.kernels[kernel];
    let mut cost = Cost::default();
    let element = if plan.cache == Format::F32 { 4 } else { 2 };
    let head = step.arguments.iter().any(|argument| match argument.operand {
        Operand::Scratch(index) => plan.scratch[index].name == "logits",
        Operand::Batch(column) => column == crate::BatchColumn::Wanted,
        _ => false,
    });
    let rows = if head { load.wanted } else { load.rows };
    // A row sees its window; rows before the last see as far as their own windows reach.
    let seen = |window: Option<usize>| {
        window.map_or(load.length, |window| load.length.min(window as u64 + load.rows - 1))
    };
    for argument in &step.arguments {
        match argument.operand {
            Operand::Field(field) => {
                cost.weight_bytes += field_bytes(&section.fields[field].kind, &instance.spec, rows)
            }
            Operand::Scratch(index) if plan.scratch[index].name != "partials" => {
                cost.scratch_bytes += rows * plan.scratch[index].width as u64 * 4;
            }
            Operand::Keys | Operand::Values => {
                let state = section.state.map_or(0, |state| (state.heads * state.width) as u64);
                // Rows of one conversation share the cache: a pass reads it once, as far as its last row sees.
                let positions = match &instance.spec {
                    Spec::RotateAppend(_) | Spec::Append(_) => rows,
                    Spec::AttendSplit(attend) => seen(attend.window),
                    Spec::AttendTiled(attend) => seen(attend.window),
                    _ => load.length,
                };
                cost.cache_bytes += positions * state * element;
            }
            _ => {}
        }
    }
    cost.operations = rows
        * match &instance.spec {
            Spec::Project(project) => 2 * (project.outputs * project.inputs) as u64,
            Spec::AttendSplit(attend) => 4 * seen(attend.window) * (attend.query_heads * attend.width) as u64,
            Spec::AttendTiled(attend) => 4 * seen(attend.window) * (attend.query_heads * attend.width) as u64,
            Spec::RmsNorm(norm) => 4 * norm.width as u64,
            Spec::Rotate(rotate) => 3 * (rotate.heads * rotate.width) as u64,
            Spec::RotateAppend(rotate) => 3 * ((rotate.query_heads + rotate.key_heads) * rotate.width) as u64,
            Spec::Elementwise(elementwise) => elementwise.width as u64,
            Spec::Embed(_)
            | Spec::Append(_)
            | Spec::AttendJoin(_)
            | Spec::Argmax(_)
            | Spec::ArgmaxJoin(_) => 0,
        };
    cost
}

/// Bytes of a weight that a kernel reads: a table only at the rows looked up, anything else once.
fn field_bytes(kind: &FieldKind, spec: &Spec, rows: u64) -> u64 {
    match (*kind, spec) {
        (FieldKind::Matrix { format, columns, .. }, Spec::Embed(_)) => rows * format.matrix_bytes(1, columns),
        (FieldKind::Matrix { format, rows, columns }, _) => format.matrix_bytes(rows, columns),
        (FieldKind::Vector { width }, _) => width as u64 * 4,
    }
}

/// The cost of a whole pass, head included.
pub fn pass_cost(plan: &Plan, load: Load, split: bool) -> Cost {
    let mut cost = Cost::default();
    let regime = Regime::of(load.rows as usize);
    for application in &plan.applications {
        let section = &plan.sections[application.section];
        for step in section.steps(regime.schedule()).iter().filter(|step| plan.runs(step, regime, split)) {
            cost += step_cost(plan, section, step, load);
        }
    }
    cost
}

impl Plan {
    /// Bytes of the weights that a decoded token reads: all but the rows of the table that it does not look up.
    pub fn weight_bytes_per_token(&self) -> u64 {
        let load = Load { rows: 1, wanted: 1, length: 1 };
        pass_cost(self, load, false).weight_bytes
    }

    /// Bytes by format over the weight file, widest format first.
    pub fn bytes_by_format(&self) -> Vec<(Format, u64)> {
        let of =
            |format| self.weights.iter().filter(|packed| packed.format == format).map(packed_bytes).sum();
        Format::ALL.into_iter().map(|format| (format, of(format))).filter(|(_, bytes)| *bytes > 0).collect()
    }
}
