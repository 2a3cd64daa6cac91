//! Evaluates prologue, layers and epilogue in order.
//!
//! Longer than 400 lines because one match evaluates every operation of the graph.

use crate::attention::{Heads, apply_rope, attention, capped};
use crate::experts::{Stacks, Vectors, experts, route};
use crate::kv_rounding::round_to_cache_format;
use crate::linear::{Precision, linear};
use crate::mla;
use crate::recurrent::{convolve, decay, delta_rule};
use crate::rows::{Row, Values};
use forge_ir::{
    Activation, Apply, Body, Diagnostic, Format, Gating, Graph, ImportanceMatrix, Node, Op, ParamId,
    ParamKind, StateId, WeightId, WeightRows,
};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The logits of rows `positions` with KV cache format `cache`. `rows` contains all tokens of each slot from
/// position 0 on. The context length is that of the longest slot.
pub(crate) fn run(
    graph: &Graph,
    weights: &dyn WeightRows,
    (cache, precision): (Format, Precision),
    rows: &[Row],
    positions: &[usize],
) -> Result<Vec<Vec<f32>>, Diagnostic> {
    let context = check_rows(graph, rows)?;
    let run = Run { graph, weights, precision, cache, context, statistics: None };
    let cross_layer = &mut CrossLayer::default();
    let stream = run.layers(rows, cross_layer)?;
    // Rows depend on each other only through states: without any, only rows `positions` are computed in the
    // epilogue.
    let is_alone = graph.epilogue.states.is_empty();
    let kept: Vec<usize> = if is_alone { positions.to_vec() } else { (0..rows.len()).collect() };
    let some: Vec<Row> = kept.iter().map(|row| rows[*row]).collect();
    let data = kept.iter().flat_map(|row| stream.row(*row)).copied().collect();
    let logits = run.apply(&graph.epilogue, &some, Values { width: stream.width, data }, cross_layer)?;
    let place = |(index, row): (usize, &usize)| if is_alone { index } else { *row };
    Ok(positions.iter().enumerate().map(place).map(|row| logits.row(row).to_vec()).collect())
}

/// Adds the inputs of all matrices for these rows to activation statistics. The output head is not evaluated.
pub(crate) fn collect(
    graph: &Graph,
    weights: &dyn WeightRows,
    rows: &[Row],
    statistics: &mut ImportanceMatrix,
) -> Result<(), Diagnostic> {
    let context = check_rows(graph, rows)?;
    let collected = RefCell::new(std::mem::take(statistics));
    let precision = Precision::F32;
    let run = Run { graph, weights, precision, cache: Format::F32, context, statistics: Some(&collected) };
    let cross_layer = &mut CrossLayer::default();
    let stream = run.layers(rows, cross_layer)?;
    run.inputs_of_last_linear(&graph.epilogue, rows, stream, cross_layer)?;
    *statistics = collected.into_inner();
    Ok(())
}

/// Checks a batch and returns the context length of its longest slot.
fn check_rows(graph: &Graph, rows: &[Row]) -> Result<usize, Diagnostic> {
    let vocabulary = graph.model.vocabulary;
    if rows.is_empty() {
        return Err(Diagnostic::new("F0402", "cannot evaluate an empty sequence"));
    }
    if let Some(row) = rows.iter().find(|row| row.id as usize >= vocabulary) {
        let message = format!("token {} is outside the vocabulary of {vocabulary}", row.id);
        return Err(Diagnostic::new("F0402", message));
    }
    Ok(rows.iter().map(|row| row.position + 1).max().unwrap_or(0))
}

struct Run<'a> {
    graph: &'a Graph,
    weights: &'a dyn WeightRows,
    precision: Precision,
    /// KV cache format.
    cache: Format,
    /// Context length of every slot.
    context: usize,
    /// Activation statistics that inputs of matrices are added to.
    statistics: Option<&'a RefCell<ImportanceMatrix>>,
}

/// Values that pass between applications in addition to the residual stream.
#[derive(Default)]
struct CrossLayer {
    /// Per-layer inputs produced by the prologue.
    per_layer_inputs: Values,
    /// Keys and values that a later layer reads.
    kept: BTreeMap<StateId, [Values; 2]>,
}

