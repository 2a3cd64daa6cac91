//! What `model.rs` says of sections: a layer's fields, its experts, what it remembers, and its steps.

use crate::fields::{FieldText, align, fields};
use crate::steps::{Caller, StepText, steps};
use crate::{kernels, names};
use forge_kernels::Spec;
use forge_kernels::spec::ExpertsInner;
use forge_planner::{Condition, Operand, Plan, Schedule, Section, Step};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct SectionText {
    #[serde(rename = "type")]
    pub(crate) type_name: String,
    function: String,
    fields: Vec<FieldText>,
    /// What it remembers of slots, if that is not keys and values.
    pub(crate) memories: Vec<MemoryField>,
    pub(crate) experts: Option<ExpertsText>,
    decode: ScheduleText,
    batch: ScheduleText,
}

/// The experts of a layer: how many, the fields that are their matrices, and the scratch buffer that says who has which.
#[derive(Serialize)]
pub(crate) struct ExpertsText {
    experts: String,
    chosen: String,
    shared: String,
    /// Bytes of a record.
    record: String,
    inner: String,
    sum: String,
    routes: String,
    /// The matrix of the router, if it has one of its own.
    router: Option<String>,
}

/// A field of what a layer remembers.
#[derive(Serialize)]
pub(crate) struct MemoryField {
    name: String,
    /// `4, 16, 16`
    shape: String,
    /// `4 * 16 * 16`
    numbers: String,
}

/// The steps of a section outside the layers.
#[derive(Serialize)]
pub(crate) struct SchedulesText {
    decode: Vec<StepText>,
    batch: Vec<StepText>,
}

/// The steps of a layer in one schedule, and how many they are.
#[derive(Serialize)]
pub(crate) struct ScheduleText {
    steps: Vec<StepText>,
    dispatches: usize,
    more_phrase: String,
}

pub(crate) fn section_text(plan: &Plan, kernels: &kernels::Context, section: &Section) -> SectionText {
    let mut fields = fields(section, |name| format!("&name({name:?})"), None);
    let experts = experts_text(plan, section);
    if let Some(experts) = &experts {
        fields.push(FieldText {
            name: "records".to_owned(),
            declaration: format!(
                "records: Span<u8>,\u{0}// [{}, {}]  what each expert has of both, and what fills up a page",
                experts.experts, experts.record
            ),
            find: "records.all()?".to_owned(),
        });
    }
    if let Some(columns) = section.takes {
        fields.push(FieldText {
            name: "first".to_owned(),
            declaration: format!("first: u32,\u{0}// of the {columns} columns of the aside that it takes"),
            find: "PER_LAYER_INPUT_COLUMNS[layer]".to_owned(),
        });
    }
    align(&mut fields);
    let schedule = |schedule| {
        let count = |condition| {
            section.steps(schedule).iter().filter(|step: &&Step| step.condition == condition).count()
        };
        let more = [(Condition::Many, "rows are many"), (Condition::Split, "the cache is split")]
            .map(|(condition, when)| (count(condition), when));
        let phrases = more.iter().filter(|(count, _)| *count > 0);
        let mut more_phrase: String =
            phrases.map(|(count, when)| format!(", and {count} more where {when}")).collect();
        let [always, folded, unfolded] =
            [Condition::Always, Condition::Folded, Condition::Unfolded].map(count);
        if unfolded > 0 {
            more_phrase += &format!(
                "; {unfolded} for each share of the positions in place of {folded} where latents are unfolded"
            );
        }
        ScheduleText {
            steps: steps(plan, kernels, section, schedule, Caller::Layer),
            dispatches: always + folded,
            more_phrase,
        }
    };
    SectionText {
        type_name: names::camel_case(&section.name),
        function: names::identifier(&section.name),
        fields,
        memories: section.memories.iter().map(memory_field).collect(),
        experts,
        decode: schedule(Schedule::Decode),
        batch: schedule(Schedule::Batch),
    }
}

fn experts_text(plan: &Plan, section: &Section) -> Option<ExpertsText> {
    let step_of = |is_wanted: fn(&Spec) -> bool| {
        section.decode.iter().find_map(|step| {
            let variants = plan.functions[step.function].variants.iter();
            let spec =
                variants.map(|variant| &plan.kernels[variant.kernel].spec).find(|spec| is_wanted(spec))?;
            let operand = |name: &str| {
                let argument = step.arguments.iter().find(|argument| argument.parameter == name)?;
                Some(argument.operand)
            };
            let (Operand::Field(field), Operand::Scratch(routes)) = (operand("weight")?, operand("routes")?)
            else {
                return None;
            };
            let matrices = names::identifier(&section.fields[field].name);
            Some((spec, matrices, names::identifier(&plan.scratch[routes].name)))
        })
    };
    let (spec, inner, routes) = step_of(|spec| matches!(spec, Spec::ExpertsInner(_)))?;
    let (_, sum, _) = step_of(|spec| matches!(spec, Spec::ExpertsSum(_)))?;
    let Spec::ExpertsInner(ExpertsInner { experts, chosen, shared, record, .. }) = spec else { return None };
    let [experts, chosen, shared, record] =
        [*experts, *chosen, *shared, *record].map(|count| names::number(count as u64));
    let router = router(section);
    Some(ExpertsText { experts, chosen, shared, record, inner, sum, routes, router })
}

/// The matrix by which the logits are made that experts are chosen by.
fn router(section: &Section) -> Option<String> {
    let operand = |step: &Step, name: &str| {
        step.arguments.iter().find(|argument| argument.parameter == name).map(|argument| argument.operand)
    };
    let logits =
        section.decode.iter().find_map(|step| operand(step, "routes").and(operand(step, "logits")))?;
    let makes = |step: &&Step| step.arguments.iter().any(|argument| argument.operand == logits);
    match operand(section.decode.iter().find(makes)?, "weight")? {
        Operand::Field(field) => Some(names::identifier(&section.fields[field].name)),
        _ => None,
    }
}

fn memory_field(memory: &forge_planner::RecurrentState) -> MemoryField {
    let sides: Vec<String> = memory.shape.iter().map(|side| names::number(*side as u64)).collect();
    MemoryField { name: names::identifier(&memory.name), shape: sides.join(", "), numbers: sides.join(" * ") }
}

pub(crate) fn schedules(
    plan: &Plan,
    kernels: &kernels::Context,
    section: &Section,
    caller: Caller,
) -> SchedulesText {
    SchedulesText {
        decode: steps(plan, kernels, section, Schedule::Decode, caller),
        batch: steps(plan, kernels, section, Schedule::Batch, caller),
    }
}
