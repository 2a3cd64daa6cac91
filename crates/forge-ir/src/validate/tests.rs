//! Drafts that are valid, and each way to be invalid.

use crate::{
    Activation, Apply, Body, BodyId, Cache, Draft, Experts, Format, Gating, Model, Node, Op, Param, ParamId,
    ParamKind, Routing, Scores, SpecialTokens, State, StateId, ValueId, Weight, WeightId, WeightSlice,
};

pub(crate) fn param(name: &str, kind: ParamKind) -> Param {
    Param { name: name.to_owned(), kind }
}

pub(crate) fn node(op: Op, inputs: &[usize]) -> Node {
    Node { name: "node".to_owned(), op, inputs: inputs.iter().map(|value| ValueId(*value)).collect() }
}

/// Attention of 2 heads over 1 of 2 channels. The cache is parameter 2 of the layer.
fn attention(window: Option<usize>, softcap: Option<f32>) -> Op {
    Op::Attention { query_heads: 2, scale: 0.5, cache: ParamId(2), window, softcap, sinks: None }
}

fn routing(chosen: usize) -> Routing {
    let (scores, correction, groups, renormalize, factor, scale) =
        (Scores::Softmax, None, None, false, 1.0, None);
    Routing { scores, chosen, correction, groups, renormalize, factor, scale }
}

/// A vocabulary of 5 tokens, one attention layer, and a head.
pub(crate) fn draft() -> Draft {
    let weight = |tensor: &str, shape: &[usize]| Weight {
        tensor: tensor.to_owned(),
        shape: shape.to_vec(),
        format: Format::F32,
        plus_one: false,
        cut: None,
        stack: None,
        blocks: None,
        encoding: None,
    };
    let shape = |shape: &[usize]| ParamKind::Weight(shape.to_vec());
    let state = State::Cache(Cache { heads: 1, width: 2 });
    let linear = |weight| Op::Linear { weight: ParamId(weight), bias: None };
    let body = |name: &str, input, params, nodes| Body { name: name.to_owned(), input, params, nodes };
    let apply = |body, weights: &[usize], states: &[usize]| Apply {
        body: BodyId(body),
        weights: weights.iter().map(|id| WeightId(*id)).collect(),
        states: states.iter().map(|id| StateId(*id)).collect(),
        parts: Vec::new(),
    };
    Draft {
        model: Model {
            name: "tiny".to_owned(),
            architecture: "Tiny".to_owned(),
            vocabulary: 5,
            hidden: 4,
            context: 8,
            specials: SpecialTokens::default(),
        },
        weights: vec![
            weight("table", &[5, 4]),
            weight("gain", &[4]),
            weight("key", &[2, 4]),
            weight("head", &[5, 4]),
        ],
        states: vec![state.clone()],
        bodies: vec![
            body(
                "embed",
                0,
                vec![param("table", shape(&[5, 4]))],
                vec![node(Op::Embed { table: ParamId(0), scale: 1.0 }, &[0])],
            ),
            body(
                "layer",
                4,
                vec![
                    param("gain", shape(&[4])),
                    param("key", shape(&[2, 4])),
                    param("cache", ParamKind::State(state)),
                ],
                vec![
                    node(Op::RmsNorm { gain: Some(ParamId(0)), parts: 1, epsilon: 1e-5 }, &[0]),
                    node(linear(1), &[1]),
                    node(attention(None, None), &[1, 2, 2]),
                    node(Op::Add, &[0, 3]),
                ],
            ),
            body("head", 4, vec![param("head", shape(&[5, 4]))], vec![node(linear(0), &[0])]),
        ],
        prologue: apply(0, &[0], &[]),
        layers: vec![apply(1, &[1, 2], &[0])],
        epilogue: apply(2, &[3], &[]),
    }
}

#[test]
fn valid_drafts_become_graphs() {
    let graph = draft().validate().expect("it is sound");
    assert_eq!(graph.widths(graph.body(&graph.layers[0])), [4, 4, 2, 4, 4]);
    assert_eq!(graph.applications().count(), 3);
}