impl Run<'_> {
    /// The residual stream after all layers.
    fn layers(&self, rows: &[Row], cross_layer: &mut CrossLayer) -> Result<Values, Diagnostic> {
        let mut stream = self.apply(&self.graph.prologue, rows, Values::default(), cross_layer)?;
        for layer in &self.graph.layers {
            stream = self.apply(layer, rows, stream, cross_layer)?;
        }
        Ok(stream)
    }

    /// Evaluates an application up to its last linear node, whose inputs are only recorded.
    fn inputs_of_last_linear(
        &self,
        apply: &Apply,
        rows: &[Row],
        input: Values,
        cross_layer: &mut CrossLayer,
    ) -> Result<(), Diagnostic> {
        let body = self.graph.body(apply);
        let last = body.nodes.iter().rposition(|node| matches!(node.op, Op::Linear { .. }));
        let mut values = vec![input];
        for node in &body.nodes[..last.unwrap_or(0)] {
            let inputs: Vec<&Values> = node.inputs.iter().map(|value| &values[value.0]).collect();
            let value = self.node(apply, body, node, rows, &inputs, cross_layer)?;
            values.push(value);
        }
        if let Some(Node { op: Op::Linear { weight, .. }, inputs, .. }) = last.map(|last| &body.nodes[last]) {
            self.record(bound(apply, body, *weight)?, (0, 1), values[inputs[0].0].rows());
        }
        Ok(())
    }

    /// Adds inputs of a part of a matrix to the statistics.
    fn record<'b>(&self, weight: WeightId, part: (usize, usize), inputs: impl Iterator<Item = &'b [f32]>) {
        if let Some(statistics) = self.statistics {
            statistics.borrow_mut().add(&self.graph.weights[weight.0], part, inputs);
        }
    }

    fn apply(
        &self,
        apply: &Apply,
        rows: &[Row],
        input: Values,
        cross_layer: &mut CrossLayer,
    ) -> Result<Values, Diagnostic> {
        let body = self.graph.body(apply);
        let mut values = vec![input];
        for node in &body.nodes {
            let inputs: Vec<&Values> = node.inputs.iter().map(|value| &values[value.0]).collect();
            let value = self.node(apply, body, node, rows, &inputs, cross_layer)?;
            values.push(value);
        }
        Ok(values.pop().unwrap_or_default())
    }

    fn node(
        &self,
        apply: &Apply,
        body: &Body,
        node: &Node,
        rows: &[Row],
        inputs: &[&Values],
        cross_layer: &mut CrossLayer,
    ) -> Result<Values, Diagnostic> {
        let nothing = Values::default();
        let x = inputs.first().copied().unwrap_or(&nothing);
        Ok(match &node.op {
            Op::Embed { table, scale } => {
                let table = bound(apply, body, *table)?;
                let width = self.graph.weights[table.0].columns();
                let mut data = vec![0.0; rows.len() * width];
                for (row, out) in rows.iter().zip(data.chunks_exact_mut(width.max(1))) {
                    self.weights.rows(table, row.id as usize..row.id as usize + 1, out)?;
                    out.iter_mut().for_each(|x| *x *= scale);
                }
                Values { width, data }
            }
            Op::RmsNorm { gain, parts, epsilon } => {
                let gain = gain.map(|gain| self.vector(bound(apply, body, gain)?)).transpose()?;
                rms_norm(x, *parts, gain.as_deref(), *epsilon)
            }
            Op::PositionEmbedding { table } => {
                let table = bound(apply, body, *table)?;
                let mut placed = x.clone();
                let mut place = vec![0.0; x.width];
                for (row, out) in rows.iter().zip(placed.data.chunks_exact_mut(x.width.max(1))) {
                    self.weights.rows(table, row.position..row.position + 1, &mut place)?;
                    out.iter_mut().zip(&place).for_each(|(x, place)| *x += place);
                }
                placed
            }
            Op::LayerNorm { gain, bias, epsilon } => {
                let gain = self.vector(bound(apply, body, *gain)?)?;
                let bias = bias.map(|bias| self.vector(bound(apply, body, bias)?)).transpose()?;
                layer_norm(x, &gain, bias.as_deref(), *epsilon)
            }
            Op::Linear { weight, bias } => {
                let weight = bound(apply, body, *weight)?;
                let bias = match bias {
                    Some(bias) => Some(self.vector(bound(apply, body, *bias)?)?),
                    None => None,
                };
                let outputs = self.graph.weights[weight.0].rows();
                self.record(weight, (0, 1), x.rows());
                linear((self.weights, self.precision), weight, 0..outputs, bias.as_deref(), x)?
            }
            Op::Rope { width, rope, .. } => apply_rope(x, rows, self.context, *width, rope),
            Op::Activate(activation) => x.map(|x| activate(*activation, f64::from(x)) as f32),
            Op::Softcap(cap) => x.map(|x| capped(f64::from(x), *cap) as f32),
            Op::Scale(factor) => x.map(|x| factor * x),
            Op::ScaleBy { factor } => {
                let factor = self.vector(bound(apply, body, *factor)?)?;
                x.map(|x| factor[0] * x)
            }
            Op::Multiply if inputs[1].width != x.width => x.times(inputs[1]),
            Op::Multiply => x.zip(inputs[1], |a, b| a * b),
            Op::Add => x.zip(inputs[1], |a, b| a + b),
            Op::StorePerLayerInputs => {
                cross_layer.per_layer_inputs = inputs[1].clone();
                x.clone()
            }
            Op::PerLayerInput { part } => {
                let Some(ParamKind::Part(width)) = body.params.get(part.0).map(|param| &param.kind) else {
                    return Err(unbound(body, *part));
                };
                let first = apply.part(body, *part).ok_or_else(|| unbound(body, *part))?;
                let columns = |row: &[f32]| row[first..first + width].to_vec();
                Values {
                    width: *width,
                    data: cross_layer.per_layer_inputs.rows().flat_map(columns).collect(),
                }
            }
            Op::Attention { query_heads, scale, cache, window, softcap, sinks } => {
                let (Some(state), Some(id)) = (body.cache(*cache), apply.state(body, *cache)) else {
                    return Err(unbound(body, *cache));
                };
                let sinks = sinks.map(|sinks| self.vector(bound(apply, body, sinks)?)).transpose()?;
                let heads = Heads {
                    queries: *query_heads,
                    keys: state.heads,
                    width: state.width,
                    scale: *scale,
                    window: window.unwrap_or(usize::MAX),
                    softcap: *softcap,
                    sinks,
                };
                if let [_, keys, values] = inputs {
                    let both = [keys, values].map(|x| round_to_cache_format(x, self.cache).into_owned());
                    cross_layer.kept.insert(id, both);
                }
                let [keys, values] = cross_layer.kept.get(&id).ok_or_else(|| unbound(body, *cache))?;
                let heads = attention(&heads, rows, [x, keys, values]);
                if self.last_use(id) == Some(apply) {
                    cross_layer.kept.remove(&id);
                }
                heads
            }
            Op::PerHeadLinear { weight, heads, transposed } => {
                let weight = bound(apply, body, *weight)?;
                let of = &self.graph.weights[weight.0];
                let of = [of.rows(), of.columns()];
                // A transposed matrix has its inputs along rows, where quantization groups are not.
                for head in (0..*heads).filter(|_| !transposed) {
                    let columns = head * of[1]..(head + 1) * of[1];
                    self.record(weight, (head, *heads), x.rows().map(|row| &row[columns.clone()]));
                }
                mla::per_head_linear(self.weights, weight, of, (*heads, *transposed), x)?
            }
            Op::LatentAttention { heads, scale, cache } => {
                let latents = body.latents(*cache).ok_or_else(|| unbound(body, *cache))?;
                mla::attention(latents, (*heads, *scale), rows, inputs)
            }
            Op::Convolve { taps, conv_state } => {
                let conv_state = body.conv_state(*conv_state).ok_or_else(|| unbound(body, *conv_state))?;
                convolve(x, rows, &self.vector(bound(apply, body, *taps)?)?, conv_state.rows + 1)
            }
            Op::DeltaRule { a_log, dt_bias, scale, epsilon, recurrent_state } => {
                let recurrent_state =
                    body.recurrent_state(*recurrent_state).ok_or_else(|| unbound(body, *recurrent_state))?;
                let [a_log, dt_bias] =
                    [*a_log, *dt_bias].map(|param| self.vector(bound(apply, body, param)?));
                let decay = decay(inputs[3], &a_log?, &dt_bias?);
                let inputs = [x, inputs[1], inputs[2], &decay, inputs[4]];
                delta_rule(recurrent_state, [*scale, *epsilon], rows, inputs)
            }
            Op::Route(routing) => {
                let vector = |param: Option<ParamId>| -> Result<Option<Vec<f32>>, Diagnostic> {
                    param.map(|param| self.vector(bound(apply, body, param)?)).transpose()
                };
                let (correction, scale) = (vector(routing.correction)?, vector(routing.scale)?);
                let vectors = Vectors { correction: correction.as_deref(), scale: scale.as_deref() };
                route(x, routing, vectors)
            }
            Op::Experts(of) => {
                let [gate, up, down] = [of.gate, of.up, of.down].map(|param| bound(apply, body, param));
                let (gate, up, down) = (gate?, up?, down?);
                let each = |weight: WeightId| self.graph.weights[weight.0].rows() / inputs[1].width.max(1);
                let biases = match of.biases.map(|biases| biases.map(|bias| bound(apply, body, bias))) {
                    None => None,
                    Some([gate, up, down]) => {
                        Some([self.vector(gate?)?, self.vector(up?)?, self.vector(down?)?])
                    }
                };
                let (inner, width) = (each(gate), each(down));
                let stacks = Stacks { gate, up, down, biases: biases.as_ref(), inner, width };
                let count = inputs[1].width;
                let record = |weight, expert, x: &Values| self.record(weight, (expert, count), x.rows());
                let gated = |gate, up| gated(of.gating, gate, up);
                experts((self.weights, self.precision), stacks, gated, record, [x, inputs[1]])?
            }
        })
    }

    /// The last application bound to a state.
    fn last_use(&self, state: StateId) -> Option<&Apply> {
        self.graph.applications().filter(|apply| apply.states.contains(&state)).last()
    }

    fn vector(&self, weight: WeightId) -> Result<Vec<f32>, Diagnostic> {
        let mut out = vec![0.0; self.graph.weights[weight.0].columns()];
        self.weights.rows(weight, 0..1, &mut out)?;
        Ok(out)
    }
}

