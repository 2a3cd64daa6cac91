//! What memories say to queries when they have learnt keys and values. Scalars: rows. Buffers: query, key, value, time,
//! strength, rate, bias, slots, positions, memory, heads; with gates: convolved, inputs, rate, bias, gain, slots, positions, memory,
//! heads.
//!
//! `memory` is `[slot, value head, value channel, key channel]`. A row at position 0 finds zeros, whatever it holds. `convolved` has
//! queries, keys and values side by side; `inputs` what they were made of, then gates, strengths and times.
//!
//! Rows are taken one after the other, however many come. Products of several rows at once would take hardly fewer operations, and
//! what a row becomes would depend on the rows that it comes with.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::recurrent::delta_update::{RowUpdate, learn, make_unit};
use crate::cpu::recurrent::gated_rms_norm::open;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;

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

impl DeltaRule {
    /// Channels of queries, keys and values together.
    pub(crate) fn channels(&self) -> usize {
        2 * self.key_heads * self.keys + self.heads * self.values
    }

    /// Numbers of a row of inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.channels() + self.heads * (self.values + 2)
    }

    /// Where a head's query, key and value begin in a row of channels.
    pub(crate) fn begins(&self, head: usize) -> [usize; 3] {
        let key = head / (self.heads / self.key_heads) * self.keys;
        let keys = self.key_heads * self.keys;
        [key, keys + key, 2 * keys + head * self.values]
    }
}

/// Channels of a value, at most: the compiler refuses more.
pub(crate) const MOST_VALUES: usize = 256;

/// What is left of a memory after a time.
pub(crate) fn decay(rate: f32, time: f32) -> f32 {
    (-rate.exp() * softplus(time)).exp()
}

/// How strongly a memory learns.
pub(crate) fn sigmoid(x: f32) -> f32 {
    (1.0 + (-x).exp()).recip()
}

/// Runs this thread's share.
pub fn delta_rule(call: &KernelArgs<'_>, shape: &DeltaRule) {
    call.level().run(Rule {
        call,
        shape,
        gain: shape.gated.map(|_| call.input::<f32>("gain", shape.values)),
    });
}

/// The same, and heads are left as memories say them, for [`crate::cpu::recurrent::gated_rms_norm()`].
pub fn delta_chunks(call: &KernelArgs<'_>, shape: &DeltaRule) {
    call.level().run(Rule { call, shape, gain: None });
}

struct Rule<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a DeltaRule,
    /// Of the norm of heads, where they are normed here.
    gain: Option<&'a [f32]>,
}

/// Rows that are taken to columns together, and columns that they are taken to: their keys and queries, and what the columns hold,
/// stay in the nearest cache.
const ROWS: usize = 16;
const COLUMNS: usize = 32;

impl Task for Rule<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaRule { heads, keys, values, scale, epsilon, .. } = *self.shape;
        let (call, rows) = (self.call, self.call.scalar(0));
        let [rate, bias] = ["rate", "bias"].map(|name| call.input::<f32>(name, heads));
        let from = Rows::of(call, self.shape, rows);
        let [slots, positions] = ["slots", "positions"].map(|name| call.input::<u32>(name, rows));
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let memory = call.output::<f32>("memory", last * heads * values * keys);
        let said = call.output::<f32>("heads", rows * heads * values);
        let mut scratch = Scratch::take(ROWS * 2 * keys);
        for head in call.share(heads, 1).flatten() {
            for first in (0..rows).step_by(ROWS) {
                let together = first..rows.min(first + ROWS);
                let mut given = [Given::default(); ROWS];
                let mut likeness = [0.0; ROWS];
                for (i, (row, pair)) in together.clone().zip(scratch.chunks_exact_mut(2 * keys)).enumerate() {
                    given[i] = from.of_head(self.shape, row, head, [rate[head], bias[head]]);
                    let (query, key) = pair.split_at_mut(keys);
                    query.copy_from_slice(given[i].query);
                    key.copy_from_slice(given[i].key);
                    // SAFETY: numbers of our own.
                    likeness[i] = unsafe { make_unit::<S>(query, key, scale, epsilon) };
                }
                for column in (0..values).step_by(COLUMNS) {
                    let columns = column..values.min(column + COLUMNS);
                    for (i, (row, pair)) in together.clone().zip(scratch.chunks_exact(2 * keys)).enumerate() {
                        let start = (slots[row] as usize * heads + head) * values;
                        let of_head = (row * heads + head) * values;
                        // SAFETY: this thread alone has this head.
                        let (memory, said) = unsafe {
                            (
                                memory.part((start + columns.start) * keys..(start + columns.end) * keys),
                                said.part(of_head + columns.start..of_head + columns.end),
                            )
                        };
                        if positions[row] == 0 {
                            memory.fill(0.0);
                        }
                        let (query, key) = pair.split_at(keys);
                        let Given { value, decay, strength, .. } = given[i];
                        let brought = RowUpdate { query, key, likeness: likeness[i], decay, strength };
                        // SAFETY: as many columns as values.
                        unsafe { learn::<S>(&brought, &value[columns.clone()], memory, said) };
                    }
                }
                if let (Some(gain), Some(epsilon)) = (self.gain, self.shape.gated) {
                    for (row, given) in together.zip(&given) {
                        let of_head = (row * heads + head) * values;
                        // SAFETY: this thread alone has this head.
                        let said = unsafe { said.part(of_head..of_head + values) };
                        // SAFETY: as many gains and gates as channels.
                        unsafe { open::<S>(said, gain, given.gates, epsilon) };
                    }
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
    fn of(call: &KernelArgs<'a>, shape: &DeltaRule, rows: usize) -> Rows<'a> {
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

    /// What a row gives a head.
    #[inline(always)]
    fn of_head(&self, shape: &DeltaRule, row: usize, head: usize, [rate, bias]: [f32; 2]) -> Given<'a> {
        let DeltaRule { key_heads, heads, keys, values, .. } = *shape;
        let [of_query, of_key, of_value] = shape.begins(head);
        match *self {
            Rows::Apart { query, key, value, time, strength } => {
                let of_query = row * key_heads * keys + of_query;
                let of_head = row * heads + head;
                Given {
                    query: &query[of_query..of_query + keys],
                    key: &key[of_query..of_query + keys],
                    value: &value[of_head * values..(of_head + 1) * values],
                    decay: decay(rate, time[of_head] + bias),
                    strength: strength[of_head],
                    gates: &[],
                }
            }
            Rows::Gated { convolved, inputs } => {
                let convolved = &convolved[row * shape.channels()..(row + 1) * shape.channels()];
                let inputs = &inputs[row * shape.inputs()..(row + 1) * shape.inputs()];
                let after = &inputs[shape.channels()..];
                Given {
                    query: &convolved[of_query..of_query + keys],
                    key: &convolved[of_key..of_key + keys],
                    value: &convolved[of_value..of_value + values],
                    decay: decay(rate, after[heads * (values + 1) + head] + bias),
                    strength: sigmoid(after[heads * values + head]),
                    gates: &after[head * values..(head + 1) * values],
                }
            }
        }
    }
}

/// What a row gives a head; query and key are as long as they come.
#[derive(Clone, Copy, Default)]
struct Given<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    strength: f32,
    /// None where there are none.
    gates: &'a [f32],
}

/// ln(1 + exp(x)), also where exp(x) is more than a float holds.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
