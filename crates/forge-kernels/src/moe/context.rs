//! What the templates of experts read.

use forge_ir::{Gating, Scores};
use serde::Serialize;

use crate::context::{Base, Weight};
use crate::spec::{DeferredNorm, ExpertsInner, ExpertsSum, Route, Squares, Summed};

/// Added to the sum that sigmoids are divided by, so that weights that are all 0 stay so.
const NO_SUM: f32 = 1e-20;

/// How experts are chosen and weighed, for the parts that templates share.
#[derive(Serialize)]
struct Choice {
    /// Experts that are chosen from, and those of them that a row has.
    candidates: usize,
    picked: usize,
    /// Experts that every row has beside these.
    shared: usize,
    gated: bool,
    /// Logits of a row.
    row_logits: usize,
    scores: &'static str,
    correction: bool,
    shares: bool,
    factor: f32,
    scale: bool,
    /// Whether something else than logits decides.
    ranked: bool,
    /// The rank of an expert but for a correction, made of its `logit`.
    rank: &'static str,
    /// Keys of a lane.
    per_lane: usize,
    /// Whether a lane may have keys of no expert that nothing else rules out: those of no group are never chosen.
    guarded: bool,
    /// Groups of experts, 0 where there are none.
    expert_groups: usize,
    kept: usize,
    best: usize,
    group_size: usize,
    /// Lanes that share a group: a power of 2, as many as there are for each.
    group_lanes: usize,
    no_sum: f32,
}

impl Choice {
    fn of(route: &Route) -> Choice {
        let ranked = route.correction || route.groups.is_some();
        let (groups, kept, best) = route.groups.map_or((0, 0, 0), |of| (of.count, of.kept, of.best));
        let lanes = 32 / groups.max(1);
        Choice {
            candidates: route.experts,
            picked: route.chosen,
            shared: route.shared,
            gated: route.gated,
            row_logits: route.logits(),
            scores: route.scores.name(),
            correction: route.correction,
            shares: route.shares,
            factor: route.factor,
            scale: route.scale,
            ranked,
            rank: match route.scores {
                _ if !ranked => "logit",
                Scores::Sigmoid => "sigmoid(logit)",
                Scores::Softmax => "exp(logit - largest) / total",
            },
            per_lane: route.experts.div_ceil(32),
            guarded: !route.experts.is_multiple_of(32) && route.groups.is_none(),
            expert_groups: groups,
            kept,
            best,
            group_size: route.experts / groups.max(1),
            group_lanes: 1 << lanes.ilog2(),
            no_sum: NO_SUM,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct RouteContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    choice: Choice,
    /// Experts of a row.
    chosen: usize,
}

impl<'a> RouteContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Route) -> RouteContext<'a> {
        RouteContext { base, choice: Choice::of(spec), chosen: spec.routes() }
    }
}

/// What both products of experts have in common.
#[derive(Serialize)]
struct Products {
    #[serde(flatten)]
    weight: Weight,
    /// The support function that loads 4 columns of x.
    load: &'static str,
    /// Its last argument, where it has a bound.
    bound: String,
    experts: usize,
    chosen: usize,
    outputs: usize,
    inputs: usize,
    /// Bytes from one matrix to the next.
    record: usize,
    rows_per_simdgroup: usize,
    /// Outputs of a threadgroup.
    group_outputs: usize,
    /// Whether the last threadgroup has outputs past the last.
    ragged: bool,
    threads: usize,
    /// What the products of a packet are multiplied by, as text.
    times: &'static str,
}

#[derive(Serialize)]
pub(crate) struct InnerContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    products: Products,
    #[serde(flatten)]
    choice: Option<Choice>,
    /// Whether experts are chosen here.
    routing: bool,
    norm: Option<DeferredNorm>,
    bias: bool,
    /// The support function that a gate goes through, or it and its up.
    gating: &'static str,
    /// Its further arguments, where gate and up are clamped.
    limit: Option<f32>,
    sharpness: f32,
    /// How partial sums of squares are loaded: type, expression, and number of those.
    squares_vector: &'static str,
    squares_source: &'static str,
    squares_count: usize,
    inputs_float: f32,
}

impl<'a> InnerContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsInner) -> InnerContext<'a> {
        let weight = Weight::of(spec.format, spec.inputs);
        let group_outputs = spec.rows_per_simdgroup * spec.simdgroups;
        let (load, bound) = load(&weight, spec.inputs);
        let partials = spec.norm.map_or(0, |norm| norm.partials);
        let clamp = match spec.gating {
            Gating::Plain(_) => None,
            Gating::Clamped { limit, sharpness } => Some((limit, sharpness)),
        };
        let (squares_vector, squares_source, squares_count) = if partials.is_multiple_of(4) {
            ("float4", "((device const float4*)squares)", partials / 4)
        } else {
            ("float", "squares", partials)
        };
        InnerContext {
            base,
            products: Products {
                weight,
                load,
                bound,
                experts: spec.experts,
                chosen: spec.chosen,
                outputs: spec.outputs,
                inputs: spec.inputs,
                record: spec.record,
                rows_per_simdgroup: spec.rows_per_simdgroup,
                group_outputs,
                ragged: !spec.outputs.is_multiple_of(group_outputs),
                threads: 32 * spec.simdgroups,
                times: "",
            },
            choice: spec.route.as_ref().map(Choice::of),
            routing: spec.route.is_some(),
            norm: spec.norm,
            bias: spec.bias,
            gating: gating(spec.gating),
            limit: clamp.map(|(limit, _)| limit),
            sharpness: clamp.map_or(0.0, |(_, sharpness)| sharpness),
            squares_vector,
            squares_source,
            squares_count,
            inputs_float: spec.inputs as f32,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct SumContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    products: Products,
    bias: bool,
    /// How the sum goes to y.
    assign: &'static str,
    /// What is left for the norm of y.
    leaves: Option<Squares>,
    /// Threadgroups of a row.
    grid: usize,
}

impl<'a> SumContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsSum) -> SumContext<'a> {
        let weight = Weight::of(spec.format, spec.inputs);
        let group_outputs = spec.rows_per_simdgroup * spec.simdgroups;
        let (load, bound) = load(&weight, spec.inputs);
        SumContext {
            base,
            products: Products {
                weight,
                load,
                bound,
                experts: spec.experts,
                chosen: spec.chosen,
                outputs: spec.outputs,
                inputs: spec.inputs,
                record: spec.record,
                rows_per_simdgroup: spec.rows_per_simdgroup,
                group_outputs,
                ragged: !spec.outputs.is_multiple_of(group_outputs),
                threads: 32 * spec.simdgroups,
                times: "weight * ",
            },
            bias: spec.bias,
            assign: if spec.ending == Summed::Store { "=" } else { "+=" },
            leaves: match spec.ending {
                Summed::AddSquares(squares) => Some(squares),
                Summed::Store | Summed::Add => None,
            },
            grid: spec.outputs.div_ceil(group_outputs),
        }
    }
}

/// The support function of a gating.
pub(crate) fn gating(gating: Gating) -> &'static str {
    match gating {
        Gating::Plain(activation) => activation.name(),
        Gating::Clamped { .. } => "gate_clamped",
    }
}

/// How x is loaded: the support function, and its bound.
fn load(weight: &Weight, inputs: usize) -> (&'static str, String) {
    if inputs.is_multiple_of(weight.columns) {
        ("load4_whole", String::new())
    } else if inputs.is_multiple_of(4) {
        ("load4_guarded", format!(", {inputs}u"))
    } else {
        ("load4_single", format!(", {inputs}u"))
    }
}
