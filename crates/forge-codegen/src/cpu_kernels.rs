//! The CPU implementation of a kernel as a Rust expression: the kernel family's function and its shape parameters.

use crate::names::number;
use forge_ir::{Activation, Format, Gating, Groups, LongContext, Pairing, Rotation, Scores};
use forge_kernels::Spec;
use forge_kernels::spec::{
    self, DeferredNorm, Epilogue, Gates, HeadNorm, InlineNorm, KvSource, LatentPrepare, Linear, Prologue,
    Route, Squares, Summed, UnaryOp,
};

/// `cpu::project(call, &cpu::Project { ... })`
pub(crate) fn expression(spec: &Spec) -> String {
    let (function, name, fields) = match spec {
        Spec::Embed(embed) => {
            let fields = vec![
                ("vocabulary", size(embed.vocabulary)),
                ("width", size(embed.width)),
                ("scale", float(embed.scale)),
                ("adds", embed.adds.to_string()),
                ("squares", option(embed.squares, squares)),
            ];
            ("embed", "Embed", fields)
        }
        Spec::RmsNorm(norm) => (
            "rms_norm",
            "RmsNorm",
            vec![
                ("width", size(norm.width)),
                ("parts", size(norm.parts)),
                ("epsilon", float(norm.epsilon)),
                ("gain", norm.gain.to_string()),
                ("gather", norm.gather.to_string()),
                ("pitch", option(norm.pitch, size)),
            ],
        ),
        Spec::NormAdd(norm) => (
            "norm_add",
            "NormAdd",
            vec![
                ("width", size(norm.width)),
                ("epsilon", float(norm.epsilon)),
                ("gain", norm.gain.to_string()),
                ("factor", norm.factor.to_string()),
                ("squares", option(norm.squares, squares)),
            ],
        ),
        Spec::LayerNorm(norm) => (
            "layer_norm",
            "LayerNorm",
            vec![
                ("width", size(norm.width)),
                ("epsilon", float(norm.epsilon)),
                ("bias", norm.bias.to_string()),
                ("gather", norm.gather.to_string()),
            ],
        ),
        Spec::Project(project) => (
            "project",
            "Linear",
            vec![
                ("outputs", size(project.outputs)),
                ("inputs", size(project.inputs)),
                ("norm", option(project.norm, deferred_norm)),
                ("own_norm", option(project.own_norm, own_norm)),
                ("bias", project.bias.to_string()),
                ("each", option(project.each, each)),
                ("epilogue", epilogue(project)),
                ("chooses", project.chooses.to_string()),
            ],
        ),
        Spec::Rotate(rotate) => (
            "rotate",
            "Rotate",
            vec![
                ("heads", size(rotate.heads)),
                ("width", size(rotate.width)),
                ("rotation", rotation(&rotate.rotation)),
            ],
        ),
        Spec::Append(append) => (
            "append",
            "Append",
            vec![
                ("key_heads", size(append.key_heads)),
                ("width", size(append.width)),
                ("cache", format(append.cache)),
                ("ring", option(append.ring, size)),
            ],
        ),
        Spec::RotateAppend(rotate) => (
            "rotate_append",
            "RotateAppend",
            vec![
                ("query_heads", size(rotate.query_heads)),
                ("key_heads", size(rotate.key_heads)),
                ("width", size(rotate.width)),
                ("cache", format(rotate.cache)),
                ("ring", option(rotate.ring, size)),
                ("brings", brings(rotate.brings)),
                ("norm", option(rotate.norm, head_norm)),
                ("rotation", rotation(&rotate.rotation)),
            ],
        ),
        // Both kernels compute the same attention.
        Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => (
            "attend",
            "Attend",
            vec![
                ("query_heads", size(attend.query_heads)),
                ("key_heads", size(attend.key_heads)),
                ("width", size(attend.width)),
                ("cache", format(attend.cache)),
                ("ring", option(attend.ring, size)),
                ("scale", float(attend.scale)),
                ("window", option(attend.window, size)),
                ("softcap", option(attend.softcap, float)),
                ("sinks", attend.sinks.to_string()),
                ("gates", option(attend.gates, gates)),
                ("prologue", option(attend.prologue.as_ref(), prologue)),
            ],
        ),
        Spec::AttendJoin(join) => (
            "attend_join",
            "AttendJoin",
            vec![("query_heads", size(join.query_heads)), ("width", size(join.width))],
        ),
        Spec::EachHead(each) => (
            "each_head",
            "PerHeadLinear",
            vec![
                ("heads", size(each.heads)),
                ("rows", size(each.rows)),
                ("columns", size(each.columns)),
                ("turned", each.turned.to_string()),
                ("pitch", size(each.pitch)),
            ],
        ),
        Spec::LatentAppend(append) => (
            "latent_append",
            "MlaAppend",
            vec![
                ("width", size(append.width)),
                ("turned", size(append.turned)),
                ("cache", format(append.cache)),
                ("prepare", option(append.prepare.as_ref(), latent_prepare)),
            ],
        ),
        Spec::LatentAttend(attend) => (
            "latent_attend",
            "MlaAttention",
            vec![
                ("heads", size(attend.heads)),
                ("width", size(attend.width)),
                ("turned", size(attend.turned)),
                ("cache", format(attend.cache)),
                ("scale", float(attend.scale)),
                ("prologue", option(attend.prologue.as_ref(), latent_prepare)),
            ],
        ),
        Spec::LatentShare(share) => (
            "latent_share",
            "MlaLoadLatents",
            vec![
                ("width", size(share.width)),
                ("turned", size(share.turned)),
                ("cache", format(share.cache)),
            ],
        ),
        Spec::AttendUnfolded(attend) => (
            "attend_unfolded",
            "MlaAttentionExpanded",
            vec![
                ("heads", size(attend.heads)),
                ("keys", size(attend.keys)),
                ("turned", size(attend.turned)),
                ("values", size(attend.values)),
                ("queries_pitch", size(attend.queries_pitch)),
                ("scale", float(attend.scale)),
            ],
        ),
        Spec::Convolve(convolve) => (
            "convolve",
            "CausalConv",
            vec![
                ("width", size(convolve.width)),
                ("taps", size(convolve.taps)),
                ("pitch", size(convolve.pitch)),
                ("activation", option(convolve.activation, |of| activation(of).to_owned())),
            ],
        ),
        Spec::DeltaRule(rule) => ("delta_rule", "DeltaRule", delta_rule(rule)),
        // The CPU computes row after row: the result of a row must not depend on the batch.
        Spec::DeltaChunks(chunks) => ("delta_chunks", "DeltaRule", delta_rule(&chunks.rule)),
        Spec::LetThrough(through) => (
            "let_through",
            "GatedRmsNorm",
            vec![
                ("heads", size(through.heads)),
                ("values", size(through.values)),
                ("pitch", size(through.pitch)),
                ("first", size(through.first)),
                ("epsilon", float(through.epsilon)),
            ],
        ),
        Spec::DeltaStep(step) => {
            let rule = shape("DeltaRule", delta_rule(&step.rule));
            ("delta_step", "DeltaStep", vec![("rule", rule), ("taps", size(step.taps))])
        }
        Spec::Route(routing) => ("route", "Route", route(routing)),
        Spec::ExpertsInner(inner) => (
            "experts_inner",
            "ExpertsInner",
            vec![
                ("experts", size(inner.experts)),
                ("chosen", size(inner.chosen)),
                ("outputs", size(inner.outputs)),
                ("inputs", size(inner.inputs)),
                ("record", size(inner.record)),
                ("norm", option(inner.norm, deferred_norm)),
                ("bias", inner.bias.to_string()),
                ("ending", gating(inner.gating)),
                ("route", option(inner.route.as_ref(), |of| shape("Route", route(of)))),
            ],
        ),
        Spec::ExpertsSum(sum) => (
            "experts_sum",
            "ExpertsSum",
            vec![
                ("experts", size(sum.experts)),
                ("chosen", size(sum.chosen)),
                ("outputs", size(sum.outputs)),
                ("inputs", size(sum.inputs)),
                ("record", size(sum.record)),
                ("bias", sum.bias.to_string()),
                ("ending", summed(sum.ending)),
            ],
        ),
        Spec::ExpertsGroup(group) => (
            "experts_group",
            "ExpertsGroup",
            vec![
                ("experts", size(group.experts)),
                ("chosen", size(group.chosen)),
                ("tile_rows", size(group.tile_rows)),
            ],
        ),
        Spec::ExpertsTiles(tiles) => (
            "experts_tiles",
            "ExpertsTiles",
            vec![
                ("experts", size(tiles.experts)),
                ("chosen", size(tiles.chosen)),
                ("outputs", size(tiles.outputs)),
                ("inputs", size(tiles.inputs)),
                ("record", size(tiles.record)),
                ("bias", tiles.bias.to_string()),
                ("ending", tiles.gating.map_or_else(|| "cpu::Epilogue::Store".to_owned(), gating)),
                ("tile_rows", size(tiles.tile_rows)),
            ],
        ),
        Spec::ExpertsJoin(join) => (
            "experts_join",
            "ExpertsJoin",
            vec![("chosen", size(join.chosen)), ("width", size(join.width)), ("adds", join.adds.to_string())],
        ),
        Spec::Elementwise(elementwise) => (
            "elementwise",
            "Elementwise",
            vec![
                ("function", elementwise_function(elementwise.function)),
                ("width", size(elementwise.width)),
            ],
        ),
        Spec::Take(take) => {
            ("take", "SliceColumns", vec![("width", size(take.width)), ("of", size(take.of))])
        }
        Spec::Argmax(argmax) => ("argmax", "Argmax", vec![("vocabulary", size(argmax.vocabulary))]),
        Spec::Sample(sample) => ("sample", "Sample", vec![("vocabulary", size(sample.vocabulary))]),
        Spec::ArgmaxJoin(join) => ("argmax_join", "ArgmaxJoin", vec![("candidates", size(join.candidates))]),
    };
    // Kernels that read weights are generic over the weight format.
    let format = crate::kernels::weight_format(spec);
    let stored = format.map_or_else(String::new, |format| format!("::<{}>", stored(format)));
    format!("cpu::{function}{stored}(call, &{})", shape(name, fields))
}

