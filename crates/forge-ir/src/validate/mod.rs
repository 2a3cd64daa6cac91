//! Validates a draft and returns a graph, or all errors.
//!
//! Checks that indices are in range, that parameters and bindings agree in number and shape, that every
//! weight and body is used, and that the prologue starts from token ids, bodies pass on the residual stream,
//! and the epilogue ends in one logit per vocabulary entry. `shape_check` checks operations, `cross_layer`
//! states and the per-layer inputs.

pub(crate) mod cross_layer;

use crate::diagnostic::Diagnostic;
use crate::graph::{Apply, Body, Draft, Op, ParamId, ParamKind};
use crate::shape_check::{shape, width_of, widths};
use crate::state::State;
use crate::weight::WeightSlice;
use std::ops::Deref;

/// A draft that has passed [`Draft::validate`]. Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph(Draft);

impl Deref for Graph {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.0
    }
}

impl Draft {
    /// Checks the guarantees of the crate documentation. Returns the graph, or all errors.
    pub fn validate(self) -> Result<Graph, Vec<Diagnostic>> {
        let mut check = Check { draft: &self, faults: Vec::new() };
        check.bodies();
        if check.faults.is_empty() {
            check.applications();
            check.everything_is_used();
            check.states();
            check.per_layer_inputs();
        }
        let faults = check.faults;
        if faults.is_empty() { Ok(Graph(self)) } else { Err(faults) }
    }
}

impl Graph {
    /// The body of an application.
    pub fn body(&self, apply: &Apply) -> &Body {
        &self.bodies[apply.body.0]
    }

    /// Prologue, layers and epilogue in order of evaluation.
    pub fn applications(&self) -> impl Iterator<Item = &Apply> {
        std::iter::once(&self.prologue).chain(&self.layers).chain(std::iter::once(&self.epilogue))
    }

    /// Widths of a body's values, starting with its input.
    pub fn widths(&self, body: &Body) -> Vec<usize> {
        widths(body)
    }
}

struct Check<'a> {
    draft: &'a Draft,
    faults: Vec<Diagnostic>,
}

