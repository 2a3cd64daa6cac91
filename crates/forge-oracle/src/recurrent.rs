//! Causal convolutions and delta rules: outputs, and the state of each slot.

use crate::batch::Batch;
use crate::compare::{Expected, sum, to_f64};
use crate::elementwise::{activated, sigmoid, silu};
use crate::norm::normed;
use crate::random::Random;
use forge_ops::{Activation, CausalConv, DeltaRule, DeltaStep, GatedRmsNorm};

/// Slots of a state.
pub const SLOTS: usize = 2;

/// Rows of two slots: one continues at position 5, is interrupted by one that starts, and continues; the other
/// continues for long.
pub fn rows() -> Batch {
    let mut rows = vec![(1, 5), (1, 6), (0, 0), (0, 1), (0, 2), (1, 7), (0, 3)];
    rows.extend((4..24).map(|position| (0, position)));
    Batch::of(&rows)
}

/// Rows for [`DeltaStep`]: one slot continues, the other starts.
pub fn step_rows() -> [Batch; 2] {
    [Batch::of(&[(1, 5), (0, 0)]), Batch::of(&[(0, 2), (1, 300)])]
}

/// [`CausalConv`] of rows, which also updates the state.
pub fn convolve(op: &CausalConv, x: &[f32], taps: &[f32], batch: &Batch, state: &mut [f64]) -> Vec<Expected> {
    let mut y = Vec::new();
    for ((slot, position), row) in batch.iter().zip(x.chunks_exact(op.pitch)) {
        let (slot, position) = (slot as usize, position as usize);
        for channel in 0..op.width {
            let place = |position: usize| (slot * op.taps + position % op.taps) * op.width + channel;
            state[place(position)] = f64::from(row[channel]);
            let term = |back: usize| {
                let tap = taps[(channel + 1) * op.taps - 1 - back];
                let term = state[place(position - back)] * f64::from(tap);
                (term, term.abs())
            };
            let (v, magnitude) = (0..op.taps.min(position + 1)).map(term).fold((0.0, 0.0), sum);
            y.push((op.activation.map_or(v, |activation| activated(activation, v)), magnitude));
        }
    }
    y
}

/// Queries, keys and values of rows, with the step and the beta of each head.
pub struct DeltaInputs {
    /// `[row, key head, key channel]`
    pub query: Vec<f64>,
    /// `[row, key head, key channel]`
    pub key: Vec<f64>,
    /// `[row, value head, value channel]`
    pub value: Vec<f64>,
    /// `[row, value head]`
    pub dt: Vec<f64>,
    /// `[row, value head]`
    pub beta: Vec<f64>,
}

impl DeltaInputs {
    /// Query, key, value, dt and beta.
    pub fn of(inputs: &[Vec<f32>; 5]) -> DeltaInputs {
        let [query, key, value, dt, beta] = inputs.each_ref().map(|numbers| to_f64(numbers));
        DeltaInputs { query, key, value, dt, beta }
    }
}

/// [`DeltaRule`] of rows without gates, which also updates the state.
pub fn delta_rule(
    op: &DeltaRule,
    inputs: &DeltaInputs,
    [a_log, dt_bias]: [&[f32]; 2],
    batch: &Batch,
    state: &mut [f64],
) -> Vec<f64> {
    let DeltaRule { key_heads, heads, keys, values, scale, epsilon, .. } = *op;
    let mut output = Vec::new();
    for (row, (slot, position)) in batch.iter().enumerate() {
        for head in 0..heads {
            let unit = |x: &[f64]| -> Vec<f64> {
                let part = &x[(row * key_heads + head / (heads / key_heads)) * keys..][..keys];
                let length = (part.iter().map(|x| x * x).sum::<f64>() + f64::from(epsilon)).sqrt();
                part.iter().map(|x| x / length).collect()
            };
            let (q, k, of_head) = (unit(&inputs.query), unit(&inputs.key), row * heads + head);
            let softplus = (inputs.dt[of_head] + f64::from(dt_bias[head])).exp().ln_1p();
            let decay = (-f64::from(a_log[head]).exp() * softplus).exp();
            let kept = if position == 0 { 0.0 } else { decay };
            let columns = &mut state[(slot as usize * heads + head) * values * keys..][..values * keys];
            for (column, v) in columns.chunks_exact_mut(keys).zip(&inputs.value[of_head * values..]) {
                let dot = |column: &[f64], by: &[f64]| column.iter().zip(by).map(|(s, x)| s * x).sum::<f64>();
                column.iter_mut().for_each(|s| *s *= kept);
                let update = inputs.beta[of_head] * (v - dot(column, &k));
                column.iter_mut().zip(&k).for_each(|(s, k)| *s += update * k);
                output.push(f64::from(scale) * dot(column, &q));
            }
        }
    }
    output
}

/// Random parameters of a Gated DeltaNet layer, and its rows with the states before them.
pub struct DeltaLayer {
    /// The delta rule of one row, including the convolutions.
    pub step: DeltaStep,
    /// Rows.
    pub batch: Batch,
    /// Rows of inputs: queries, keys, values, gates, beta logits and dt.
    pub inputs: Vec<f32>,
    /// Taps of the convolution.
    pub taps: Vec<f32>,
    /// Logarithms of the decay rates.
    pub a_log: Vec<f32>,
    /// Added to the steps.
    pub dt_bias: Vec<f32>,
    /// Gain of the gated norm.
    pub gain: Vec<f32>,
    /// The conv state before the rows.
    pub conv_state: Vec<f32>,
    /// The recurrent state before the rows.
    pub recurrent_state: Vec<f32>,
}

