//! Test helpers: operation lists, and their text form before and after a rule (`text`).

mod text;

pub(crate) use crate::fuse::rules::tests::text::text;

use crate::formats::Formats;
use crate::fuse::list::{
    Attend, CombineInput, ExpertsInner, ExpertsSum, Fused, FusedRouting, Kind, Linear, Operation, Value,
};
use crate::fuse::rules::{Fusion, Lists};
use crate::options::{Options, Quant};
use forge_ir::{
    Apply, Body, BodyId, Cache, Draft, Graph, Model, Node, Op, Param, ParamId, ParamKind, Routing,
    SpecialTokens, State, ValueId, Weight, WeightId,
};
use forge_ops::{Activation, Format, Gating, Groups, Pairing, RopeParameters, Scores};
use std::collections::BTreeSet;

/// A router of 4 experts with top-2 routing, and the experts, of width 6.
pub(crate) fn routed(groups: Option<Groups>) -> Vec<(&'static str, Kind, &'static [usize], usize)> {
    let routing = Routing {
        scores: Scores::Softmax,
        chosen: 2,
        correction: None,
        groups,
        renormalize: true,
        factor: 1.0,
        scale: None,
    };
    let inner = ExpertsInner {
        gate: ParamId(1),
        up: ParamId(2),
        shared: None,
        biases: None,
        gating: Gating::Plain(Activation::Silu),
        chosen: 2,
        folded: None,
        norm: None,
        choice: None,
    };
    let sum =
        ExpertsSum { down: ParamId(3), shared: None, bias: None, chosen: 2, ending: CombineInput::Store };
    vec![
        ("router", projection(0), &[0], 1),
        ("weights", Kind::Route(FusedRouting { routing, shared: 0, gated: false }), &[1], 2),
        ("inner", Kind::ExpertsInner(inner), &[0, 2], 3),
        ("routed", Kind::ExpertsSum(sum), &[3, 2], 4),
    ]
}

/// Parameters of an attention with 2 query heads and 1 KV head of 4 channels, as a frontend writes it.
pub(crate) struct Attention {
    /// Inputs of the projections.
    pub(crate) inputs: [usize; 3],
    /// Whether each projection has a bias.
    pub(crate) biases: [bool; 3],
    /// Magnitudes of the RoPE of queries and keys.
    pub(crate) magnitudes: [f32; 2],
    /// Epsilons of the norms of query heads and key heads, if any.
    pub(crate) epsilons: Option<[f32; 2]>,
    /// How values are prepared.
    pub(crate) values: Values,
}

/// Preparation of values.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Values {
    /// None.
    AsTheyAre,
    /// A norm without a gain.
    Normed {
        /// Number of parts.
        parts: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// A norm without a gain of the keys' projection.
    OfKeys,
}

/// An attention with QK-norm.
pub(crate) const NORMED: Attention = Attention {
    inputs: [0; 3],
    biases: [false; 3],
    magnitudes: [1.0; 2],
    epsilons: Some([1e-6, 1e-6]),
    values: Values::AsTheyAre,
};

impl Default for Attention {
    fn default() -> Attention {
        let values = Values::AsTheyAre;
        Attention { inputs: [0; 3], biases: [false; 3], magnitudes: [1.0; 2], epsilons: None, values }
    }
}

pub(crate) fn list(operations: Vec<(&str, Kind, &[usize], usize)>, widths: &[usize]) -> Fused {
    let operation = |(name, kind, inputs, output): (&str, Kind, &[usize], usize)| Operation {
        name: name.to_owned(),
        kind,
        inputs: inputs.iter().map(|value| Value(*value)).collect(),
        output: Value(output),
    };
    Fused {
        body: BodyId(0),
        operations: operations.into_iter().map(operation).collect(),
        widths: widths.to_vec(),
        formats: Vec::new(),
    }
}

pub(crate) fn projection(weight: usize) -> Kind {
    Kind::Linear(Linear::plain(ParamId(weight), None))
}

