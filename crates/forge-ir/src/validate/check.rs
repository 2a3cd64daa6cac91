//! Checks of bodies, of what applications bind to parameters, and of unused weights and bodies.

use crate::diagnostic::Diagnostic;
use crate::graph::draft::{Apply, Body, Draft, Op, ParamId, ParamKind};
use crate::graph::state::State;
use crate::validate::shape_check::{shape, width_of, widths};
use crate::weights::weight::WeightSlice;

/// A draft, and what is wrong with it.
pub(super) struct Check<'a> {
    pub(super) draft: &'a Draft,
    pub(super) faults: Vec<Diagnostic>,
}

impl Check<'_> {
    pub(super) fn fault(&mut self, message: String) {
        self.faults.push(Diagnostic::new("F0401", message));
    }

    pub(super) fn bodies(&mut self) {
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

    pub(super) fn applications(&mut self) {
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

    pub(super) fn everything_is_used(&mut self) {
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
