//! What memories say to queries when they have learnt keys and values. Scalars: rows. Buffers: query, key, value, time,
//! strength, rate, bias, slots, positions, memory, heads; with gates: convolved, inputs, rate, bias, gain, slots, positions, memory,
//! heads.
//!
//! `memory` is `[slot, value head, value channel, key channel]`. A row at position 0 finds zeros, whatever it holds. `convolved` has
//! queries, keys and values side by side; `inputs` what they were made of, then gates, strengths and times.

use super::call::Call;
use super::finish::{Activation, Each};
use super::level::Task;
use super::rotation::inverse_rms;
use super::simd::Simd;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule {
    /// Query heads, and key heads.
    pub key_heads: usize,
    /// Value heads.
    pub heads: usize,
    /// Channels of a query or a key.
    pub keys: usize,
    /// Channels of a value.
    pub values: usize,
    /// Multiplies what a memory says.
    pub scale: f32,
    /// Added to the sum of squares of a query or key.
    pub epsilon: f32,
    /// Where there are gates: added to the mean of squares of a head.
    pub gated: Option<f32>,
}

/// What one row brings to one memory.
pub(super) struct Brought<'a> {
    pub(super) query: &'a [f32],
    pub(super) key: &'a [f32],
    pub(super) value: &'a [f32],
    /// Of what the memory held, what is left.
    pub(super) decay: f32,
    /// How strongly it learns.
    pub(super) strength: f32,
}

impl DeltaRule {
    /// Channels of queries, keys and values together.
    pub(super) fn channels(&self) -> usize {
        2 * self.key_heads * self.keys + self.heads * self.values
    }

    /// Numbers of a row of inputs.
    pub(super) fn inputs(&self) -> usize {
        self.channels() + self.heads * (self.values + 2)
    }

    /// Where a head's query, key and value begin in a row of channels.
    pub(super) fn begins(&self, head: usize) -> [usize; 3] {
        let key = head / (self.heads / self.key_heads) * self.keys;
        let keys = self.key_heads * self.keys;
        [key, keys + key, 2 * keys + head * self.values]
    }

    /// The memory learns, and says what it knows of the query.
    #[inline(always)]
    pub(super) fn learn(&self, brought: &Brought<'_>, memory: &mut [f32], said: &mut [f32]) {
        let Brought { query, key, value, decay, strength } = *brought;
        let length = |x| (dot(x, x) + self.epsilon).sqrt().recip();
        let (query_scale, key_scale) = (self.scale * length(query), length(key));
        let likeness = dot(query, key);
        for ((said, value), column) in said.iter_mut().zip(value).zip(memory.chunks_exact_mut(self.keys)) {
            let unknown = value - decay * dot(column, key) * key_scale;
            let learnt = strength * unknown * key_scale;
            *said = query_scale * (decay * dot(column, query) + learnt * likeness);
            for (s, k) in column.iter_mut().zip(key) {
                *s = decay * *s + learnt * k;
            }
        }
    }

    /// Of what a head says, normed, what its gate lets through.
    #[inline(always)]
    pub(super) fn let_through<S: Simd>(&self, said: &mut [f32], gain: &[f32], gates: &[f32]) {
        let mut open = [0.0_f32; MOST_VALUES];
        let open = &mut open[..gates.len()];
        open.copy_from_slice(gates);
        // SAFETY: numbers of our own.
        let scale = unsafe {
            Each::Activate(Activation::Silu).apply::<S>(open);
            inverse_rms::<S>(said, self.gated.unwrap_or(0.0))
        };
        for ((said, gain), open) in said.iter_mut().zip(gain).zip(open) {
            *said *= scale * gain * *open;
        }
    }
}

/// Channels of a value, at most: the compiler refuses more.
pub(super) const MOST_VALUES: usize = 256;

/// What is left of a memory after a time.
pub(super) fn decay(rate: f32, time: f32) -> f32 {
    (-rate.exp() * softplus(time)).exp()
}

/// How strongly a memory learns.
pub(super) fn sigmoid(x: f32) -> f32 {
    (1.0 + (-x).exp()).recip()
}

/// Runs this thread's share.
pub fn delta_rule(call: &Call<'_>, shape: &DeltaRule) {
    call.level().run(Rule { call, shape });
}

