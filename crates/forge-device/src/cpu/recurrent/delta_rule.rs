//! Gated delta rule for any number of rows: updates recurrent states with keys and values, and reads them
//! with queries. Scalars: rows. Buffers: query, key, value, dt, beta, a_log, dt_bias, slots, positions,
//! recurrent_state, heads. With gates: convolved, inputs, a_log, dt_bias, gain, slots, positions,
//! recurrent_state, heads.
//!
//! `recurrent_state` is `[slot, value head, value channel, key channel]`. A row at
//! position 0 starts from zeros, whatever it holds. `convolved` has adjacent queries, keys and values.
//! `inputs` has their inputs before the convolution, then gates, beta and dt.
//!
//! Rows are processed one after another, even in prefill. A chunked matrix form would save few operations,
//! and results would not be batch-invariant.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::recurrent::delta_update::{RowUpdate, normalize_l2, update_state};
use crate::cpu::recurrent::gated_rms_norm::open;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{DeltaChunks, DeltaRule};

/// Maximum value head dimension; the compiler rejects larger ones.
pub(crate) const MOST_VALUES: usize = 256;

/// Decay factor of the state: exp(-exp(a_log) · softplus(dt)).
pub(crate) fn decay(a_log: f32, dt: f32) -> f32 {
    (-a_log.exp() * softplus(dt)).exp()
}

/// Beta: the update factor.
pub(crate) fn sigmoid(x: f32) -> f32 {
    (1.0 + (-x).exp()).recip()
}

/// Runs this thread's part.
pub fn delta_rule(call: &KernelArgs<'_>, shape: &DeltaRule) {
    call.level().run(Rule {
        call,
        shape,
        gain: shape.gated.map(|_| call.input::<f32>("gain", shape.values)),
    });
}

/// Like [`delta_rule`], without norm and gates, which [`crate::cpu::gated_rms_norm()`] applies.
pub fn delta_chunks(call: &KernelArgs<'_>, shape: &DeltaChunks) {
    call.level().run(Rule { call, shape: &shape.rule, gain: None });
}

struct Rule<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a DeltaRule,
    /// Gain of the heads' norm, if it is applied here.
    gain: Option<&'a [f32]>,
}

/// Tile of rows and state columns: their keys, queries and state fit in L1.
const ROWS: usize = 16;
const COLUMNS: usize = 32;

