//! A Gated DeltaNet mixer without its projections, in plain f64: the expected result of its kernels.

/// Sizes and constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) key_heads: usize,
    pub(crate) heads: usize,
    pub(crate) keys: usize,
    pub(crate) values: usize,
    pub(crate) taps: usize,
    pub(crate) scale: f32,
    pub(crate) epsilon: f32,
    pub(crate) norm_epsilon: f32,
}

impl Shape {
    /// Channels of queries, keys and values.
    pub(crate) fn channels(&self) -> usize {
        2 * self.key_heads * self.keys + self.heads * self.values
    }

    /// Width of a row of inputs: queries, keys, values, gates, beta and dt.
    pub(crate) fn inputs(&self) -> usize {
        self.channels() + self.heads * (self.values + 2)
    }

    /// Elements of a slot's recurrent state.
    pub(crate) fn recurrent_state(&self) -> usize {
        self.heads * self.values * self.keys
    }
}

/// Parameters of all rows.
pub(crate) struct Weights {
    pub(crate) taps: Vec<f32>,
    pub(crate) a_log: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
    pub(crate) gain: Vec<f32>,
}

/// The convolution of a row, which also updates the slot's conv state.
pub(crate) fn convolve(
    shape: &Shape,
    taps: &[f32],
    row: &[f32],
    conv_state: &mut [f64],
    position: usize,
) -> Vec<f64> {
    let (count, width) = (shape.taps, shape.channels());
    (0..width)
        .map(|channel| {
            let place = |position: usize| position % count * width + channel;
            conv_state[place(position)] = f64::from(row[channel]);
            let term = |back: usize| {
                conv_state[place(position - back)] * f64::from(taps[(channel + 1) * count - 1 - back])
            };
            silu((0..count.min(position + 1)).map(term).sum())
        })
        .collect()
}

/// The normalized and gated output of each head for a convolved row, which also updates the slot's recurrent
/// state.
pub(crate) fn update_state(
    shape: &Shape,
    weights: &Weights,
    [convolved, row]: [&[f64]; 2],
    recurrent_state: &mut [f64],
    position: usize,
) -> Vec<f64> {
    let Shape { key_heads, heads, keys, values, .. } = *shape;
    let after = &row[shape.channels()..];
    let mut output = Vec::new();
    for head in 0..heads {
        let key = head / (heads / key_heads);
        let unit = |part: &[f64]| -> Vec<f64> {
            let length = (part.iter().map(|x| x * x).sum::<f64>() + f64::from(shape.epsilon)).sqrt();
            part.iter().map(|x| x / length).collect()
        };
        let q = unit(&convolved[key * keys..][..keys]);
        let k = unit(&convolved[(key_heads + key) * keys..][..keys]);
        let v = &convolved[2 * key_heads * keys + head * values..][..values];
        let softplus = (after[heads * (values + 1) + head] + f64::from(weights.dt_bias[head])).exp().ln_1p();
        let decay = (-f64::from(weights.a_log[head]).exp() * softplus).exp();
        let beta = 1.0 / (1.0 + (-after[heads * values + head]).exp());
        let dot = |column: &[f64], by: &[f64]| column.iter().zip(by).map(|(s, x)| s * x).sum::<f64>();
        let mut own = Vec::new();
        for (column, v) in recurrent_state[head * values * keys..].chunks_exact_mut(keys).zip(v) {
            let kept = if position == 0 { 0.0 } else { decay };
            column.iter_mut().for_each(|s| *s *= kept);
            let update = beta * (v - dot(column, &k));
            column.iter_mut().zip(&k).for_each(|(s, k)| *s += update * k);
            own.push(f64::from(shape.scale) * dot(column, &q));
        }
        let mean = own.iter().map(|x| x * x).sum::<f64>() / values as f64;
        let scale = (mean + f64::from(shape.norm_epsilon)).sqrt().recip();
        let gates = &after[head * values..(head + 1) * values];
        output.extend(
            own.iter()
                .zip(&weights.gain)
                .zip(gates)
                .map(|((x, gain), gate)| x * scale * f64::from(*gain) * silu(*gate)),
        );
    }
    output
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