struct Rule<'a> {
    call: &'a Call<'a>,
    shape: &'a DeltaRule,
}

impl Task for Rule<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaRule { heads, keys, values, .. } = *self.shape;
        let (call, rows) = (self.call, self.call.scalar(0));
        let [rate, bias] = ["rate", "bias"].map(|name| call.input::<f32>(name, heads));
        let gain = self.shape.gated.map(|_| call.input::<f32>("gain", values));
        let rows_brought = Rows::of(call, self.shape, rows);
        let [slots, positions] = ["slots", "positions"].map(|name| call.input::<u32>(name, rows));
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let memory = call.output::<f32>("memory", last * heads * values * keys);
        let said = call.output::<f32>("heads", rows * heads * values);
        for head in call.share(heads, 1).flatten() {
            for row in 0..rows {
                let of_head = row * heads + head;
                // SAFETY: this thread alone has this head.
                let said = unsafe { said.part(of_head * values..(of_head + 1) * values) };
                let start = (slots[row] as usize * heads + head) * values * keys;
                // SAFETY: as above.
                let memory = unsafe { memory.part(start..start + values * keys) };
                if positions[row] == 0 {
                    memory.fill(0.0);
                }
                let (brought, gates) = rows_brought.of_head(self.shape, row, head, [rate[head], bias[head]]);
                self.shape.learn(&brought, memory, said);
                if let Some(gain) = gain {
                    self.shape.let_through::<S>(said, gain, gates);
                }
            }
        }
    }
}

/// Where rows' queries, keys, values, gates, strengths and times are.
enum Rows<'a> {
    Apart { query: &'a [f32], key: &'a [f32], value: &'a [f32], time: &'a [f32], strength: &'a [f32] },
    Gated { convolved: &'a [f32], inputs: &'a [f32] },
}

impl<'a> Rows<'a> {
    fn of(call: &Call<'a>, shape: &DeltaRule, rows: usize) -> Rows<'a> {
        let input = |name, width| call.input::<f32>(name, rows * width);
        let DeltaRule { key_heads, heads, keys, values, .. } = *shape;
        match shape.gated {
            Some(_) => Rows::Gated {
                convolved: input("convolved", shape.channels()),
                inputs: input("inputs", shape.inputs()),
            },
            None => Rows::Apart {
                query: input("query", key_heads * keys),
                key: input("key", key_heads * keys),
                value: input("value", heads * values),
                time: input("time", heads),
                strength: input("strength", heads),
            },
        }
    }

    /// What a row brings to a head, and its gates if there are any.
    fn of_head(
        &self,
        shape: &DeltaRule,
        row: usize,
        head: usize,
        [rate, bias]: [f32; 2],
    ) -> (Brought<'a>, &'a [f32]) {
        let DeltaRule { key_heads, heads, keys, values, .. } = *shape;
        let [of_query, of_key, of_value] = shape.begins(head);
        match *self {
            Rows::Apart { query, key, value, time, strength } => {
                let of_query = row * key_heads * keys + of_query;
                let of_head = row * heads + head;
                let brought = Brought {
                    query: &query[of_query..of_query + keys],
                    key: &key[of_query..of_query + keys],
                    value: &value[of_head * values..(of_head + 1) * values],
                    decay: decay(rate, time[of_head] + bias),
                    strength: strength[of_head],
                };
                (brought, &[])
            }
            Rows::Gated { convolved, inputs } => {
                let convolved = &convolved[row * shape.channels()..(row + 1) * shape.channels()];
                let inputs = &inputs[row * shape.inputs()..(row + 1) * shape.inputs()];
                let after = &inputs[shape.channels()..];
                let brought = Brought {
                    query: &convolved[of_query..of_query + keys],
                    key: &convolved[of_key..of_key + keys],
                    value: &convolved[of_value..of_value + values],
                    decay: decay(rate, after[heads * (values + 1) + head] + bias),
                    strength: sigmoid(after[heads * values + head]),
                };
                (brought, &after[head * values..(head + 1) * values])
            }
        }
    }
}

/// The sum of products: of eight lanes, and then of these.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum::<f32>();
    for (a, b) in left.zip(right) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// ln(1 + exp(x)), also where exp(x) is more than a float holds.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
