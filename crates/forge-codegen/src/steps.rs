//! The steps of a section as calls: the formula as a comment, the barrier where one stands, the arguments by name.

use crate::{kernels, names};
use forge_planner::{BatchColumn, Condition, Operand, Plan, Schedule, Section, Step};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct StepText {
    text: String,
}

/// A call longer than this is broken into a line for each argument.
const LONGEST_CALL: usize = 104;

/// In which function a step is called, which decides how its operands are named.
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
    let texts = steps.flat_map(|neighbours| {
        let texts: Vec<String> = neighbours.iter().map(text).collect();
        match (condition(neighbours[0].condition), &texts[..]) {
            (None, _) => texts,
            // What a lone step is stands before its condition.
            (Some(condition), [only]) => {
                let (formula, call) = only.split_once('\n').unwrap_or_default();
                vec![format!("{formula}\n{}", block(condition, call))]
            }
            (Some(condition), _) => vec![block(condition, &texts.join("\n"))],
        }
    });
    texts.map(|text| StepText { text }).collect()
}

/// What steps are conditional on, as Rust.
fn condition(condition: Condition) -> Option<&'static str> {
    match condition {
        Condition::Always => None,
        Condition::Split => Some("if b.splits > 1"),
        Condition::Many => Some("if b.rows as usize > SMALL_BATCH_MAX"),
        Condition::Folded => Some("if b.unfolded == 0"),
        Condition::Unfolded => Some("for share in b.shares()"),
        Condition::Greedy => Some("if h.draws.is_none()"),
        Condition::Drawn => Some("if let Some(draws) = h.draws"),
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
        ("rows", _) if step.of_share => "share.end - share.begin".to_owned(),
        ("begin" | "end", _) => format!("share.{name}"),
        // A layer's own.
        ("capacity", _) => format!("cache.{name}"),
        ("first", _) => format!("w.{name}"),
        (_, Caller::Head) => format!("h.{name}"),
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
            // A tied head is the embedding: the weight is stored, and named, once.
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
        Operand::Memory(memory) => format!("memory.{}", names::identifier(&section.memories[memory].name)),
        Operand::Batch(BatchColumn::Draws) => "draws".to_owned(),
        Operand::Batch(column) if caller == Caller::Head => format!("h.{}", column.name()),
        Operand::Batch(column) => format!("b.{}", column.name()),
        Operand::Seats => "b.seats".to_owned(),
    }
}
