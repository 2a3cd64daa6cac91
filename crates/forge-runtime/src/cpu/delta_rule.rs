//! What memories say to queries when they have learnt keys and values. Scalars: rows, kept. Buffers: query, key, value, time,
//! strength, rate, bias, slots, positions, memory, heads.
//!
//! `memory` is `[slot, value head, value channel, key channel]`. A row at position 0 finds zeros, whatever it holds. Rows from
//! `kept` on leave no trace there; their results are zeros.

use super::call::Call;
use super::level::Task;
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
    /// Added to the sum of squares of a query or a key.
    pub epsilon: f32,
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
        let DeltaRule { key_heads, heads, keys, values, scale, epsilon } = *self.shape;
        let (call, rows, kept) = (self.call, self.call.scalar(0), self.call.scalar(1));
        let [query, key] = ["query", "key"].map(|name| call.input::<f32>(name, rows * key_heads * keys));
        let value = call.input::<f32>("value", rows * heads * values);
        let [time, strength] = ["time", "strength"].map(|name| call.input::<f32>(name, rows * heads));
        let [rate, bias] = ["rate", "bias"].map(|name| call.input::<f32>(name, heads));
        let [slots, positions] = ["slots", "positions"].map(|name| call.input::<u32>(name, rows));
        let last = slots[..kept].iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let memory = call.output::<f32>("memory", last * heads * values * keys);
        let said = call.output::<f32>("heads", rows * heads * values);
        for head in call.share(heads, 1).flatten() {
            for row in 0..rows {
                let of_head = row * heads + head;
                // SAFETY: this thread alone has this head.
                let said = unsafe { said.part(of_head * values..(of_head + 1) * values) };
                if row >= kept {
                    said.fill(0.0);
                    continue;
                }
                let of_key = (row * key_heads + head / (heads / key_heads)) * keys;
                let (q, k) = (&query[of_key..of_key + keys], &key[of_key..of_key + keys]);
                let lengths = [q, k].map(|x| (dot(x, x) + epsilon).sqrt().recip());
                let [query_scale, key_scale] = [scale * lengths[0], lengths[1]];
                let likeness = dot(q, k);
                let decay = (-rate[head].exp() * softplus(time[of_head] + bias[head])).exp();
                let start = (slots[row] as usize * heads + head) * values * keys;
                // SAFETY: as above.
                let memory = unsafe { memory.part(start..start + values * keys) };
                if positions[row] == 0 {
                    memory.fill(0.0);
                }
                let value = &value[of_head * values..(of_head + 1) * values];
                for ((said, value), column) in said.iter_mut().zip(value).zip(memory.chunks_exact_mut(keys)) {
                    let unknown = value - decay * dot(column, k) * key_scale;
                    let learnt = strength[of_head] * unknown * key_scale;
                    *said = query_scale * (decay * dot(column, q) + learnt * likeness);
                    for (s, k) in column.iter_mut().zip(k) {
                        *s = decay * *s + learnt * k;
                    }
                }
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