fn bound(apply: &Apply, body: &Body, param: ParamId) -> Result<WeightId, Diagnostic> {
    apply.weight(body, param).ok_or_else(|| unbound(body, param))
}

/// Unreachable: a validated graph binds every parameter.
fn unbound(body: &Body, param: ParamId) -> Diagnostic {
    Diagnostic::new("F0402", format!("parameter {} of {} is not bound", param.0, body.name))
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x * normal_cdf(x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// Combines a gate and its up. NaN stays NaN.
fn gated(gating: Gating, gate: f64, up: f64) -> f64 {
    match gating {
        Gating::Plain(activation) => activate(activation, gate) * up,
        Gating::Clamped { limit, sharpness } => {
            let (limit, sharpness) = (f64::from(limit), f64::from(sharpness));
            let gate = if gate > limit { limit } else { gate };
            let up = if up.is_nan() { up } else { up.clamp(-limit, limit) };
            gate * activate(Activation::Sigmoid, sharpness * gate) * (up + 1.0)
        }
    }
}

/// The normal distribution function at x.
fn normal_cdf(x: f64) -> f64 {
    if x < -3.0 {
        // A continued fraction, because the series cancels in the tail.
        let fraction = (1..=60).rev().fold(-x, |rest, term| -x + f64::from(term) / rest);
        return (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() / fraction;
    }
    if x > 3.0 {
        return 1.0 - normal_cdf(-x);
    }
    // x + x³ / 3 + x⁵ / (3 · 5) + ..., times the density.
    let (mut term, mut sum) = (x, x);
    for odd in (3..120).step_by(2) {
        term *= x * x / f64::from(odd);
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// RMSNorm of each of the equal parts of a row.
fn rms_norm(x: &Values, parts: usize, gain: Option<&[f32]>, epsilon: f32) -> Values {
    let norm = |part: &[f32]| -> Vec<f32> {
        let squares: f64 = part.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let scale = (squares / part.len() as f64 + f64::from(epsilon)).sqrt().recip();
        let gain = |index: usize| gain.map_or(1.0, |gain| f64::from(gain[index]));
        part.iter().enumerate().map(|(index, x)| (f64::from(*x) * scale * gain(index)) as f32).collect()
    };
    let width = (x.width / parts).max(1);
    Values { width: x.width, data: x.data.chunks_exact(width).flat_map(norm).collect() }
}

/// LayerNorm of every row.
fn layer_norm(x: &Values, gain: &[f32], bias: Option<&[f32]>, epsilon: f32) -> Values {
    let norm = |row: &[f32]| -> Vec<f32> {
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / row.len() as f64;
        let squares: f64 = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
        let scale = (squares / row.len() as f64 + f64::from(epsilon)).sqrt().recip();
        let one = |(index, x): (usize, &f32)| {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[index]));
            ((f64::from(*x) - mean) * scale * f64::from(gain[index]) + bias) as f32
        };
        row.iter().enumerate().map(one).collect()
    };
    Values { width: x.width, data: x.rows().flat_map(norm).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_match_their_definitions() {
        let near = |activation, x: f64, y: f64| {
            let found = activate(activation, x);
            assert!((found - y).abs() < 1e-6, "{activation:?} of {x} is {found}");
        };
        for (x, silu, gelu) in [
            (0.0, 0.0, 0.0),
            (1.0, 0.731_058_6, 0.841_192),
            (-1.0, -0.268_941_4, -0.158_808),
            (3.0, 2.857_722_4, 2.996_362_7),
            (-50.0, 0.0, 0.0),
            (50.0, 50.0, 50.0),
        ] {
            near(Activation::Silu, x, silu);
            near(Activation::GeluTanh, x, gelu);
        }
        // Values from tables of the normal distribution.
        for (x, cdf) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_543),
            (-1.0, 0.158_655_253_931_457),
            (-3.0, 0.001_349_898_031_630_1),
            (3.5, 0.999_767_370_920_965),
            (-6.0, 9.865_876_450_377e-10),
        ] {
            let found = normal_cdf(x);
            assert!((found - cdf).abs() < 1e-9 * cdf, "{x}: {found}");
            near(Activation::Gelu, x, x * cdf);
        }
        // The series and the continued fraction agree where they meet.
        let (sum, fraction) = (normal_cdf(-3.0), normal_cdf(-3.0 - 1e-12));
        assert!((sum - fraction).abs() < 1e-10 * sum, "{sum} {fraction}");
        near(Activation::Relu, 2.5, 2.5);
        near(Activation::Relu, -2.5, 0.0);
        near(Activation::ReluSquared, 2.5, 6.25);
        near(Activation::ReluSquared, -2.5, 0.0);
        near(Activation::Sigmoid, 0.0, 0.5);
        near(Activation::Sigmoid, -1.0, 0.268_941_4);
        near(Activation::Sigmoid, 800.0, 1.0);
        near(Activation::Sigmoid, -800.0, 0.0);
    }

    #[test]
    fn clamps_gate_and_up() {
        let clamped = |gate, up| gated(Gating::Clamped { limit: 2.0, sharpness: 1.5 }, gate, up);
        let open = |gate: f64| gate / (1.0 + (-1.5 * gate).exp());
        for (gate, up, expected) in [
            (1.0, 0.5, 1.5 * open(1.0)),
            (3.0, 0.5, 1.5 * open(2.0)),
            (-3.0, 0.5, 1.5 * open(-3.0)),
            (1.0, 9.0, 3.0 * open(1.0)),
            (1.0, -9.0, -open(1.0)),
        ] {
            assert!((clamped(gate, up) - expected).abs() < 1e-12, "{gate} {up}: {}", clamped(gate, up));
        }
        assert!(clamped(f64::NAN, 1.0).is_nan() && clamped(1.0, f64::NAN).is_nan());
        assert_eq!(gated(Gating::Plain(Activation::Relu), 3.0, -2.0), -6.0);
    }

    #[test]
    fn layer_norm_subtracts_the_mean() {
        let x = Values { width: 4, data: vec![1., 2., 3., 6., 5., 5., 5., 5.] };
        let scale = 1.0 / (3.5_f64 + 0.25).sqrt();
        let first = [-2., -1., 0., 3.].map(|d| d * scale);
        let norm = |bias| layer_norm(&x, &[1., 2., 3., -1.], bias, 0.25).data;
        let gained = [first[0], 2. * first[1], 0., -first[3]].map(|x| x as f32);
        assert_eq!(norm(None), [gained, [0.; 4]].concat());
        let bias = [0.5, 0., -1., 2.];
        let biased = [first[0] + 0.5, 2. * first[1], -1., 2. - first[3]].map(|x| x as f32);
        assert_eq!(norm(Some(&bias)), [biased, bias].concat());
    }

    #[test]
    fn rms_norm_normalizes_each_part_separately() {
        let x = Values { width: 4, data: vec![1., 2., 3., 4., -1., 0., 0., 0.] };
        let norm = |parts: usize| {
            let gain: Vec<f32> = (1..=4 / parts).map(|gain| gain as f32).collect();
            rms_norm(&x, parts, Some(&gain), 0.5).data
        };
        let by = |x: f64, squares: f64, width: f64| (x / (squares / width + 0.5).sqrt()) as f32;
        let first = [1., 4., 9., 16.].map(|x| by(x, 30., 4.));
        assert_eq!(norm(1), [first, [by(-1., 1., 4.), 0., 0., 0.]].concat());
        let first = [by(1., 5., 2.), by(4., 5., 2.), by(3., 25., 2.), by(8., 25., 2.)];
        assert_eq!(norm(2), [first, [by(-1., 1., 2.), 0., 0., 0.]].concat());
        let first = [1., 2., 3., 4.].map(|x| by(x, x * x, 1.));
        assert_eq!(norm(4), [first, [by(-1., 1., 1.), 0., 0., 0.]].concat());
        assert_eq!(rms_norm(&x, 4, None, 0.5).data, norm(4), "a gain of 1 is none");
    }
}