/// `cpu::Route { experts: 4, ... }`
fn shape(name: &str, fields: Vec<(&str, String)>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("cpu::{name} {{ {} }}", fields.join(", "))
}

fn route(route: &Route) -> Vec<(&'static str, String)> {
    let scores = match route.scores {
        Scores::Softmax => "cpu::Scores::Softmax",
        Scores::Sigmoid => "cpu::Scores::Sigmoid",
    };
    let groups = |of: Groups| {
        let (count, kept, best) = (size(of.count), size(of.kept), size(of.best));
        format!("cpu::Groups {{ count: {count}, kept: {kept}, best: {best} }}")
    };
    vec![
        ("experts", size(route.experts)),
        ("chosen", size(route.chosen)),
        ("scores", scores.to_owned()),
        ("correction", route.correction.to_string()),
        ("groups", option(route.groups, groups)),
        ("shares", route.shares.to_string()),
        ("factor", float(route.factor)),
        ("scale", route.scale.to_string()),
        ("shared", size(route.shared)),
        ("gated", route.gated.to_string()),
    ]
}

fn gating(gating: Gating) -> String {
    match gating {
        Gating::Plain(of) => format!("cpu::Epilogue::Gate({})", activation(of)),
        Gating::Clamped { limit, sharpness } => {
            let (limit, sharpness) = (float(limit), float(sharpness));
            format!("cpu::Epilogue::GateClamped {{ limit: {limit}, sharpness: {sharpness} }}")
        }
    }
}

