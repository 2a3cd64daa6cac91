//! Fusion diagram: the nodes of the graph and the dispatch that computes each.
//!
//! The plan does not record which nodes a step was fused from. The diagram matches them by weight, kernel family and
//! name. A node without a match is drawn as part of the step that computes its input.

use crate::svg::{Anchor, Canvas, fitted, spread};
use forge_ir::{Apply, Body, Graph, Node, Op, ParamId, WeightId};
use forge_kernels::Spec;
use forge_ops::Epilogue;
use forge_planner::{Application, Condition, Operand, Plan, Schedule, Section, Step};

/// Distance between two rows of boxes.
const ROW: f64 = 28.0;
/// Height of a box.
const BOX: f64 = 22.0;
/// Position and width of the columns: decode dispatches, nodes, dispatches of several rows.
const COLUMNS: [(f64, f64); 3] = [(10.0, 240.0), (350.0, 260.0), (710.0, 240.0)];
const WIDTH: f64 = 960.0;
/// Height of the column headings.
const HEAD: f64 = 34.0;

/// The diagram of one section, with its counts.
pub(crate) struct Picture {
    pub(crate) svg: String,
    pub(crate) nodes: usize,
    /// Dispatches of one row and of several rows, without split-KV attention.
    pub(crate) dispatches: [usize; 2],
}

/// Draws the section of this application.
pub(crate) fn picture(graph: &Graph, plan: &Plan, application: usize) -> Option<Picture> {
    let apply = graph.applications().nth(application)?;
    let bound = Bound::of(graph, plan, apply, &plan.applications[application]);
    let nodes = bound.body.nodes.len();
    let steps = Schedule::ALL.map(|schedule| bound.section.steps(schedule));
    let rows = steps.iter().map(|steps| steps.len()).max().unwrap_or(0).max(nodes);
    let height = HEAD + rows as f64 * ROW + 6.0;
    let mut canvas = Canvas::new(WIDTH, height);
    let always = |steps: &[Step]| steps.iter().filter(|step| is_plain(step)).count();
    let dispatches = steps.map(always);
    let heads = [
        format!("one row: {}", counted(dispatches[0], "dispatch", "dispatches")),
        format!("graph: {}", counted(nodes, "node", "nodes")),
        format!("several rows: {}", counted(dispatches[1], "dispatch", "dispatches")),
    ];
    for ((x, width), head) in COLUMNS.into_iter().zip(&heads) {
        canvas.text((x + width / 2.0, 14.0), Anchor::Middle, "quiet", head);
    }
    // Nodes are in order, vertically centered.
    let first = HEAD + (rows - nodes) as f64 * ROW / 2.0 + BOX / 2.0;
    let middle = |node: usize| first + node as f64 * ROW;
    for (side, steps) in steps.into_iter().enumerate() {
        draw_steps(&mut canvas, &bound, (side, steps), &middle, height);
    }
    let (x, width) = COLUMNS[1];
    let widths = graph.widths(bound.body);
    for (index, node) in bound.body.nodes.iter().enumerate() {
        let y = middle(index);
        canvas.rect((x, y - BOX / 2.0), (width, BOX), "box node", &about(node));
        canvas.text((x + 8.0, y), Anchor::Start, "", &fitted(&node.name, width * 0.55));
        let size = format!("{} {}", kind(&node.op), widths[index + 1]);
        canvas.text((x + width - 8.0, y), Anchor::End, "quiet", &fitted(&size, width * 0.38));
    }
    let label = format!("{}: {}, {}, {}", bound.section.name, heads[1], heads[0], heads[2]);
    Some(Picture { svg: canvas.finish(&label), nodes, dispatches })
}

/// Whether a step runs in the simplest pass: a small batch, greedy sampling, no split-KV attention.
fn is_plain(step: &Step) -> bool {
    matches!(
        step.condition,
        Condition::Always | Condition::SeparateSlots | Condition::Absorbed | Condition::Greedy
    )
}