impl Check<'_> {
    fn fault(&mut self, message: String) {
        self.faults.push(Diagnostic::new("F0401", message));
    }

    fn bodies(&mut self) {
        for body in &self.draft.bodies {
            let mut widths = vec![body.input];
            for (index, node) in body.nodes.iter().enumerate() {
                let at = format!("{}.{} (node {index})", body.name, node.name);
                let inputs: Option<Vec<usize>> =
                    node.inputs.iter().map(|value| widths.get(value.0).copied()).collect();
                let width = match inputs {
                    None => Err("uses a value that is not defined before it".to_owned()),
                    Some(inputs) => width_of(body, &node.op, &inputs),
                };
                if let Op::PositionEmbedding { table } = node.op
                    && let Ok([positions, _]) = shape(body, table)
                    && *positions < self.draft.model.context
                {
                    let context = self.draft.model.context;
                    self.fault(format!(
                        "{at}: the table has {positions} positions; the context is {context}"
                    ));
                }
                match width {
                    Ok(width) => widths.push(width),
                    Err(why) => {
                        self.fault(format!("{at}: {why}"));
                        break;
                    }
                }
            }
        }
    }

    fn applications(&mut self) {
        let draft = self.draft;
        let mut stream = 0;
        let layers = draft.layers.iter().enumerate().map(|(index, apply)| (format!("layer {index}"), apply));
        let all = std::iter::once(("prologue".to_owned(), &draft.prologue))
            .chain(layers)
            .chain(std::iter::once(("epilogue".to_owned(), &draft.epilogue)));
        for (at, apply) in all {
            let Some(body) = draft.bodies.get(apply.body.0) else {
                self.fault(format!("{at}: body {} of {} does not exist", apply.body.0, draft.bodies.len()));
                continue;
            };
            self.bindings(&at, body, apply);
            if body.input != stream {
                self.fault(format!("{at}: {} expects width {}, found {stream}", body.name, body.input));
            }
            stream = widths(body).last().copied().unwrap_or(0);
        }
        if stream != draft.model.vocabulary {
            self.fault(format!(
                "the epilogue has width {stream}; the vocabulary size is {}",
                draft.model.vocabulary
            ));
        }
    }

    fn bindings(&mut self, at: &str, body: &Body, apply: &Apply) {
        let weights: Vec<ParamId> = body.weight_params().collect();
        let states: Vec<ParamId> = body.state_params().collect();
        let parts = body.part_params().count();
        let [bound, params] = [
            [apply.weights.len(), apply.states.len(), apply.parts.len()],
            [weights.len(), states.len(), parts],
        ];
        if bound != params {
            let [weights, states, parts] = bound;
            return self.fault(format!(
                "{at}: binds {weights} weights, {states} states and {parts} per-layer input columns to {params:?} parameters"
            ));
        }
        for (param, id) in weights.iter().zip(&apply.weights) {
            let param = &body.params[param.0];
            match self.draft.weights.get(id.0) {
                None => self
                    .fault(format!("{at}: {} is bound to weight {}, which does not exist", param.name, id.0)),
                Some(weight) if ParamKind::Weight(weight.shape.clone()) != param.kind => {
                    self.fault(format!(
                        "{at}: {} expects {}, but {} is {:?}",
                        param.name,
                        kind(&param.kind),
                        weight.tensor,
                        weight.shape
                    ));
                }
                Some(_) => {}
            }
        }
        for (param, id) in states.iter().zip(&apply.states) {
            let param = &body.params[param.0];
            match self.draft.states.get(id.0) {
                Some(state) if ParamKind::State(state.clone()) == param.kind => {}
                _ => self.fault(format!(
                    "{at}: {} is bound to state {}, which is not {}",
                    param.name,
                    id.0,
                    kind(&param.kind)
                )),
            }
        }
    }

    fn everything_is_used(&mut self) {
        let draft = self.draft;
        let applications: Vec<&Apply> = std::iter::once(&draft.prologue)
            .chain(&draft.layers)
            .chain(std::iter::once(&draft.epilogue))
            .collect();
        for (index, weight) in draft.weights.iter().enumerate() {
            let of = weight.cut.map_or(weight.part().end, WeightSlice::of);
            let is_cut = match weight.cut {
                Some(WeightSlice::Columns { .. }) => weight.matrix_shape().len() == 2,
                Some(
                    WeightSlice::Groups { rows: each, .. }
                    | WeightSlice::Repeated { rows: each, .. }
                    | WeightSlice::ColumnGroups { columns: each, .. },
                ) => {
                    let is_transposed = weight.cut.is_some_and(WeightSlice::transposes);
                    let all = weight.matrix_shape().first();
                    each > 0
                        && all.is_some_and(|all| all.is_multiple_of(each))
                        && (!is_transposed || weight.matrix_shape().len() == 2)
                }
                _ => true,
            };
            if weight.part().end > of || !is_cut {
                self.fault(format!(
                    "{} has no slice {:?} of shape {:?}",
                    weight.tensor,
                    weight.part(),
                    weight.shape
                ));
            }
            if !applications.iter().any(|apply| apply.weights.iter().any(|id| id.0 == index)) {
                self.fault(format!("unused weight {}", weight.tensor));
            }
        }
        for (index, body) in draft.bodies.iter().enumerate() {
            if !applications.iter().any(|apply| apply.body.0 == index) {
                self.fault(format!("unused body {}", body.name));
            }
        }
    }
}

fn kind(kind: &ParamKind) -> String {
    match kind {
        ParamKind::Weight(shape) => format!("a weight of {shape:?}"),
        ParamKind::State(state @ State::Cache(_)) => format!("a cache of {state}"),
        ParamKind::State(state @ State::Latents(_)) => format!("an MLA cache of {state}"),
        ParamKind::State(state @ State::Conv(_)) => format!("a conv state of {state}"),
        ParamKind::State(state @ State::Recurrent(_)) => format!("a recurrent state of {state}"),
        ParamKind::Part(width) => format!("{width} columns of the per-layer inputs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Activation, BodyId, Cache, Experts, Format, Gating, Model, Node, Param, Routing, Scores,
        SpecialTokens, StateId, ValueId, Weight, WeightId,
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
}
