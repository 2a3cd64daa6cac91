//! Barriers, exactly where a dependency stands.
//!
//! Steps between two barriers may run in any order or at once. A step waits if any byte that it touches was written
//! since the last barrier, or any byte that it writes was touched. Bytes are ranges of the arena after buffers have
//! been placed there, so two buffers that share room wait for each other; keys and values of one layer; and nothing
//! else: weights are never written, and what is written of the batch, the next ids, is no step's of the same pass.
//!
//! A cache that several layers are bound to is written by one of them. It reads that itself, and a barrier stands between
//! what it found and its next step, so those that read the cache in later sections need none for it.
//!
//! Steps that may be left out cannot be relied on to have waited: after neighbours of one condition is pending what was so before
//! them, and what they leave so. Those that are done several times also follow themselves.

use crate::plan::regime::Schedule;
use crate::plan::{Condition, Operand, Plan, Span, Step};
use std::collections::BTreeSet;
use std::ops::Range;

#[derive(Clone, Copy, PartialEq)]
struct Touch {
    span: Span,
    written: bool,
    /// The step that touches, of this section; none if it is of a section before.
    step: Option<usize>,
}

/// Sets `waits` of every step, for each schedule by itself: a pass is of one of them.
pub(crate) fn place_barriers(plan: &mut Plan) {
    Schedule::ALL.into_iter().for_each(|schedule| place(plan, schedule));
}

fn place(plan: &mut Plan, schedule: Schedule) {
    // What may be pending when a section begins: whatever any section before it left. Layers follow the prologue and
    // each other, the epilogue follows them; each section is walked until nothing new can be pending.
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

/// Sets `waits` of a section's steps, given what is pending before it; returns what is pending after it.
fn walk(plan: &mut Plan, schedule: Schedule, section: usize, incoming: &[Touch]) -> Vec<Touch> {
    let mut pending = incoming.to_vec();
    let conditions: Vec<Condition> =
        plan.sections[section].steps(schedule).iter().map(|step| step.condition).collect();
    let mut first = 0;
    for neighbours in conditions.chunk_by(|one, next| one == next) {
        let range = first..first + neighbours.len();
        first = range.end;
        let mut left = walk_neighbours(plan, schedule, (section, range.clone()), pending.clone());
        if neighbours[0] == Condition::Unfolded {
            left = walk_neighbours(plan, schedule, (section, range), either(left, &pending));
        }
        pending = if neighbours[0] == Condition::Always { left } else { either(left, &pending) };
    }
    // Keys and values are another layer's in the next section.
    pending.retain(|touch| touch.span.outside.is_none());
    pending.iter_mut().for_each(|touch| touch.step = None);
    pending
}

/// What is pending after one way or the other.
fn either(mut one: Vec<Touch>, other: &[Touch]) -> Vec<Touch> {
    for touch in other {
        if !one.contains(touch) {
            one.push(*touch);
        }
    }
    one
}

/// Sets `waits` of neighbours that all run or are all left out; returns what is pending after them if they run.
fn walk_neighbours(
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

/// What a step reads and writes of what is ever written, over all its kernels.
fn touches(plan: &Plan, schedule: Schedule, step: &Step, index: usize) -> Vec<Touch> {
    let mut touches = Vec::new();
    for argument in &step.arguments {
        let span = match argument.operand {
            Operand::Scratch(scratch) => {
                let scratch = &plan.scratch[scratch];
                Span { outside: None, start: scratch.offset, end: scratch.offset + scratch.extent(schedule) }
            }
            Operand::Keys | Operand::Values | Operand::Latents | Operand::Memory(_) => {
                Span { outside: Some(argument.operand), start: 0, end: usize::MAX }
            }
            Operand::Field(_) | Operand::Batch(_) | Operand::Seats => continue,
        };
        let written = plan.writes(step.function, &argument.parameter);
        touches.push(Touch { span, written, step: Some(index) });
    }
    touches
}