impl Task for Rule<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaRule { heads, keys, values, scale, epsilon, .. } = *self.shape;
        let (call, rows) = (self.call, self.call.scalar(0));
        let [a_log, dt_bias] = ["a_log", "dt_bias"].map(|name| call.input::<f32>(name, heads));
        let from = Rows::of(call, self.shape, rows);
        let [slots, positions] = ["slots", "positions"].map(|name| call.input::<u32>(name, rows));
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let recurrent_state = call.output::<f32>("recurrent_state", last * heads * values * keys);
        let output = call.output::<f32>("heads", rows * heads * values);
        let mut scratch = Scratch::take(ROWS * 2 * keys);
        for head in call.claim(heads, 1).flatten() {
            for first in (0..rows).step_by(ROWS) {
                let together = first..rows.min(first + ROWS);
                let mut head_inputs = [HeadInputs::default(); ROWS];
                let mut likeness = [0.0; ROWS];
                for (i, (row, pair)) in together.clone().zip(scratch.chunks_exact_mut(2 * keys)).enumerate() {
                    head_inputs[i] = from.of_head(self.shape, row, head, [a_log[head], dt_bias[head]]);
                    let (query, key) = pair.split_at_mut(keys);
                    query.copy_from_slice(head_inputs[i].query);
                    key.copy_from_slice(head_inputs[i].key);
                    // SAFETY: local buffers.
                    likeness[i] = unsafe { normalize_l2::<S>(query, key, scale, epsilon) };
                }
                for column in (0..values).step_by(COLUMNS) {
                    let columns = column..values.min(column + COLUMNS);
                    for (i, (row, pair)) in together.clone().zip(scratch.chunks_exact(2 * keys)).enumerate() {
                        let start = (slots[row] as usize * heads + head) * values;
                        let of_head = (row * heads + head) * values;
                        // SAFETY: this head belongs to this thread.
                        let (recurrent_state, output) = unsafe {
                            (
                                recurrent_state
                                    .part((start + columns.start) * keys..(start + columns.end) * keys),
                                output.part(of_head + columns.start..of_head + columns.end),
                            )
                        };
                        if positions[row] == 0 {
                            recurrent_state.fill(0.0);
                        }
                        let (query, key) = pair.split_at(keys);
                        let HeadInputs { value, decay, beta, .. } = head_inputs[i];
                        let update = RowUpdate { query, key, likeness: likeness[i], decay, beta };
                        // SAFETY: the state has as many columns as values.
                        unsafe {
                            update_state::<S>(&update, &value[columns.clone()], recurrent_state, output)
                        };
                    }
                }
                if let (Some(gain), Some(epsilon)) = (self.gain, self.shape.gated) {
                    for (row, head_inputs) in together.zip(&head_inputs) {
                        let of_head = (row * heads + head) * values;
                        // SAFETY: this head belongs to this thread.
                        let output = unsafe { output.part(of_head..of_head + values) };
                        // SAFETY: gain and gates are as long as the head.
                        unsafe { open::<S>(output, gain, head_inputs.gates, epsilon) };
                    }
                }
            }
        }
    }
}

/// Source of the rows' queries, keys, values, gates, beta and dt.
enum Rows<'a> {
    Separate { query: &'a [f32], key: &'a [f32], value: &'a [f32], dt: &'a [f32], beta: &'a [f32] },
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
            None => Rows::Separate {
                query: input("query", key_heads * keys),
                key: input("key", key_heads * keys),
                value: input("value", heads * values),
                dt: input("dt", heads),
                beta: input("beta", heads),
            },
        }
    }

    /// The inputs of one head in a row.
    #[inline(always)]
    fn of_head(
        &self,
        shape: &DeltaRule,
        row: usize,
        head: usize,
        [a_log, dt_bias]: [f32; 2],
    ) -> HeadInputs<'a> {
        let DeltaRule { key_heads, heads, keys, values, .. } = *shape;
        let [of_query, of_key, of_value] = shape.head_offsets(head);
        match *self {
            Rows::Separate { query, key, value, dt, beta } => {
                let of_query = row * key_heads * keys + of_query;
                let of_head = row * heads + head;
                HeadInputs {
                    query: &query[of_query..of_query + keys],
                    key: &key[of_query..of_query + keys],
                    value: &value[of_head * values..(of_head + 1) * values],
                    decay: decay(a_log, dt[of_head] + dt_bias),
                    beta: beta[of_head],
                    gates: &[],
                }
            }
            Rows::Gated { convolved, inputs } => {
                let convolved = &convolved[row * shape.channels()..(row + 1) * shape.channels()];
                let inputs = &inputs[row * shape.inputs()..(row + 1) * shape.inputs()];
                let after = &inputs[shape.channels()..];
                HeadInputs {
                    query: &convolved[of_query..of_query + keys],
                    key: &convolved[of_key..of_key + keys],
                    value: &convolved[of_value..of_value + values],
                    decay: decay(a_log, after[heads * (values + 1) + head] + dt_bias),
                    beta: sigmoid(after[heads * values + head]),
                    gates: &after[head * values..(head + 1) * values],
                }
            }
        }
    }
}

/// Inputs of one head; query and key are not normalized.
#[derive(Clone, Copy, Default)]
struct HeadInputs<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    beta: f32,
    /// Empty without gates.
    gates: &'a [f32],
}

/// ln(1 + exp(x)) without overflow.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