/// Draws the steps of one schedule next to the nodes, with lines to the nodes that they compute.
fn draw_steps(
    canvas: &mut Canvas,
    bound: &Bound<'_>,
    (side, steps): (usize, &[Step]),
    middle: &dyn Fn(usize) -> f64,
    height: f64,
) {
    let nodes = bound.steps_of_nodes(steps);
    // The preferred position of a step: next to its nodes, or after the previous step.
    let mut wanted = Vec::new();
    for step in 0..steps.len() {
        let own: Vec<f64> =
            (0..nodes.len()).filter(|node| nodes[*node].contains(&step)).map(middle).collect();
        let before = wanted.last().map_or(middle(0), |before| before + ROW);
        wanted.push(if own.is_empty() { before } else { own.iter().sum::<f64>() / own.len() as f64 });
    }
    let places = spread(&wanted, ROW, (HEAD + BOX / 2.0, height - BOX / 2.0 - 6.0));
    let column = if side == 0 { 0 } else { 2 };
    let (x, width) = COLUMNS[column];
    let (inner, outer) = match column {
        0 => (x + width, COLUMNS[1].0),
        _ => (x, COLUMNS[1].0 + COLUMNS[1].1),
    };
    for (node, of_node) in nodes.iter().enumerate() {
        for step in of_node {
            canvas.curve((inner, places[*step]), (outer, middle(node)), "link");
        }
    }
    for (step, y) in steps.iter().zip(&places) {
        let maybe = if is_plain(step) { "" } else { " maybe" };
        let class = format!("box {}{maybe}", bound.class(step));
        canvas.rect((x, y - BOX / 2.0), (width, BOX), &class, &step.formula);
        let name = match step.condition {
            Condition::Always | Condition::SeparateSlots | Condition::Absorbed | Condition::Greedy => {
                step.name.clone()
            }
            Condition::Split => format!("{} if split", step.name),
            Condition::SeveralRows => format!("{} of several rows", step.name),
            Condition::SharedSlots => format!("{} if rows share a slot", step.name),
            Condition::Many => format!("{} in prefill", step.name),
            Condition::Expanded => format!("{} if expanded", step.name),
            Condition::Drawn => format!("{} if sampled", step.name),
        };
        canvas.text((x + 8.0, *y), Anchor::Start, "", &fitted(&name, width - 16.0));
    }
}

/// `1 node`, `3 nodes`.
pub(crate) fn counted(count: usize, one: &str, more: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {more}") }
}

/// The name of an operation.
fn kind(op: &Op) -> String {
    let value = serde_json::to_value(op).unwrap_or_default();
    let name = value.as_object().and_then(|object| object.keys().next()).map(String::as_str);
    name.or(value.as_str()).unwrap_or_default().replace('_', " ")
}

fn about(node: &Node) -> String {
    format!("{} = {}", node.name, kind(&node.op))
}

/// A section bound to the weights of one application.
struct Bound<'a> {
    plan: &'a Plan,
    section: &'a Section,
    body: &'a Body,
    apply: &'a Apply,
    application: &'a Application,
}

