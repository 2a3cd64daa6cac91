//! Template contexts of expert kernels.

use forge_ops::{Epilogue, Gating, Scores};
use serde::Serialize;

use crate::context::{Base, Weight};
use crate::spec::{ExpertsInnerKernel, ExpertsSumKernel};
use forge_ops::{DeferredNorm, Route, Squares};

/// Added to the sum of sigmoids before division, so that all-zero weights stay zero.
const NO_SUM: f32 = 1e-20;

/// Routing parameters, for the shared template parts.
#[derive(Serialize)]
struct Choice {
    /// Number of routed experts, and routed experts per row.
    candidates: usize,
    picked: usize,
    /// Number of shared experts.
    shared: usize,
    gated: bool,
    /// Logits of a row.
    row_logits: usize,
    scores: &'static str,
    correction: bool,
    renormalize: bool,
    factor: f32,
    scale: bool,
    /// Whether the ranking uses anything besides the logit.
    ranked: bool,
    /// The ranking of an expert without correction, as an expression of its `logit`.
    rank: &'static str,
    /// Sort keys per lane.
    per_lane: usize,
    /// Whether a lane may have keys past the last expert. With expert groups such keys are never chosen.
    guarded: bool,
    /// Number of expert groups; 0 without groups.
    expert_groups: usize,
    kept: usize,
    best: usize,
    group_size: usize,
    /// Lanes per group: the largest power of 2 that fits.
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
            renormalize: route.renormalize,
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
    /// Experts per row.
    chosen: usize,
}

impl<'a> RouteContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a Route) -> RouteContext<'a> {
        RouteContext { base, choice: Choice::of(spec), chosen: spec.routes() }
    }
}

/// Common variables of both expert matrix kernels.
#[derive(Serialize)]
struct Products {
    #[serde(flatten)]
    weight: Weight,
    /// Support function that loads 4 columns of x.
    load: &'static str,
    /// Bound argument of `load`, if any.
    bound: String,
    experts: usize,
    chosen: usize,
    outputs: usize,
    inputs: usize,
    /// Stride of expert matrices, in bytes.
    record: usize,
    rows_per_simdgroup: usize,
    /// Outputs per threadgroup.
    group_outputs: usize,
    /// Whether the last threadgroup has fewer outputs.
    ragged: bool,
    threads: usize,
    /// Factor of a packet's products, as text.
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
    /// Whether routing is fused.
    routing: bool,
    norm: Option<DeferredNorm>,
    bias: bool,
    /// Support function of the activation, or of the gated activation.
    gating: &'static str,
    /// Parameters of a clamped gate.
    limit: Option<f32>,
    sharpness: f32,
    /// How partial sums of squares are loaded: type, expression, count.
    squares_vector: &'static str,
    squares_source: &'static str,
    squares_count: usize,
    inputs_float: f32,
}

impl<'a> InnerContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsInnerKernel) -> InnerContext<'a> {
        let weight = Weight::of(spec.op.format, spec.op.inputs);
        let group_outputs = spec.layout.rows_per_simdgroup * spec.layout.simdgroups;
        let (load, bound) = load(&weight, spec.op.inputs);
        let partials = spec.op.norm.map_or(0, |norm| norm.partials);
        let clamp = match spec.op.gating {
            Gating::Plain(_) => None,
            Gating::Clamped { limit, sharpness } => Some((limit, sharpness)),
        };
        let (squares_vector, squares_source, squares_count) = if partials.is_multiple_of(4) {
            ("float4", "((device const float4*)own_squares)", partials / 4)
        } else {
            ("float", "own_squares", partials)
        };
        InnerContext {
            base,
            products: Products {
                weight,
                load,
                bound,
                experts: spec.op.experts,
                chosen: spec.op.chosen,
                outputs: spec.op.outputs,
                inputs: spec.op.inputs,
                record: spec.op.record,
                rows_per_simdgroup: spec.layout.rows_per_simdgroup,
                group_outputs,
                ragged: !spec.op.outputs.is_multiple_of(group_outputs),
                threads: 32 * spec.layout.simdgroups,
                times: "",
            },
            choice: spec.op.route.as_ref().map(Choice::of),
            routing: spec.op.route.is_some(),
            norm: spec.op.norm,
            bias: spec.op.bias,
            gating: gating(spec.op.gating),
            limit: clamp.map(|(limit, _)| limit),
            sharpness: clamp.map_or(0.0, |(_, sharpness)| sharpness),
            squares_vector,
            squares_source,
            squares_count,
            inputs_float: spec.op.inputs as f32,
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
    /// Assignment operator for y.
    assign: &'static str,
    /// Outputs for the deferred norm of y.
    add_squares: Option<Squares>,
    /// Threadgroups per row.
    grid: usize,
}

impl<'a> SumContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsSumKernel) -> SumContext<'a> {
        let weight = Weight::of(spec.op.format, spec.op.inputs);
        let group_outputs = spec.layout.rows_per_simdgroup * spec.layout.simdgroups;
        let (load, bound) = load(&weight, spec.op.inputs);
        SumContext {
            base,
            products: Products {
                weight,
                load,
                bound,
                experts: spec.op.experts,
                chosen: spec.op.chosen,
                outputs: spec.op.outputs,
                inputs: spec.op.inputs,
                record: spec.op.record,
                rows_per_simdgroup: spec.layout.rows_per_simdgroup,
                group_outputs,
                ragged: !spec.op.outputs.is_multiple_of(group_outputs),
                threads: 32 * spec.layout.simdgroups,
                times: "weight * ",
            },
            bias: spec.op.bias,
            assign: if spec.op.epilogue == Epilogue::Store { "=" } else { "+=" },
            add_squares: match spec.op.epilogue {
                Epilogue::AddSquares(squares) => Some(squares),
                _ => None,
            },
            grid: spec.op.outputs.div_ceil(group_outputs),
        }
    }
}

/// Support function of a gated activation.
pub(crate) fn gating(gating: Gating) -> &'static str {
    match gating {
        Gating::Plain(activation) => activation.name(),
        Gating::Clamped { .. } => "gate_clamped",
    }
}

/// Support function that loads x, and its bound argument.
fn load(weight: &Weight, inputs: usize) -> (&'static str, String) {
    if inputs.is_multiple_of(weight.columns) {
        ("load4_whole", String::new())
    } else if inputs.is_multiple_of(4) {
        ("load4_guarded", format!(", {inputs}u"))
    } else {
        ("load4_single", format!(", {inputs}u"))
    }
}
