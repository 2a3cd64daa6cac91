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
//! A step that may be left out cannot be relied on to have waited: what it leaves pending is what was pending before
//! it and what it touches.

use crate::plan::{Condition, Operand, Plan, Span, Step};
use crate::regime::Schedule;
use std::collections::BTreeSet;

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
    for index in 0..plan.sections[section].steps(schedule).len() {
        let step = &plan.sections[section].steps(schedule)[index];
        let touches = touches(plan, schedule, step, index);
        let conflict = |before: &&Touch| {
            touches.iter().any(|touch| (before.written || touch.written) && before.span.overlaps(&touch.span))
        };
        let waits_for: BTreeSet<Option<usize>> =
            pending.iter().filter(conflict).map(|before| before.step).collect();
        let certain = step.condition == Condition::Always;
        if !waits_for.is_empty() && certain {
            pending.clear();
        }
        pending.extend(touches);
        let step = &mut plan.sections[section].steps_mut(schedule)[index];
        step.waits = !waits_for.is_empty();
        step.waits_for = waits_for.into_iter().collect();
    }
    // Keys and values are another layer's in the next section.
    pending.retain(|touch| touch.span.outside.is_none());
    pending.iter_mut().for_each(|touch| touch.step = None);
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
            Operand::Field(_) | Operand::Batch(_) => continue,
        };
        let written = plan.writes(step.function, &argument.parameter);
        touches.push(Touch { span, written, step: Some(index) });
    }
    touches
}