/// What a layer computes.
pub struct DeltaResults {
    /// The conv state after the rows.
    pub conv_state: Vec<f64>,
    /// The recurrent state after the rows.
    pub recurrent_state: Vec<f64>,
    /// Rows after the convolution.
    pub convolved: Vec<f64>,
    /// Normalized and gated heads.
    pub heads: Vec<f64>,
}

impl DeltaLayer {
    /// A layer with random parameters and rows.
    pub fn random(random: &mut Random, step: DeltaStep, batch: Batch) -> DeltaLayer {
        let rule = &step.rule;
        DeltaLayer {
            inputs: random.floats(batch.rows() * rule.inputs()),
            taps: random.floats(rule.channels() * step.taps),
            a_log: random.floats(rule.heads),
            dt_bias: random.floats(rule.heads),
            gain: random.floats(rule.values),
            conv_state: random.floats(SLOTS * step.taps * rule.channels()),
            recurrent_state: random.floats(SLOTS * rule.heads * rule.values * rule.keys),
            step,
            batch,
        }
    }

    /// The convolution of its queries, keys and values.
    pub fn convolution(&self) -> CausalConv {
        let DeltaStep { rule, taps } = &self.step;
        let (width, pitch) = (rule.channels(), rule.inputs());
        CausalConv { width, taps: *taps, pitch, activation: Some(Activation::Silu) }
    }

    /// The norm of its heads.
    pub fn gated_norm(&self) -> GatedRmsNorm {
        let rule = &self.step.rule;
        let (heads, values, pitch, first) = (rule.heads, rule.values, rule.inputs(), rule.channels());
        GatedRmsNorm { heads, values, pitch, first, epsilon: rule.gated.unwrap_or(0.0) }
    }

    /// The expected results: convolution, delta rule, and gated norm.
    pub fn results(&self) -> DeltaResults {
        let rule = &self.step.rule;
        let DeltaRule { key_heads, heads, keys, values, .. } = *rule;
        let mut conv_state = to_f64(&self.conv_state);
        let convolved = convolve(&self.convolution(), &self.inputs, &self.taps, &self.batch, &mut conv_state);
        let convolved: Vec<f64> = convolved.into_iter().map(|(value, _)| value).collect();
        let inputs = to_f64(&self.inputs);
        let part = |rows: &[f64], pitch: usize, first: usize, count: usize| -> Vec<f64> {
            rows.chunks_exact(pitch).flat_map(|row| row[first..first + count].to_vec()).collect()
        };
        let of_convolved = |first, count| part(&convolved, rule.channels(), first, count);
        let of_inputs = |first, count| part(&inputs, rule.inputs(), rule.channels() + first, count);
        let given = DeltaInputs {
            query: of_convolved(0, key_heads * keys),
            key: of_convolved(key_heads * keys, key_heads * keys),
            value: of_convolved(2 * key_heads * keys, heads * values),
            beta: of_inputs(heads * values, heads).into_iter().map(sigmoid).collect(),
            dt: of_inputs(heads * (values + 1), heads),
        };
        let mut recurrent_state = to_f64(&self.recurrent_state);
        let parameters = [&self.a_log[..], &self.dt_bias];
        let own = delta_rule(rule, &given, parameters, &self.batch, &mut recurrent_state);
        let gates = of_inputs(0, heads * values);
        let norm = |head| normed(head, Some(&self.gain), rule.gated.unwrap_or(0.0));
        let heads = own.chunks_exact(values).flat_map(norm).zip(gates);
        let heads = heads.map(|(head, gate)| head * silu(gate)).collect();
        DeltaResults { conv_state, recurrent_state, convolved, heads }
    }
}

/// Random rows of a rule without gates: from full decay to none, with steps from -200 to 200.
pub fn delta_inputs(random: &mut Random, op: &DeltaRule, rows: usize) -> [Vec<f32>; 5] {
    let [query, key] = [0; 2].map(|_| random.floats(rows * op.key_heads * op.keys));
    let value = random.floats(rows * op.heads * op.values);
    let dt = random.floats(rows * op.heads).iter().map(|x| 200.0 * x * x * x).collect();
    [query, key, value, dt, random.magnitudes(rows * op.heads)]
}

/// Convolutions without activation.
pub fn convolutions() -> [CausalConv; 4] {
    [(300, 4), (1, 2), (32, 2), (50, 5)].map(|(width, taps)| CausalConv {
        width,
        taps,
        pitch: width,
        activation: None,
    })
}

/// Rules without gates: with and without shared key heads, at sizes that are and are not multiples of a
/// vector's.
pub fn delta_rules() -> [DeltaRule; 5] {
    [(2, 4, 10, 6), (1, 1, 16, 8), (3, 3, 128, 32), (1, 3, 7, 11), (2, 2, 20, 16)].map(rule)
}

/// Gated rules with their convolution, at such sizes.
pub fn delta_steps() -> [DeltaStep; 5] {
    let gated = |size| DeltaRule { gated: Some(1e-5), ..rule(size) };
    [(2, 4, 10, 6), (1, 1, 16, 8), (2, 2, 128, 32), (1, 3, 7, 11), (1, 2, 12, 3)]
        .map(|size| DeltaStep { rule: gated(size), taps: 4 })
}

fn rule((key_heads, heads, keys, values): (usize, usize, usize, usize)) -> DeltaRule {
    DeltaRule { key_heads, heads, keys, values, scale: 0.25, epsilon: 1e-6, gated: None }
}
