//! Checks what passes between applications in addition to the residual stream: states, written by one
//! application and possibly read by later ones, and the per-layer inputs, produced by the prologue and read
//! by layers.

use crate::graph::draft::{Apply, Body, Op, ParamKind};
use crate::validate::check::Check;
use crate::validate::shape_check::widths;

impl Check<'_> {
    /// Checks that every state is written once, and read only afterwards.
    pub(crate) fn states(&mut self) {
        let draft = self.draft;
        for index in 0..draft.states.len() {
            let mut kept = 0;
            let layers = draft.layers.iter();
            for apply in std::iter::once(&draft.prologue).chain(layers).chain([&draft.epilogue]) {
                let Some(body) = draft.bodies.get(apply.body.0) else { continue };
                let bound = body.state_params().zip(&apply.states).filter(|(_, id)| id.0 == index);
                for (param, _) in bound {
                    match body.only_reads(param) {
                        false => kept += 1,
                        true if kept == 0 => {
                            self.fault(format!("state {index} is read before it is written"))
                        }
                        true => {}
                    }
                }
            }
            if kept != 1 {
                self.fault(format!("state {index} is written by {kept} applications"));
            }
        }
    }

    /// Checks that layers read exactly the per-layer inputs that the prologue produces.
    pub(crate) fn per_layer_inputs(&mut self) {
        let draft = self.draft;
        let body = |apply: &Apply| draft.bodies.get(apply.body.0);
        let stores =
            |body: &Body| body.nodes.iter().filter(|node| node.op == Op::StorePerLayerInputs).count();
        let ends = [&draft.prologue, &draft.epilogue];
        let others = draft.layers.iter().chain([&draft.epilogue]);
        if others.filter_map(body).any(|body| stores(body) > 0) {
            self.fault("only the prologue can produce the per-layer inputs".to_owned());
        }
        if ends.into_iter().filter_map(body).any(|body| body.part_params().next().is_some()) {
            self.fault("only layers can read the per-layer inputs".to_owned());
        }
        let Some(prologue) = body(&draft.prologue) else { return };
        let width = match prologue.nodes.last() {
            Some(last) if last.op == Op::StorePerLayerInputs => widths(prologue)[last.inputs[1].0],
            _ => 0,
        };
        if stores(prologue) > usize::from(width > 0) {
            self.fault("the per-layer inputs must be produced last in the prologue".to_owned());
        }
        let mut parts = Vec::new();
        for (layer, apply) in draft.layers.iter().enumerate() {
            let Some(body) = body(apply) else { continue };
            for (param, first) in body.part_params().zip(&apply.parts) {
                let ParamKind::Part(columns) = body.params[param.0].kind else { continue };
                let part = *first..first.saturating_add(columns);
                if part.end > width {
                    self.fault(format!(
                        "layer {layer} reads {columns} columns from {first} on, of per-layer inputs of width {width}"
                    ));
                } else {
                    parts.push(part);
                }
            }
        }
        parts.sort_by_key(|part| part.start);
        let covered = parts
            .iter()
            .fold(0, |covered, part| if part.start <= covered { covered.max(part.end) } else { covered });
        if covered < width {
            self.fault(format!("no layer reads column {covered} of the per-layer inputs"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::validate::tests::{draft, node, param};
    use crate::{Apply, Body, BodyId, Draft, Op, ParamId, ParamKind, Weight, WeightId};

    /// The tiny model with a second layer that reads the first one's cache, and scales itself by columns of
    /// the per-layer inputs.
    fn cross_layer_draft() -> Draft {
        let mut draft = draft();
        let prologue = &mut draft.bodies[0];
        prologue.nodes.push(node(Op::StorePerLayerInputs, &[1, 1]));
        let cache = ParamId(0);
        let reads =
            Op::Attention { query_heads: 2, scale: 0.5, cache, window: None, softcap: None, sinks: None };
        draft.bodies.push(Body {
            name: "reading".to_owned(),
            input: 4,
            params: vec![
                param("cache", ParamKind::State(draft.states[0].clone())),
                param("factor", ParamKind::Weight(vec![1])),
                param("left", ParamKind::Part(2)),
                param("right", ParamKind::Part(2)),
            ],
            nodes: vec![
                node(Op::RmsNorm { gain: None, parts: 2, epsilon: 1e-5 }, &[0]),
                node(reads, &[1]),
                node(Op::ScaleBy { factor: ParamId(1) }, &[2]),
                node(Op::PerLayerInput { part: ParamId(2) }, &[]),
                node(Op::PerLayerInput { part: ParamId(3) }, &[]),
                node(Op::Multiply, &[4, 5]),
                node(Op::Add, &[0, 3]),
            ],
        });
        let weight = Weight { tensor: "factor".to_owned(), shape: vec![1], ..draft.weights[1].clone() };
        draft.weights.push(weight);
        let states = draft.layers[0].states.clone();
        draft.layers.push(Apply { body: BodyId(3), weights: vec![WeightId(4)], states, parts: vec![0, 2] });
        draft
    }

    #[test]
    fn accepts_shared_kv_caches_and_prologue_values() {
        let graph = cross_layer_draft().validate().expect("it is sound");
        let text = graph.to_string();
        for line in [
            "layers 0..1 layer",
            "layers 1..2 reading, cache of layer 0",
            "%2 node       = %1, per-layer inputs = %1 [4]",
            "part   right            columns 2..4 of the per-layer inputs",
            "%1 node       = rms_norm(%0 in 2 parts, epsilon 1e-5) [4]",
            "%2 node       = attention(%1, 2 heads, scale 0.5, cache) [4]",
            "%3 node       = %2 * factor [4]",
            "%5 node       = per_layer_input(right) [2]",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn rejects_invalid_cross_layer_values() {
        type Change = fn(&mut Draft);
        let cases: [(&str, Change); 10] = [
            ("state 0 is read before it is written", |draft| draft.layers.reverse()),
            ("state 0 is written by 2 applications", |draft| draft.layers.push(draft.layers[0].clone())),
            ("and 1 per-layer input columns", |draft| draft.layers[1].parts.truncate(1)),
            ("reads 2 columns from 3 on, of per-layer inputs of width 4", |draft| {
                draft.layers[1].parts[1] = 3
            }),
            ("no layer reads column 2 of the per-layer inputs", |draft| draft.layers[1].parts[1] = 0),
            ("only the prologue can produce the per-layer inputs", |draft| {
                draft.bodies[1].nodes.push(node(Op::StorePerLayerInputs, &[4, 4]));
            }),
            ("must be produced last in the prologue", |draft| {
                draft.bodies[0].nodes.push(node(Op::StorePerLayerInputs, &[2, 2]));
            }),
            ("only layers can read the per-layer inputs", |draft| {
                draft.bodies[2].params.push(param("part", ParamKind::Part(2)));
                draft.epilogue.parts.push(0);
            }),
            ("expected a factor of one element, found [2]", |draft| {
                draft.bodies[3].params[1].kind = ParamKind::Weight(vec![2]);
            }),
            ("parameter 1 is not a per-layer input parameter", |draft| {
                draft.bodies[3].nodes[3].op = Op::PerLayerInput { part: ParamId(1) };
            }),
        ];
        for (named, change) in cases {
            let mut draft = cross_layer_draft();
            change(&mut draft);
            let faults = draft.validate().expect_err(named);
            let messages: Vec<String> = faults.iter().map(ToString::to_string).collect();
            assert!(messages.iter().any(|fault| fault.contains(named)), "expected {named}: {messages:?}");
        }
    }
}
