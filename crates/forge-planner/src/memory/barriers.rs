//! Places barriers exactly where a dependency requires one.
//!
//! Steps between two barriers may run in any order or concurrently. A step needs a barrier if it touches a
//! byte that was written since the last barrier, or writes a byte that was touched. Tracked memory is:
//!
//! * byte ranges of the arena, after buffers have been placed, so buffers that share bytes conflict
//! * caches and recurrent state of one layer
//!
//! Weights are never written. The next tokens are written to the batch, but no step of the same pass reads
//! them.
//!
//! If several layers share a cache, one of them writes it and reads it itself. A barrier follows that read,
//! so readers in later sections need none for the cache.
//!
//! Conditional steps may be skipped, so their barriers cannot be relied on. After a run of steps with one
//! condition, the pending accesses are the union of those before it and those after it. Steps that repeat
//! also follow themselves.

use crate::plan::regime::Schedule;
use crate::plan::{Condition, Operand, Plan, Span, Step};
use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Clone, Copy, PartialEq)]
struct Touch {
    span: Span,
    written: bool,
    /// Index of the accessing step in this section; `None` for an earlier section.
    step: Option<usize>,
}

/// Sets `waits` of every step, separately for each schedule.
pub(crate) fn place_barriers(plan: &mut Plan) {
    Schedule::ALL.into_iter().for_each(|schedule| place(plan, schedule));
}

fn place(plan: &mut Plan, schedule: Schedule) {
    // Accesses that may be pending when a section begins: the union over all sections before it. Layers
    // follow the prologue and each other, and the epilogue follows them. Iterates to a fixed point.
    let last = plan.sections.len() - 1;
    let mut incoming: Vec<Vec<Touch>> = vec![Vec::new(); plan.sections.len()];
    for _ in 0..=plan.sections.len() {
        let outgoing: Vec<Vec<Touch>> = (0..plan.sections.len())
            .map(|section| walk(plan, schedule, section, &incoming[section]))
            .collect();
        for before in incoming.iter_mut().skip(1) {
            for touch in outgoing[..last].iter().flatten() {
                if !before.contains(touch) {
                    before.push(*touch);
                }
            }
        }
    }
}

/// Sets `waits` of a section's steps, given the pending accesses before it. Returns those pending after it.
fn walk(plan: &mut Plan, schedule: Schedule, section: usize, incoming: &[Touch]) -> Vec<Touch> {
    let mut pending = incoming.to_vec();
    let conditions: Vec<Condition> =
        plan.sections[section].steps(schedule).iter().map(|step| step.condition).collect();
    let mut first = 0;
    for run in conditions.chunk_by(|one, next| one == next) {
        let range = first..first + run.len();
        first = range.end;
        let mut after = walk_run(plan, schedule, (section, range.clone()), pending.clone());
        if run[0] == Condition::Expanded {
            after = walk_run(plan, schedule, (section, range), either(after, &pending));
        }
        pending = if run[0] == Condition::Always { after } else { either(after, &pending) };
    }
    // In the next section, caches and recurrent states are those of another layer.
    pending.retain(|touch| touch.span.outside.is_none());
    pending.iter_mut().for_each(|touch| touch.step = None);
    pending
}

/// Union of two sets of pending accesses.
fn either(mut one: Vec<Touch>, other: &[Touch]) -> Vec<Touch> {
    for touch in other {
        if !one.contains(touch) {
            one.push(*touch);
        }
    }
    one
}

/// Sets `waits` for a run of steps with one condition. Returns the accesses pending after it, if it runs.
fn walk_run(
    plan: &mut Plan,
    schedule: Schedule,
    (section, range): (usize, Range<usize>),
    mut pending: Vec<Touch>,
) -> Vec<Touch> {
    for index in range {
        let step = &plan.sections[section].steps(schedule)[index];
        let touches = touches(plan, schedule, step, index);
        let conflict = |before: &&Touch| {
            touches.iter().any(|touch| (before.written || touch.written) && before.span.overlaps(&touch.span))
        };
        let waits_for: BTreeSet<Option<usize>> =
            pending.iter().filter(conflict).map(|before| before.step).collect();
        if !waits_for.is_empty() {
            pending.clear();
        }
        pending.extend(touches);
        let step = &mut plan.sections[section].steps_mut(schedule)[index];
        step.waits = !waits_for.is_empty();
        step.waits_for = waits_for.into_iter().collect();
    }
    pending
}

/// All accesses of a step to writable memory, over all its kernels.
fn touches(plan: &Plan, schedule: Schedule, step: &Step, index: usize) -> Vec<Touch> {
    let mut touches = Vec::new();
    for argument in &step.arguments {
        let span = match argument.operand {
            Operand::Scratch(scratch) => {
                let scratch = &plan.scratch[scratch];
                Span { outside: None, start: scratch.offset, end: scratch.offset + scratch.extent(schedule) }
            }
            Operand::Keys | Operand::Values | Operand::Latents | Operand::RecurrentState(_) => {
                Span { outside: Some(argument.operand), start: 0, end: usize::MAX }
            }
            Operand::Field(_) | Operand::Batch(_) | Operand::ExpertSlots => continue,
        };
        let written = plan.writes(step.function, &argument.parameter);
        touches.push(Touch { span, written, step: Some(index) });
    }
    touches
}
