//! The steps of a section as kernel calls in `model.rs`, each with its formula as a comment and its barrier.

use crate::{kernels, names};
use forge_planner::{BatchColumn, Condition, Operand, Plan, Schedule, Section, Step};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct StepText {
    text: String,
}

/// The maximum length of a call on one line. A longer one has one argument per line.
const LONGEST_CALL: usize = 104;

/// The function of `model.rs` that calls a step. It determines the names of operands.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Caller {
    Forward,
    Layer,
    Head,
}

pub(crate) fn steps(
    plan: &Plan,
    kernels: &kernels::Context,
    section: &Section,
    schedule: Schedule,
    caller: Caller,
) -> Vec<StepText> {
    let text = |step: &Step| step_text(plan, kernels, section, step, caller);
    let steps = section.steps(schedule).chunk_by(|one, next| one.condition == next.condition);
    let texts = steps.flat_map(|run| {
        let texts: Vec<String> = run.iter().map(text).collect();
        match (condition(run[0].condition, caller), &texts[..]) {
            (None, _) => texts,
            // The formula of a single step precedes the condition.
            (Some(condition), [only]) => {
                let (formula, call) = only.split_once('\n').unwrap_or_default();
                vec![format!("{formula}\n{}", block(condition, call))]
            }
            (Some(condition), _) => vec![block(condition, &texts.join("\n"))],
        }
    });
    texts.map(|text| StepText { text }).collect()
}

/// The condition of a step as Rust code; `None` if it always runs.
fn condition(condition: Condition, caller: Caller) -> Option<&'static str> {
    match condition {
        Condition::SeveralRows if caller == Caller::Head => Some("if h.rows > 1"),
        Condition::Always => None,
        Condition::Split => Some("if b.kv_splits > 1"),
        Condition::SeveralRows => Some("if b.rows > 1"),
        Condition::SharedSlots => Some("if b.appends == 0"),
        Condition::SeparateSlots => Some("if b.appends != 0"),
        Condition::Many => Some("if b.rows as usize > SMALL_BATCH_MAX"),
        Condition::Absorbed => Some("if b.expanded == 0"),
        Condition::Expanded => Some("for tile in b.tiles()"),
        Condition::Greedy => Some("if h.sampling.is_none()"),
        Condition::Drawn => Some("if let Some(sampling) = h.sampling"),
    }
}

fn block(condition: &str, inside: &str) -> String {
    format!("{condition} {{\n    {}\n}}", inside.replace('\n', "\n    "))
}

fn step_text(
    plan: &Plan,
    kernels: &kernels::Context,
    section: &Section,
    step: &Step,
    caller: Caller,
) -> String {
    let function = &kernels.functions[step.function];
    let arguments: Vec<String> = function
        .takes
        .iter()
        .map(|parameter| {
            let operand =
                step.arguments.iter().find(|argument| names::identifier(&argument.parameter) == *parameter);
            operand.map_or_else(
                || scalar(parameter, step, caller),
                |argument| operand_text(plan, section, argument.operand, caller),
            )
        })
        .collect();
    let mut call = format!("kernels::{}(pass, {});", function.name, arguments.join(", "));
    if call.len() > LONGEST_CALL {
        call = format!("kernels::{}(\n    pass,\n    {},\n);", function.name, arguments.join(",\n    "));
    }
    let barrier = if step.waits { "pass.barrier();\n" } else { "" };
    format!("// {}\n{barrier}{call}", step.formula)
}

fn scalar(name: &str, step: &Step, caller: Caller) -> String {
    match (name, caller) {
        ("rows", _) if step.of_tile => "tile.end - tile.begin".to_owned(),
        ("begin" | "end", _) => format!("tile.{name}"),
        // These differ between layers.
        ("capacity", _) => format!("cache.{name}"),
        ("first", _) => format!("w.{name}"),
        (_, Caller::Head) => format!("h.{name}"),
        ("splits", _) => "b.kv_splits".to_owned(),
        _ => format!("b.{name}"),
    }
}

fn operand_text(plan: &Plan, section: &Section, operand: Operand, caller: Caller) -> String {
    match operand {
        Operand::Field(field) if caller == Caller::Layer => {
            format!("w.{}", names::identifier(&section.fields[field].name))
        }
        Operand::Field(field) => {
            if section.fields[field].of_next {
                return format!("self.{}", section.fields[field].name);
            }
            // A tied head and the embedding are one stored weight with one name.
            let application =
                plan.applications.iter().find(|application| &plan.sections[application.section] == section);
            let stored =
                application.map(|application| plan.weights[application.weights[field]].name.as_str());
            format!("self.{}", names::identifier(stored.unwrap_or(&section.fields[field].name)))
        }
        Operand::Scratch(scratch) => format!("s.{}", names::identifier(&plan.scratch[scratch].name)),
        Operand::Keys => "cache.keys".to_owned(),
        Operand::Values => "cache.values".to_owned(),
        Operand::Latents => "cache.latents".to_owned(),
        Operand::RecurrentState(state) => {
            format!("state.{}", names::identifier(&section.recurrent_states[state].name))
        }
        Operand::Batch(BatchColumn::Draws) => "sampling".to_owned(),
        Operand::Batch(BatchColumn::Wanted) => "h.row_indices".to_owned(),
        Operand::Batch(BatchColumn::Next) => "h.next_tokens".to_owned(),
        Operand::Batch(column) => format!("b.{}", column.name()),
        Operand::ExpertSlots => "b.expert_slots".to_owned(),
    }
}
