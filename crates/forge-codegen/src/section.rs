//! Template context of one section of `model.rs`: weights, experts, recurrent state and steps.

use crate::fields::{FieldText, align, fields};
use crate::steps::{Caller, StepText, steps};
use crate::{kernels, names};
use forge_kernels::Spec;
use forge_ops::ExpertsInner;
use forge_planner::{Condition, Operand, Plan, Schedule, Section, Step};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct SectionText {
    #[serde(rename = "type")]
    pub(crate) type_name: String,
    function: String,
    fields: Vec<FieldText>,
    /// Its recurrent state; empty for attention layers.
    pub(crate) recurrent_states: Vec<StateField>,
    pub(crate) experts: Option<ExpertsText>,
    decode: ScheduleText,
    batch: ScheduleText,
}

/// The experts of a layer: their counts, weight fields and routing buffer.
#[derive(Serialize)]
pub(crate) struct ExpertsText {
    experts: String,
    chosen: String,
    shared: String,
    /// Bytes of one expert's record.
    record: String,
    inner: String,
    sum: String,
    routes: String,
    /// Field of the router matrix, if it is a separate weight.
    router: Option<String>,
}

/// A field of a layer's recurrent state.
#[derive(Serialize)]
pub(crate) struct StateField {
    name: String,
    /// `recurrent_state: Span<f32>, // [slot, 4, 16, 16]`
    declaration: String,
    /// `4 * 16 * 16`
    elements: String,
}

/// The steps of a section outside the layers.
#[derive(Serialize)]
pub(crate) struct SchedulesText {
    decode: Vec<StepText>,
    batch: Vec<StepText>,
}

/// The steps of a layer in one schedule, and the number of dispatches.
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
                "records: Span<u8>,\u{0}// [{}, {}]  the matrices of each expert, padded to pages",
                experts.experts, experts.record
            ),
            find: "records.all()?".to_owned(),
        });
    }
    if let Some(columns) = section.per_layer_input_columns {
        fields.push(FieldText {
            name: "first".to_owned(),
            declaration: format!(
                "first: u32,\u{0}// first of the {columns} per-layer input columns that it reads"
            ),
            find: "PER_LAYER_INPUT_COLUMNS[layer]".to_owned(),
        });
    }
    align(&mut fields);
    let schedule = |schedule| {
        let count = |condition| {
            section.steps(schedule).iter().filter(|step: &&Step| step.condition == condition).count()
        };
        let more = [
            (Condition::SeveralRows, "for several rows"),
            (Condition::SharedSlots, "if rows share a slot"),
            (Condition::Many, "for prefill"),
            (Condition::Split, "if the KV cache is split"),
        ]
        .map(|(condition, when)| (count(condition), when));
        let phrases = more.iter().filter(|(count, _)| *count > 0);
        let mut more_phrase: String =
            phrases.map(|(count, when)| format!(", and {count} more {when}")).collect();
        let [always, separate, absorbed, expanded] =
            [Condition::Always, Condition::SeparateSlots, Condition::Absorbed, Condition::Expanded]
                .map(count);
        let always = always + separate;
        if expanded > 0 {
            more_phrase += &format!("; with expanded latents {expanded} per tile instead of {absorbed}");
        }
        ScheduleText {
            steps: steps(plan, kernels, section, schedule, Caller::Layer),
            dispatches: always + absorbed,
            more_phrase,
        }
    };
    SectionText {
        type_name: names::camel_case(&section.name),
        function: names::identifier(&section.name),
        fields,
        recurrent_states: state_fields(section),
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
    let Spec::ExpertsInner(kernel) = spec else { return None };
    let ExpertsInner { experts, chosen, shared, record, .. } = kernel.op;
    let [experts, chosen, shared, record] =
        [experts, chosen, shared, record].map(|count| names::number(count as u64));
    let router = router(section);
    Some(ExpertsText { experts, chosen, shared, record, inner, sum, routes, router })
}

/// The field of the router matrix, which computes the routing logits.
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

fn state_fields(section: &Section) -> Vec<StateField> {
    let named = || section.recurrent_states.iter().map(|state| (state, names::identifier(&state.name)));
    let longest = named().map(|(_, name)| name.len()).max().unwrap_or(0);
    let field = |(state, name): (&forge_planner::RecurrentState, String)| {
        let sides: Vec<String> = state.shape.iter().map(|side| names::number(*side as u64)).collect();
        let padding = " ".repeat(longest - name.len());
        let declaration = format!("{name}: Span<f32>,{padding} // [slot, {}]", sides.join(", "));
        StateField { name, declaration, elements: sides.join(" * ") }
    };
    named().map(field).collect()
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