pub(crate) fn attention(what: &Attention) -> Fused {
    let linear = |index: usize| {
        let bias = what.biases[index].then_some(ParamId(10 + index));
        Kind::Linear(Linear::plain(ParamId(index), bias))
    };
    let rope = |heads, magnitude| {
        let rope = RopeParameters {
            frequencies: vec![1.0, 0.1].into(),
            pairing: Pairing::Half,
            magnitude,
            long: None,
        };
        Kind::Rope { heads, rope }
    };
    let attend = Kind::Attend(Attend {
        query_heads: 2,
        scale: 0.5,
        window: None,
        softcap: None,
        sinks: None,
        gated: false,
        cache: ParamId(3),
        prologue: None,
    });
    let norm = |gain, parts, epsilon| Kind::Norm { gain: Some(ParamId(gain)), parts, epsilon };
    let (rope_inputs, mut norms) = match what.epsilons {
        None => ([1, 2], vec![]),
        Some([query, key]) => (
            [8, 9],
            vec![("query_norm", norm(4, 2, query), &[1][..], 8), ("key_norm", norm(5, 1, key), &[2][..], 9)],
        ),
    };
    let mut operations: Vec<(&str, Kind, &[usize], usize)> = vec![
        ("query", linear(0), &what.inputs[..1], 1),
        ("key", linear(1), &what.inputs[1..2], 2),
        ("value", linear(2), &what.inputs[2..], 3),
    ];
    operations.append(&mut norms);
    operations.extend([
        ("rotated_query", rope(2, what.magnitudes[0]), &rope_inputs[..1], 4),
        ("rotated_key", rope(1, what.magnitudes[1]), &rope_inputs[1..], 5),
    ]);
    let value_norm = |parts, epsilon| Kind::Norm { gain: None, parts, epsilon };
    let value: &[usize] = match what.values {
        Values::AsTheyAre => &[5, 3],
        Values::Normed { parts, epsilon } => {
            operations.push(("value_norm", value_norm(parts, epsilon), &[3], 10));
            &[5, 10]
        }
        Values::OfKeys => {
            operations.remove(2);
            operations.push(("value_norm", value_norm(1, 1e-6), &[2], 10));
            &[5, 10]
        }
    };
    operations
        .extend([("append", Kind::Append { cache: ParamId(3) }, value, 7), ("heads", attend, &[4][..], 6)]);
    let widths = [8, 8, 4, 4, 8, 4, 8, 0, 8, 4, 4];
    let count = match (what.values, what.epsilons) {
        (Values::AsTheyAre, None) => 8,
        (Values::AsTheyAre, Some(_)) => 10,
        _ => 11,
    };
    list(operations, &widths[..count])
}

/// The same attention without RoPE.
pub(crate) fn without_rope(what: &Attention) -> Fused {
    let mut list = attention(what);
    let is_rope = |operation: &Operation| matches!(operation.kind, Kind::Rope { .. });
    while let Some(place) = list.operations.iter().position(is_rope) {
        let operation = list.operations.remove(place);
        let inputs = list.operations.iter_mut().flat_map(|operation| &mut operation.inputs);
        inputs.filter(|input| **input == operation.output).for_each(|input| *input = operation.inputs[0]);
    }
    list
}

/// The body of [`attention`], with its cache only.
pub(crate) fn attention_body(width: usize) -> Body {
    let mut params = vec![Param { name: "any".to_owned(), kind: ParamKind::Weight(vec![1]) }; 3];
    let kind = ParamKind::State(State::Cache(Cache { heads: 1, width }));
    params.push(Param { name: "cache".to_owned(), kind });
    Body { name: "layer".to_owned(), input: 8, params, nodes: Vec::new() }
}

