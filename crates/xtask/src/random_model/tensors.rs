//! The tensors of a checkpoint, with the distributions of their values.

use forge_frontend::{DummyWeights, Options, read_model};
use forge_ir::{Diagnostic, Experts, Op, ParamId, Weight};
use serde_json::Value;
use std::collections::BTreeSet;

/// Name, shape and value distribution of a tensor.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) mean: f32,
    pub(super) deviation: f32,
    /// Whether later rows have smaller values, so that experts are not equally likely.
    pub(super) is_skewed: bool,
}

/// Factor of the last row of a skewed tensor; the factor of the first row is 1.
pub(super) const LAST_ROW_FACTOR: f32 = 0.1;

impl Tensor {
    /// The standard deviation of a row.
    pub(super) fn deviation_of(&self, row: usize) -> f32 {
        let last = (self.shape[0] - 1).max(1) as f32;
        if self.is_skewed {
            self.deviation * (1.0 - (1.0 - LAST_ROW_FACTOR) * row as f32 / last)
        } else {
            self.deviation
        }
    }
}

/// The tensors that the frontend requests, with distributions that depend on their use in the graph.
pub(super) fn tensors(config: &Value, is_skewed: bool) -> Result<Vec<Tensor>, String> {
    let to_message = |faults: Vec<Diagnostic>| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        faults.join("\n")
    };
    let options = Options::default();
    let shapes = DummyWeights::new(&config.to_string(), &options).map_err(to_message)?;
    let graph = read_model(&shapes, &options).map_err(to_message)?.graph;
    let mut spreads = vec![None; graph.weights.len()];
    let mut routers = BTreeSet::new();
    for apply in graph.applications() {
        let body = graph.body(apply);
        for route in body.nodes.iter().filter(|node| is_skewed && matches!(node.op, Op::Route(_))) {
            // Inputs precede node outputs.
            let logits = route.inputs[0].0.checked_sub(1).map(|node| &body.nodes[node].op);
            if let Some(Op::Linear { weight, .. }) = logits {
                routers.extend(apply.weight(body, *weight).map(|id| id.0));
            }
        }
        for node in &body.nodes {
            let used = match &node.op {
                Op::Embed { table, .. } => vec![(*table, (0.0, 1.0))],
                Op::PositionEmbedding { table } => vec![(*table, (0.0, 0.1))],
                Op::LayerNorm { gain, bias, .. } => {
                    [(*gain, (1.0, 0.1))].into_iter().chain(bias.map(|bias| (bias, (0.0, 0.1)))).collect()
                }
                Op::RmsNorm { gain, .. } => gain.map(|gain| (gain, (1.0, 0.1))).into_iter().collect(),
                Op::ScaleBy { factor } => vec![(*factor, (1.0, 0.1))],
                Op::Linear { weight, bias } => {
                    let columns = apply.weight(body, *weight).map_or(1, |id| graph.weights[id.0].columns());
                    let bias = bias.map(|bias| (bias, (0.0, 0.1)));
                    [(*weight, (0.0, 1.0 / (columns as f32).sqrt()))].into_iter().chain(bias).collect()
                }
                Op::PerHeadLinear { weight, .. } => {
                    let columns = apply.weight(body, *weight).map_or(1, |id| graph.weights[id.0].columns());
                    vec![(*weight, (0.0, 1.0 / (columns as f32).sqrt()))]
                }
                Op::Convolve { taps, conv_state } => {
                    let count = body.conv_state(*conv_state).map_or(1, |state| state.rows + 1);
                    vec![(*taps, (0.0, 1.0 / (count as f32).sqrt()))]
                }
                Op::DeltaRule { a_log, dt_bias, .. } => vec![(*a_log, (-1.0, 0.5)), (*dt_bias, (0.0, 0.5))],
                Op::Route(routing) => {
                    let correction = routing.correction.map(|correction| (correction, (0.0, 0.1)));
                    correction.into_iter().chain(routing.scale.map(|scale| (scale, (1.0, 0.1)))).collect()
                }
                Op::Attention { sinks, .. } => sinks.map(|sinks| (sinks, (0.0, 1.0))).into_iter().collect(),
                Op::Experts(Experts { gate, up, down, biases, .. }) => {
                    let of = |param: &ParamId| {
                        let columns =
                            apply.weight(body, *param).map_or(1, |id| graph.weights[id.0].columns());
                        (*param, (0.0, 1.0 / (columns as f32).sqrt()))
                    };
                    let biases = biases.iter().flatten().map(|bias| (*bias, (0.0, 0.1)));
                    [gate, up, down].map(of).into_iter().chain(biases).collect()
                }
                _ => Vec::new(),
            };
            for (param, spread) in used {
                if let Some(id) = apply.weight(body, param) {
                    // The first use counts: a tied head is an embedding.
                    spreads[id.0].get_or_insert(spread);
                }
            }
        }
    }
    let tensors = |(index, weight): (usize, &Weight)| -> Vec<Tensor> {
        let (mean, deviation) = spreads[index].unwrap_or((0.0, 1.0));
        let mean = if weight.plus_one { mean - 1.0 } else { mean };
        let is_skewed = routers.contains(&index);
        let tensor = |name| Tensor { name, shape: weight.tensor_shape(), mean, deviation, is_skewed };
        weight.tensors().map(tensor).collect()
    };
    // The first weight of a fused tensor determines its distribution.
    let mut seen = BTreeSet::new();
    let weights = graph.weights.iter().enumerate();
    Ok(weights.flat_map(tensors).filter(|tensor| seen.insert(tensor.name.clone())).collect())
}