fn summed(ending: Summed) -> String {
    match ending {
        Summed::Store => "cpu::Epilogue::Store".to_owned(),
        Summed::Add => "cpu::Epilogue::Add".to_owned(),
        Summed::AddSquares(left) => format!("cpu::Epilogue::AddSquares({})", squares(left)),
    }
}

fn delta_rule(rule: &spec::DeltaRule) -> Vec<(&'static str, String)> {
    vec![
        ("key_heads", size(rule.key_heads)),
        ("heads", size(rule.heads)),
        ("keys", size(rule.keys)),
        ("values", size(rule.values)),
        ("scale", float(rule.scale)),
        ("epsilon", float(rule.epsilon)),
        ("gated", option(rule.gated, float)),
    ]
}

fn prologue(prologue: &Prologue) -> String {
    format!(
        "cpu::Prologue {{ brings: {}, norm: {}, rotation: {} }}",
        brings(prologue.brings),
        option(prologue.norm, head_norm),
        rotation(&prologue.rotation)
    )
}

fn gates(gates: Gates) -> String {
    format!("cpu::Gates {{ pitch: {}, first: {} }}", size(gates.pitch), size(gates.first))
}

fn head_norm(norm: HeadNorm) -> String {
    let HeadNorm { epsilon, turned, values } = norm;
    format!("cpu::HeadNorm {{ epsilon: {}, turned: {turned}, values: {values} }}", float(epsilon))
}

fn brings(brings: KvSource) -> String {
    let what = match brings {
        KvSource::KeysAndValues => "KeysAndValues",
        KvSource::KeysValuesAndGates => "KeysValuesAndGates",
        KvSource::Keys => "Keys",
        KvSource::Nothing => "Nothing",
    };
    format!("cpu::KvSource::{what}")
}

fn deferred_norm(norm: DeferredNorm) -> String {
    format!("cpu::DeferredNorm {{ partials: {}, epsilon: {} }}", size(norm.partials), float(norm.epsilon))
}