impl<'a> Bound<'a> {
    fn of(graph: &'a Graph, plan: &'a Plan, apply: &'a Apply, application: &'a Application) -> Bound<'a> {
        let section = &plan.sections[application.section];
        Bound { plan, section, body: graph.body(apply), apply, application }
    }

    fn spec(&self, step: &Step) -> Option<&Spec> {
        let variant = self.plan.functions[step.function].variants.first()?;
        Some(&self.plan.kernels[variant.kernel].spec)
    }

    /// The CSS class of a step.
    fn class(&self, step: &Step) -> &'static str {
        match self.spec(step) {
            Some(
                Spec::Linear(_)
                | Spec::PerHeadLinear(_)
                | Spec::ExpertsInner(_)
                | Spec::ExpertsSum(_)
                | Spec::ExpertsTiles(_),
            ) => "projects",
            Some(
                Spec::AttendSplit(_) | Spec::AttendTiled(_) | Spec::AttendCombine(_) | Spec::MlaAttention(_),
            ) => "attends",
            _ => "other",
        }
    }

    /// The steps that compute each node.
    fn steps_of_nodes(&self, steps: &[Step]) -> Vec<Vec<usize>> {
        let mut found: Vec<Vec<usize>> = Vec::new();
        for (index, node) in self.body.nodes.iter().enumerate() {
            let own = self.own_steps(steps, index, node);
            // A node without a step of its own belongs to the last step that computes one of its inputs.
            let of_inputs = || {
                let made = |value: &forge_ir::ValueId| value.0.checked_sub(1).map(|input| &found[input]);
                node.inputs.iter().filter_map(made).flatten().max().copied().into_iter().collect()
            };
            found.push(if own.is_empty() { of_inputs() } else { own });
        }
        // A norm applied in the epilogue is part of the projections that read it.
        for (index, node) in self.body.nodes.iter().enumerate().rev() {
            let own = || self.own_steps(steps, index, node);
            if matches!(node.op, Op::RmsNorm { .. }) && own().is_empty() {
                let reads =
                    |reader: &usize| self.body.nodes[*reader].inputs.iter().any(|value| value.0 == index + 1);
                let readers = (0..self.body.nodes.len()).filter(reads);
                let mut of_readers: Vec<usize> = readers.flat_map(|reader| found[reader].clone()).collect();
                of_readers.sort_unstable();
                of_readers.dedup();
                if !of_readers.is_empty() {
                    found[index] = of_readers;
                }
            }
        }
        found
    }

    /// The steps that match a node by weight, kernel family or name.
    fn own_steps(&self, steps: &[Step], index: usize, node: &Node) -> Vec<usize> {
        let wanted = |step: &Step| match (&node.op, self.spec(step)) {
            (Op::Embed { table, .. }, Some(Spec::Embed(_))) => self.takes(step, *table),
            (Op::PositionEmbedding { table }, Some(Spec::Embed(_))) => self.takes(step, *table),
            (
                Op::Linear { weight, .. },
                Some(Spec::Linear(_) | Spec::ExpertsInner(_) | Spec::ExpertsTiles(_) | Spec::ExpertsSum(_)),
            ) => self.takes(step, *weight),
            (Op::PerHeadLinear { weight, .. }, Some(Spec::PerHeadLinear(_))) => self.takes(step, *weight),
            (
                Op::LatentAttention { .. },
                Some(Spec::MlaAppend(_) | Spec::MlaAttention(_) | Spec::AttendCombine(_)),
            ) => true,
            (
                Op::RmsNorm { gain: Some(gain), .. },
                Some(Spec::MlaAppend(_) | Spec::MlaAttention(_) | Spec::Linear(_)),
            ) if self.takes(step, *gain) => true,
            (Op::Rope { .. }, Some(Spec::MlaAppend(append))) => append.prepare.is_some(),
            (Op::Rope { .. }, Some(Spec::MlaAttention(attend))) => attend.prologue.is_some(),
            (Op::Route(_), Some(Spec::Route(_))) => true,
            (Op::Route(_), Some(Spec::ExpertsInner(inner))) => inner.op.route.is_some(),
            (
                Op::Experts(_),
                Some(
                    Spec::ExpertsGroup(_)
                    | Spec::ExpertsInner(_)
                    | Spec::ExpertsTiles(_)
                    | Spec::ExpertsSum(_),
                ),
            ) => true,
            (Op::LayerNorm { gain, .. }, Some(Spec::LayerNorm(_))) => self.takes(step, *gain),
            (Op::RmsNorm { gain, .. }, Some(Spec::RmsNorm(_))) => {
                step.name == node.name || gain.is_some_and(|gain| self.takes(step, gain))
            }
            (
                Op::RmsNorm { gain: Some(gain), .. },
                Some(Spec::RopeAppend(_) | Spec::AttendSplit(_) | Spec::NormAdd(_)),
            ) => self.takes(step, *gain),
            (Op::PerLayerInput { .. }, Some(Spec::SliceColumns(_))) => true,
            (Op::PerLayerInput { .. }, Some(Spec::Linear(linear))) => {
                matches!(linear.op.epilogue, Epilogue::Multiply { .. })
            }
            (Op::Rope { .. }, Some(Spec::Rope(_))) => step.name == node.name,
            (Op::Rope { .. }, Some(Spec::RopeAppend(_))) => true,
            (Op::Rope { .. }, Some(Spec::AttendSplit(attend))) => attend.op.prologue.is_some(),
            (
                Op::Attention { .. },
                Some(Spec::Append(_) | Spec::AttendSplit(_) | Spec::AttendTiled(_) | Spec::AttendCombine(_)),
            ) => true,
            // Several nodes may have the same name: the n-th step of that name computes the n-th node.
            (_, Some(Spec::Elementwise(_))) if step.name == node.name => {
                let twins = self.body.nodes[..index].iter().filter(|other| other.name == node.name).count();
                let named = |step: &&Step| step.name == node.name;
                steps.iter().filter(named).nth(twins).is_some_and(|own| std::ptr::eq(own, step))
            }
            _ => false,
        };
        (0..steps.len()).filter(|step| wanted(&steps[*step])).collect()
    }

    /// Whether a step reads a weight of this section that contains the parameter.
    fn takes(&self, step: &Step, param: ParamId) -> bool {
        let Some(weight) = self.apply.weight(self.body, param) else { return false };
        let made_of = |argument: &forge_planner::Argument| match argument.operand {
            Operand::Field(field) => {
                let parts: &[WeightId] = &self.plan.weights[self.application.weights[field]].parts;
                !self.section.fields[field].of_next && parts.contains(&weight)
            }
            _ => false,
        };
        step.arguments.iter().any(made_of)
    }
}
