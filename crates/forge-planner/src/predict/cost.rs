//! Cost of a step: bytes moved and operations, for any number of rows and KV length.
//!
//! Bytes are the minimum that the step's kernels must move: each byte of memory once per step that reads or
//! writes it. Repeated loads, such as a row of x by every simdgroup, hit the chip's caches and are not
//! counted. The kernel checker counts actual loads, and a test checks that the distinct bytes match.

use crate::plan::workload::Workload;
use crate::plan::{BatchColumn, Operand, Plan, Section, State, Step};
use crate::predict::amounts::Amounts;
use crate::predict::memory_traffic::Counted;
use forge_kernels::{Instance, Spec};
use serde::Serialize;
use std::ops::AddAssign;

/// Bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Weight bytes read.
    pub weights_read: u64,
    /// Bytes read from slot state: KV cache and recurrent state.
    pub cache_read: u64,
    /// Bytes written to slot state.
    pub cache_written: u64,
    /// Scratch bytes read.
    pub scratch_read: u64,
    /// Scratch bytes written.
    pub scratch_written: u64,
    /// Bytes read from per-row inputs and the expert slot table.
    pub batch_read: u64,
    /// Bytes written to batch columns: the next tokens.
    pub batch_written: u64,
    /// Additions and multiplications.
    pub operations: u64,
    /// Bytes between registers and threadgroup memory or caches: all loads and stores of kernels that multiply
    /// matrices for many rows, 0 for others.
    pub on_core: u64,
}

impl Cost {
    /// Total bytes read.
    pub fn read(&self) -> u64 {
        self.weights_read + self.cache_read + self.scratch_read + self.batch_read
    }

    /// Total bytes written.
    pub fn written(&self) -> u64 {
        self.cache_written + self.scratch_written + self.batch_written
    }

    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.read() + self.written()
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.weights_read += other.weights_read;
        self.cache_read += other.cache_read;
        self.cache_written += other.cache_written;
        self.scratch_read += other.scratch_read;
        self.scratch_written += other.scratch_written;
        self.batch_read += other.batch_read;
        self.batch_written += other.batch_written;
        self.operations += other.operations;
        self.on_core += other.on_core;
    }
}

/// Cost of one step under a workload; zero if the step does not run.
pub fn step_cost(plan: &Plan, section: &Section, step: &Step, load: Workload) -> Cost {
    let Some(instance) = plan.instance(section, step, load) else { return Cost::default() };
    let mut cost = Cost::default();
    for kv_range in plan.kv_ranges(step, load) {
        let rows = if step.of_tile { kv_range.end - kv_range.start } else { plan.rows_of(section, load) };
        cost += cost_of(plan, (section, step), instance, Amounts::of(&instance.spec, rows, load, kv_range));
    }
    cost
}

/// Cost of a step that runs this kernel.
pub(crate) fn cost_of(
    plan: &Plan,
    (section, step): (&Section, &Step),
    instance: &Instance,
    amounts: Amounts,
) -> Cost {
    let step_of = Counted { plan, instance, amounts };
    let on_core = instance.spec.on_core_bytes(amounts.rows, amounts.attended).unwrap_or(0);
    let mut cost = Cost { operations: step_of.operations(), on_core, ..Cost::default() };
    for argument in &step.arguments {
        // A kernel has buffers for some of its step's arguments only.
        if !step_of.takes(&argument.parameter) {
            continue;
        }
        match argument.operand {
            Operand::Field(field) => {
                cost.weights_read += step_of.field(&argument.parameter, &section.fields[field]);
            }
            Operand::Keys | Operand::Values => {
                let (read, written) = step_of.positions();
                let bytes = |state: State| state.heads * plan.head_bytes(state.width);
                let bytes = section.state.map_or(0, bytes) as u64;
                cost.cache_read += read * bytes;
                cost.cache_written += written * bytes;
            }
            Operand::Latents => {
                let (read, written) = step_of.positions();
                let bytes = section.state.map_or(0, |state| plan.head_bytes(state.width)) as u64;
                cost.cache_read += read * bytes;
                cost.cache_written += written * bytes;
            }
            Operand::RecurrentState(recurrent_state) => {
                let elements = section.recurrent_states[recurrent_state].elements() as u64;
                let (read, written) = step_of.recurrent_state(&argument.parameter, elements);
                cost.cache_read += read * 4;
                cost.cache_written += written * 4;
            }
            Operand::Scratch(scratch) => {
                let (read, written) = step_of.scratch(&argument.parameter, scratch);
                cost.scratch_read += read;
                cost.scratch_written += written;
            }
            Operand::Batch(BatchColumn::Next) => cost.batch_written += amounts.rows * 4,
            // All words of a row's sampling parameters except the padding word.
            Operand::Batch(BatchColumn::Draws) => cost.batch_read += amounts.rows * 7 * 4,
            // All rows belong to one slot.
            Operand::Batch(BatchColumn::Slots) if matches!(instance.spec, Spec::MlaLoadLatents(_)) => {
                cost.batch_read += 4;
            }
            Operand::Batch(_) => cost.batch_read += amounts.rows * 4,
            Operand::ExpertSlots => {
                cost.batch_read += step_of.experts_read(&instance.spec).map_or(0, |(read, _)| read * 4);
            }
        }
    }
    cost
}

/// Cost of a whole pass, head included.
pub fn pass_cost(plan: &Plan, load: Workload) -> Cost {
    let mut cost = Cost::default();
    for (section, step) in plan.steps_of(load) {
        cost += step_cost(plan, section, step, load);
    }
    cost
}