#[test]
fn accepts_rare_features() {
    let mut draft = draft();
    let layer = &mut draft.bodies[1];
    layer.nodes[0].op = Op::RmsNorm { gain: Some(ParamId(0)), parts: 2, epsilon: 1e-5 };
    layer.params[0].kind = ParamKind::Weight(vec![2]);
    layer.nodes[2].op = attention(Some(1), Some(50.0));
    layer.nodes.push(node(Op::Activate(Activation::GeluTanh), &[4]));
    layer.nodes.push(node(Op::Softcap(30.0), &[5]));
    layer.nodes.push(node(Op::Scale(0.5), &[6]));
    draft.weights[1] = Weight { shape: vec![2], plus_one: true, ..draft.weights[1].clone() };
    draft.weights[2].cut = Some(WeightSlice::Rows { first: 2, of: 6 });
    draft.weights[3].cut = Some(WeightSlice::Columns { first: 0, of: 5 });
    assert_eq!(draft.weights[2].tensor_shape(), [6, 4]);
    assert_eq!(draft.weights[3].tensor_shape(), [4, 5]);
    draft.bodies[0].nodes[0].op = Op::Embed { table: ParamId(0), scale: 2.5 };
    draft.weights[0].cut = Some(WeightSlice::Groups { first: 3, rows: 1, of: 4 });
    assert_eq!(draft.weights[0].tensor_shape(), [20, 4]);
    assert_eq!(
        [0, 1, 4].map(|row| draft.weights[0].cut.map(|cut| cut.place(row))),
        [Some(3), Some(7), Some(19)]
    );
    let graph = draft.validate().expect("it is sound");
    assert_eq!(graph.widths(graph.body(&graph.layers[0])), [4, 4, 2, 4, 4, 4, 4, 4]);
    let text = graph.to_string();
    for line in [
        "%1 node       = embed(%0, table) * 2.5 [4]",
        "weight gain             [2]            f32 1 + gain",
        "weight key              [2, 4]         f32 key rows 2..4",
        "weight head             [5, 4]         f32 head columns 0..5",
        "weight table            [5, 4]         f32 table rows 3..4 of every 4",
        "%1 node       = rms_norm(%0 in 2 parts, gain, epsilon 1e-5) [4]",
        "%3 node       = attention(%1, %2, %2, 2 heads, scale 0.5, window 1, softcap 50, cache) [4]",
        "%5 node       = gelu_tanh(%4) [4]",
        "%6 node       = softcap(%5, 30) [4]",
        "%7 node       = %6 * 0.5 [4]",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn rejects_each_invalid_draft() {
    type Change = fn(&mut Draft);
    let cases: [(&str, Change); 36] = [
        ("not defined before it", |draft| draft.bodies[1].nodes[0].inputs[0] = ValueId(7)),
        ("expected 2 inputs", |draft| draft.bodies[1].nodes[3].inputs.truncate(1)),
        ("input widths 4 and 2 differ", |draft| draft.bodies[1].nodes[3].inputs[1] = ValueId(2)),
        ("is not a weight", |draft| {
            draft.bodies[2].nodes[0].op = Op::Embed { table: ParamId(9), scale: 1.0 }
        }),
        ("gain [3]", |draft| draft.bodies[1].params[0].kind = ParamKind::Weight(vec![3])),
        ("gain [4] does not match width 2", |draft| {
            draft.bodies[1].nodes[0].op = Op::RmsNorm { gain: Some(ParamId(0)), parts: 2, epsilon: 1e-5 };
        }),
        ("width 4 is not a multiple of 3 parts", |draft| {
            draft.bodies[1].nodes[0].op = Op::RmsNorm { gain: Some(ParamId(0)), parts: 3, epsilon: 1e-5 };
        }),
        ("width 4 is not a multiple of 0 parts", |draft| {
            draft.bodies[1].nodes[0].op = Op::RmsNorm { gain: Some(ParamId(0)), parts: 0, epsilon: 1e-5 };
        }),
        ("the window is 0", |draft| draft.bodies[1].nodes[2].op = attention(Some(0), None)),
        ("invalid scale 0", |draft| {
            draft.bodies[0].nodes[0].op = Op::Embed { table: ParamId(0), scale: 0.0 };
        }),
        ("invalid scale inf", |draft| {
            draft.bodies[0].nodes[0].op = Op::Embed { table: ParamId(0), scale: f32::INFINITY };
        }),
        ("invalid softcap 0", |draft| draft.bodies[1].nodes[2].op = attention(None, Some(0.0))),
        ("invalid softcap NaN", |draft| draft.bodies[2].nodes[0].op = Op::Softcap(f32::NAN)),
        ("invalid softcap inf", |draft| draft.bodies[2].nodes[0].op = Op::Softcap(f32::INFINITY)),
        ("invalid factor 0", |draft| draft.bodies[2].nodes[0].op = Op::Scale(0.0)),
        ("invalid factor NaN", |draft| draft.bodies[2].nodes[0].op = Op::Scale(f32::NAN)),
        ("table [2, 4] does not match width 2", |draft| {
            draft.bodies[1].nodes.insert(2, node(Op::PositionEmbedding { table: ParamId(1) }, &[2]));
        }),
        ("gain or bias [2, 4]", |draft| {
            let op = Op::LayerNorm { gain: ParamId(0), bias: Some(ParamId(1)), epsilon: 1e-5 };
            draft.bodies[1].nodes[0].op = op;
        }),
        ("the table has 2 positions; the context is 8", |draft| {
            draft.bodies[1].nodes.insert(0, node(Op::PositionEmbedding { table: ParamId(1) }, &[0]));
        }),
        ("input width 4", |draft| draft.bodies[2].params[0].kind = ParamKind::Weight(vec![5, 6])),
        ("is not a KV cache", |draft| {
            draft.bodies[1].params[2].kind = ParamKind::Weight(vec![4]);
        }),
        ("body 8 of 3 does not exist", |draft| draft.layers[0].body = BodyId(8)),
        ("binds 1 weights", |draft| draft.layers[0].weights.truncate(1)),
        ("but head is [6, 4]", |draft| draft.weights[3].shape = vec![6, 4]),
        ("state 0 is written by 0 applications", |draft| draft.layers.clear()),
        ("gain has no slice 2..6", |draft| {
            draft.weights[1].cut = Some(WeightSlice::Rows { first: 2, of: 5 })
        }),
        ("gain has no slice 0..4 of shape [4]", |draft| {
            draft.weights[1].cut = Some(WeightSlice::Columns { first: 0, of: 4 });
        }),
        ("head has no slice 4..6 of shape [5, 4]", |draft| {
            draft.weights[3].cut = Some(WeightSlice::Groups { first: 4, rows: 2, of: 5 });
        }),
        ("head has no slice 0..2 of shape [5, 4]", |draft| {
            draft.weights[3].cut = Some(WeightSlice::Groups { first: 0, rows: 2, of: 5 });
        }),
        ("head has no slice 1..3 of shape [5, 4]", |draft| {
            draft.weights[3].cut = Some(WeightSlice::Repeated { first: 1, rows: 2, of: 5 });
        }),
        ("cannot select 5 of 2 experts", |draft| {
            draft.bodies[1].nodes.insert(2, node(Op::Route(routing(5)), &[2]));
        }),
        ("correction or scale [4] does not match 2 experts", |draft| {
            let op = Op::Route(Routing { correction: Some(ParamId(0)), ..routing(1) });
            draft.bodies[1].nodes.insert(2, node(op, &[2]));
        }),
        ("stacks [2, 4], [2, 4] and [4] do not match 2 experts of input width 4", |draft| {
            let [gate, up, down] = [1, 1, 0].map(ParamId);
            let gating = Gating::Plain(Activation::Silu);
            let op = Op::Experts(Experts { gate, up, down, biases: None, gating });
            draft.bodies[1].nodes.insert(2, node(op, &[1, 2]));
        }),
        ("invalid limit 0 or sharpness 1", |draft| {
            let [gate, up, down] = [1, 1, 0].map(ParamId);
            let gating = Gating::Clamped { limit: 0.0, sharpness: 1.0 };
            let op = Op::Experts(Experts { gate, up, down, biases: None, gating });
            draft.bodies[1].nodes.insert(2, node(op, &[1, 2]));
        }),
        ("sinks [4] do not match 2 query heads", |draft| {
            for node in &mut draft.bodies[1].nodes {
                if let Op::Attention { sinks, .. } = &mut node.op {
                    *sinks = Some(ParamId(0));
                }
            }
        }),
        ("the vocabulary size is 9", |draft| draft.model.vocabulary = 9),
    ];
    for (named, change) in cases {
        let mut draft = draft();
        change(&mut draft);
        let faults = draft.validate().expect_err(named);
        let messages: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(messages.iter().any(|fault| fault.contains(named)), "expected {named}: {messages:?}");
    }
}

#[test]
fn rejects_unused_weights() {
    let mut draft = draft();
    draft.weights.push(Weight { tensor: "spare".to_owned(), ..draft.weights[1].clone() });
    let faults = draft.validate().expect_err("a weight is spare");
    assert!(faults.iter().any(|fault| fault.message.contains("spare")), "{faults:?}");
}