/// A table, two layers of two normalized branches each, and a head that is tied or has its own weight.
pub(crate) fn graph(tied: bool, format: Format) -> Graph {
    const WIDTH: usize = 4;
    const TOKENS: usize = 5;
    let mut weights =
        vec![("table", vec![TOKENS, WIDTH]), ("gain", vec![WIDTH]), ("head", vec![TOKENS, WIDTH])];
    weights.truncate(if tied { 2 } else { 3 });
    let first = weights.len();
    for _ in 0..2 {
        weights.extend([
            ("gain_a", vec![WIDTH]),
            ("in_a", vec![8, WIDTH]),
            ("out_a", vec![WIDTH, 8]),
            ("gain_b", vec![WIDTH]),
            ("in_b", vec![8, WIDTH]),
            ("out_b", vec![WIDTH, 8]),
        ]);
    }
    let param = |(name, shape): &(&str, Vec<usize>)| Param {
        name: (*name).to_owned(),
        kind: ParamKind::Weight(shape.clone()),
    };
    let node = |name: &str, op, inputs: &[usize]| Node {
        name: name.to_owned(),
        op,
        inputs: inputs.iter().map(|value| ValueId(*value)).collect(),
    };
    let norm = |gain| Op::RmsNorm { gain: Some(ParamId(gain)), parts: 1, epsilon: 1e-5 };
    let linear = |weight| Op::Linear { weight: ParamId(weight), bias: None };
    let body = |name: &str, input, params, nodes| Body { name: name.to_owned(), input, params, nodes };
    let apply = |body, weights: Vec<usize>| Apply {
        body: BodyId(body),
        weights: weights.into_iter().map(WeightId).collect(),
        states: Vec::new(),
        parts: Vec::new(),
    };
    let layer = vec![
        node("norm_a", norm(0), &[0]),
        node("in_a", linear(1), &[1]),
        node("out_a", linear(2), &[2]),
        node("stream", Op::Add, &[0, 3]),
        node("norm_b", norm(3), &[4]),
        node("in_b", linear(4), &[5]),
        node("out_b", linear(5), &[6]),
        node("stream", Op::Add, &[4, 7]),
    ];
    let head = vec![node("norm", norm(0), &[0]), node("logits", linear(1), &[1])];
    let draft = Draft {
        model: Model {
            name: "tiny".to_owned(),
            architecture: "Tiny".to_owned(),
            vocabulary: TOKENS,
            hidden: WIDTH,
            context: 8,
            specials: SpecialTokens::default(),
        },
        weights: weights
            .iter()
            .map(|(tensor, shape)| Weight {
                tensor: (*tensor).to_owned(),
                shape: shape.clone(),
                format,
                plus_one: false,
                cut: None,
                stack: None,
                blocks: None,
                encoding: None,
            })
            .collect(),
        states: Vec::new(),
        bodies: vec![
            body(
                "embed",
                0,
                vec![param(&weights[0])],
                vec![node("stream", Op::Embed { table: ParamId(0), scale: 1.0 }, &[0])],
            ),
            body("layer", WIDTH, weights[first..first + 6].iter().map(param).collect(), layer),
            body("head", WIDTH, vec![param(&weights[1]), param(&("head", vec![TOKENS, WIDTH]))], head),
        ],
        prologue: apply(0, vec![0]),
        layers: vec![apply(1, (first..first + 6).collect()), apply(1, (first + 6..first + 12).collect())],
        epilogue: apply(2, vec![1, if tied { 0 } else { 2 }]),
    };
    draft.validate().expect("it is sound")
}

fn lists(graph: &Graph, options: &Options) -> Lists {
    crate::fuse::rules::apply(graph, &Formats::new(graph, options).expect("nothing is overridden"), options)
}

/// The decode lists of every body of a graph, as text.
pub(crate) fn decode(graph: &Graph, quant: Quant, disabled: &[Fusion]) -> String {
    let options = Options { quant, disabled: disabled.iter().copied().collect(), ..Options::default() };
    lists(graph, &options).decode.iter().map(text).collect()
}

#[test]
fn disabled_fusions_change_nothing() {
    let graph = graph(false, Format::F32);
    let all: BTreeSet<Fusion> = Fusion::ALL.into();
    let options = Options { disabled: all, ..Options::default() };
    let lists = lists(&graph, &options);
    let plain = |list: &Fused| {
        let body = &graph.bodies[list.body.0];
        *list == Fused::of(list.body, body, list.widths.clone(), list.formats.clone())
    };
    assert!(lists.decode.iter().chain(&lists.batch).all(plain));
}

#[test]
fn fusion_names_are_unique() {
    for fusion in Fusion::ALL {
        assert_eq!(Fusion::from_name(fusion.name()), Some(fusion));
    }
}