fn own_norm(norm: InlineNorm) -> String {
    format!("cpu::InlineNorm {{ gain: {}, epsilon: {} }}", norm.gain, float(norm.epsilon))
}

fn latent_prepare(prepare: &LatentPrepare) -> String {
    let of = prepare.columns;
    let columns = shape(
        "LatentColumns",
        vec![
            ("queries_pitch", size(of.queries_pitch)),
            ("turned_first", size(of.turned_first)),
            ("latent_pitch", size(of.latent_pitch)),
            ("latent_first", size(of.latent_first)),
            ("key_pitch", size(of.key_pitch)),
            ("key_first", size(of.key_first)),
        ],
    );
    shape(
        "LatentPrepare",
        vec![
            ("heads", size(prepare.heads)),
            ("columns", columns),
            ("epsilon", float(prepare.epsilon)),
            ("rotation", rotation(&prepare.rotation)),
        ],
    )
}

fn squares(squares: Squares) -> String {
    format!("cpu::Squares {{ partials: {}, gain: {} }}", size(squares.partials), squares.gain)
}

fn elementwise_function(function: spec::Function) -> String {
    match function {
        spec::Function::Each(of) => format!("cpu::Function::Each({})", each(of)),
        spec::Function::Multiply => "cpu::Function::Multiply".to_owned(),
        spec::Function::Times => "cpu::Function::Times".to_owned(),
        spec::Function::ScaleBy => "cpu::Function::ScaleBy".to_owned(),
        spec::Function::Add => "cpu::Function::Add".to_owned(),
    }
}

fn each(each: UnaryOp) -> String {
    match each {
        UnaryOp::Activate(of) => format!("cpu::UnaryOp::Activate({})", activation(of)),
        UnaryOp::Softcap(cap) => format!("cpu::UnaryOp::Softcap({})", float(cap)),
        UnaryOp::Scale(factor) => format!("cpu::UnaryOp::Scale({})", float(factor)),
    }
}

fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "cpu::Activation::Silu",
        Activation::GeluTanh => "cpu::Activation::GeluTanh",
        Activation::Gelu => "cpu::Activation::Gelu",
        Activation::Relu => "cpu::Activation::Relu",
        Activation::Sigmoid => "cpu::Activation::Sigmoid",
    }
}

fn option<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "None".to_owned(), |value| format!("Some({})", text(value)))
}

fn size(value: usize) -> String {
    number(value as u64)
}

/// A Rust literal that parses to the same f32 bits.
fn float(value: f32) -> String {
    format!("{value:?}")
}

fn format(format: Format) -> String {
    format!("cpu::Format::{}", crate::kernels::weight_type(format))
}

/// The type argument of a weight format.
fn stored(format: Format) -> String {
    format!("cpu::{}", crate::kernels::weight_type(format))
}

fn epilogue(project: &Linear) -> String {
    match project.epilogue {
        Epilogue::Store => "cpu::Epilogue::Store".to_owned(),
        Epilogue::Add => "cpu::Epilogue::Add".to_owned(),
        Epilogue::Gate(of) => format!("cpu::Epilogue::Gate({})", activation(of)),
        Epilogue::Multiply { of } => format!("cpu::Epilogue::Multiply {{ of: {} }}", size(of)),
        Epilogue::AddSquares(left) => format!("cpu::Epilogue::AddSquares({})", squares(left)),
        Epilogue::Best => {
            let candidates = project.outputs.div_ceil(project.knobs.outputs_of_group());
            format!("cpu::Epilogue::Best {{ candidates: {} }}", size(candidates))
        }
    }
}

fn rotation(rotation: &Rotation) -> String {
    let list = |numbers: &[f32]| numbers.iter().map(|number| float(*number)).collect::<Vec<_>>().join(", ");
    let long = |long: &LongContext| match long {
        LongContext::Other { beyond, frequencies } => {
            let (beyond, frequencies) = (size(*beyond), list(frequencies));
            format!("cpu::LongContext::Other {{ beyond: {beyond}, frequencies: &[{frequencies}] }}")
        }
        LongContext::Stretched { beyond, factor } => {
            format!("cpu::LongContext::Stretched {{ beyond: {}, factor: {} }}", size(*beyond), float(*factor))
        }
    };
    let pairing = match rotation.pairing {
        Pairing::Half => "Half",
        Pairing::Interleaved => "Interleaved",
    };
    format!(
        "cpu::Rotation {{ frequencies: &[{}], pairing: cpu::Pairing::{pairing}, magnitude: {}, long: {} }}",
        list(&rotation.frequencies),
        float(rotation.magnitude),
        option(rotation.long.as_ref(), long)
    )
}
