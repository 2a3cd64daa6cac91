//! Graphs of decoders of real sizes, without a checkpoint.

use forge_ir::{
    Apply, Body, BodyId, Cache, Draft, Graph, Model, Node, Op, Param, ParamId, ParamKind, SpecialTokens,
    State, StateId, ValueId, Weight, WeightId,
};
use forge_ops::{Activation, Format, Pairing, RopeParameters};
use forge_planner::{Chip, Options, Plan, Quant, plan};

/// The sizes of a decoder.
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
}

/// Llama-3.1-8B.
pub(crate) const EIGHT: Shape = Shape {
    hidden: 4096,
    layers: 32,
    heads: 32,
    key_heads: 8,
    width: 128,
    inner: 14336,
    vocabulary: 128_256,
    context: 131_072,
};

/// A Llama with 1.1B parameters, as written by `cargo xtask random-model`.
pub(crate) const ONE: Shape = Shape {
    hidden: 2048,
    layers: 16,
    heads: 32,
    key_heads: 8,
    width: 64,
    inner: 8192,
    vocabulary: 32_000,
    context: 8192,
};

/// Plans the decoder in a format.
pub(crate) fn planned(shape: &Shape, format: Format) -> Plan {
    let options = Options { quant: Quant::To(format), ..Options::default() };
    plan(&graph(shape), &options).expect("it can be planned")
}

/// Options for a chip, with weights in a format.
pub(crate) fn options_for(chip: &'static Chip, format: Format) -> Options {
    Options { quant: Quant::To(format), chip: Some(chip), chunk: chip.chunk(), ..Options::default() }
}

/// Plans the decoder in a format for a chip.
pub(crate) fn planned_for(chip: &'static Chip, shape: &Shape, format: Format) -> Plan {
    planned_with(shape, &options_for(chip, format))
}

/// Plans the decoder with these options.
pub(crate) fn planned_with(shape: &Shape, options: &Options) -> Plan {
    plan(&graph(shape), options).expect("it can be planned")
}

/// Names and shapes of a body's weights.
type Weights<'a> = [(&'a str, Vec<usize>)];

fn params(weights: &Weights<'_>) -> Vec<Param> {
    let param = |(name, shape): &(&str, Vec<usize>)| Param {
        name: (*name).to_owned(),
        kind: ParamKind::Weight(shape.clone()),
    };
    weights.iter().map(param).collect()
}

fn node(name: &str, op: Op, inputs: &[usize]) -> Node {
    Node { name: name.to_owned(), op, inputs: inputs.iter().map(|value| ValueId(*value)).collect() }
}

/// The decoder's graph: every weight in bf16, a head of its own.
pub(crate) fn graph(shape: &Shape) -> Graph {
    let Shape { hidden, heads, key_heads, width, inner, vocabulary, .. } = *shape;
    let (queries, keys) = (heads * width, key_heads * width);
    let of_layer = [
        ("attention_gain", vec![hidden]),
        ("query", vec![queries, hidden]),
        ("key", vec![keys, hidden]),
        ("value", vec![keys, hidden]),
        ("output", vec![hidden, queries]),
        ("mlp_gain", vec![hidden]),
        ("gate", vec![inner, hidden]),
        ("up", vec![inner, hidden]),
        ("down", vec![hidden, inner]),
    ];
    let of_head = [("gain", vec![hidden]), ("head", vec![vocabulary, hidden])];
    let table = [("table", vec![vocabulary, hidden])];
    let mut weights = Vec::new();
    let mut bind = |named: &Weights<'_>| -> Vec<WeightId> {
        let first = weights.len();
        let weight = |(index, (name, shape)): (usize, &(&str, Vec<usize>))| Weight {
            tensor: format!("{name}.{}", first + index),
            shape: shape.clone(),
            format: Format::Bf16,
            plus_one: false,
            cut: None,
            stack: None,
            blocks: None,
            encoding: None,
        };
        weights.extend(named.iter().enumerate().map(weight));
        (first..weights.len()).map(WeightId).collect()
    };
    let apply = |body, weights, states| Apply { body: BodyId(body), weights, states, parts: Vec::new() };
    let prologue = apply(0, bind(&table), Vec::new());
    let layers: Vec<Apply> =
        (0..shape.layers).map(|layer| apply(1, bind(&of_layer), vec![StateId(layer)])).collect();
    let epilogue = apply(2, bind(&of_head), Vec::new());
    let state = State::Cache(Cache { heads: key_heads, width });
    let mut of_layer = params(&of_layer);
    of_layer.push(Param { name: "cache".to_owned(), kind: ParamKind::State(state.clone()) });
    let body = |name: &str, input, params, nodes| Body { name: name.to_owned(), input, params, nodes };
    let draft = Draft {
        model: Model {
            name: "decoder".to_owned(),
            architecture: "Decoder".to_owned(),
            vocabulary,
            hidden,
            context: shape.context,
            specials: SpecialTokens::default(),
        },
        weights,
        states: vec![state; shape.layers],
        bodies: vec![
            body(
                "embed",
                0,
                params(&table),
                vec![node("stream", Op::Embed { table: ParamId(0), scale: 1.0 }, &[0])],
            ),
            body("layer", hidden, of_layer, layer(shape)),
            body(
                "head",
                hidden,
                params(&of_head),
                vec![node("norm", norm(0), &[0]), node("logits", linear(1), &[1])],
            ),
        ],
        prologue,
        layers,
        epilogue,
    };
    draft.validate().expect("it is sound")
}

fn norm(gain: usize) -> Op {
    Op::RmsNorm { gain: Some(ParamId(gain)), parts: 1, epsilon: 1e-5 }
}

fn linear(weight: usize) -> Op {
    Op::Linear { weight: ParamId(weight), bias: None }
}

fn layer(shape: &Shape) -> Vec<Node> {
    let frequencies = (0..shape.width / 2).map(|pair| 0.9_f32.powi(pair as i32)).collect();
    let rope = RopeParameters { frequencies, pairing: Pairing::Half, magnitude: 1.0, long: None };
    let rope = |heads| Op::Rope { heads, width: shape.width, rope: rope.clone() };
    let attention = Op::Attention {
        query_heads: shape.heads,
        scale: 0.125,
        cache: ParamId(9),
        window: None,
        softcap: None,
        sinks: None,
    };
    vec![
        node("attention_norm", norm(0), &[0]),
        node("query", linear(1), &[1]),
        node("key", linear(2), &[1]),
        node("value", linear(3), &[1]),
        node("rotated_query", rope(shape.heads), &[2]),
        node("rotated_key", rope(shape.key_heads), &[3]),
        node("heads", attention, &[5, 6, 4]),
        node("output", linear(4), &[7]),
        node("stream", Op::Add, &[0, 8]),
        node("mlp_norm", norm(5), &[9]),
        node("gate", linear(6), &[10]),
        node("up", linear(7), &[10]),
        node("activated", Op::Activate(Activation::Silu), &[11]),
        node("inner", Op::Multiply, &[13, 12]),
        node("down", linear(8), &[14]),
        node("stream", Op::Add, &[9, 15]),
    ]
}
