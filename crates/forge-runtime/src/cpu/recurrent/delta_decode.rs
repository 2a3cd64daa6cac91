//! What one row of a slot does to memories, and they to it, its convolution first. Scalars: rows. Buffers: inputs, taps, rate, bias,
//! gain, slots, positions, tail, memory, heads.
//!
//! Rows have slots of their own. `inputs` has queries, keys and values side by side, then gates, strengths and times; `tail` is the
//! convolution's ring, `memory` the rule's.

use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::elementwise::activation::{Activation, UnaryOp};
use crate::cpu::recurrent::delta_rule::{DeltaRule, MOST_VALUES, decay, sigmoid};
use crate::cpu::recurrent::delta_update::{RowUpdate, learn, make_unit};
use crate::cpu::recurrent::gated_rms_norm::open;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use std::slice;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep {
    /// With gates.
    pub rule: DeltaRule,
    /// Rows that a result of the convolution is made of.
    pub taps: usize,
}

/// Channels of a key, at most: the compiler refuses more.
const MOST_KEYS: usize = 256;

/// Runs this thread's share.
pub fn delta_step(call: &KernelArgs<'_>, shape: &DeltaStep) {
    call.level().run(Step { call, shape });
}

struct Step<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a DeltaStep,
}

impl Task for Step<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaStep { rule, taps: count } = *self.shape;
        let DeltaRule { key_heads, heads, keys, values, .. } = rule;
        let (call, rows) = (self.call, self.call.scalar(0));
        let inputs = call.input::<f32>("inputs", rows * rule.inputs());
        let taps = call.input::<f32>("taps", rule.channels() * count);
        let [rate, bias] = ["rate", "bias"].map(|name| call.input::<f32>(name, heads));
        let gain = call.input::<f32>("gain", values);
        let [slots, positions] = ["slots", "positions"].map(|name| call.input::<u32>(name, rows));
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let tail = call.output::<f32>("tail", last * count * rule.channels());
        let memory = call.output::<f32>("memory", last * heads * values * keys);
        let said = call.output::<f32>("heads", rows * heads * values);
        for of_head in call.share(rows * heads, 1).flatten() {
            let (row, head) = (of_head / heads, of_head % heads);
            let (slot, position) = (slots[row] as usize, positions[row] as usize);
            let inputs = &inputs[row * rule.inputs()..(row + 1) * rule.inputs()];
            let ring = Ring { tail, width: rule.channels(), count, slot, position };

            let mut made = [0.0_f32; 2 * MOST_KEYS + MOST_VALUES];
            let made = &mut made[..2 * keys + values];
            let (key_part, value) = made.split_at_mut(2 * keys);
            let (query, key) = key_part.split_at_mut(keys);
            // Heads that share a key head all make its query and key; the first of them keeps what these are made of.
            let keeps = head % (heads / key_heads) == 0;
            let [of_query, of_key, of_value] = rule.begins(head);
            for (made, channel, keeps) in
                [(&mut *query, of_query, keeps), (&mut *key, of_key, keeps), (&mut *value, of_value, true)]
            {
                ring.convolve(&inputs[channel..channel + made.len()], channel, taps, made, keeps);
                // SAFETY: numbers of our own.
                unsafe { UnaryOp::Activate(Activation::Silu).apply::<S>(made) };
            }

            let after = &inputs[rule.channels()..];
            // SAFETY: numbers of our own.
            let likeness = unsafe { make_unit::<S>(query, key, rule.scale, rule.epsilon) };
            let decay = decay(rate[head], after[heads * (values + 1) + head] + bias[head]);
            let strength = sigmoid(after[heads * values + head]);
            let brought = RowUpdate { query, key, likeness, decay, strength };
            let start = (slot * heads + head) * values * keys;
            // SAFETY: this thread alone has this head of this slot.
            let (memory, said) = unsafe {
                (
                    memory.part(start..start + values * keys),
                    said.part(of_head * values..(of_head + 1) * values),
                )
            };
            if position == 0 {
                memory.fill(0.0);
            }
            // SAFETY: as many columns as values.
            unsafe { learn::<S>(&brought, value, memory, said) };
            let gates = &after[head * values..(head + 1) * values];
            // SAFETY: as many gains and gates as channels.
            unsafe { open::<S>(said, gain, gates, rule.gated.unwrap_or(0.0)) };
        }
    }
}

/// A slot's last rows.
struct Ring<'a> {
    tail: Output<'a, f32>,
    width: usize,
    count: usize,
    slot: usize,
    position: usize,
}

impl Ring<'_> {
    /// Where channels of a position lie.
    fn place(&self, position: usize, channel: usize) -> usize {
        (self.slot * self.count + position % self.count) * self.width + channel
    }

    /// Neighbouring channels' last values times their taps. Whoever `keeps` the row's own writes where no other reads.
    #[inline(always)]
    fn convolve(&self, newest: &[f32], channel: usize, taps: &[f32], sums: &mut [f32], keeps: bool) {
        let taps =
            |back: usize| taps[channel * self.count..].iter().skip(self.count - 1 - back).step_by(self.count);
        for ((sum, value), tap) in sums.iter_mut().zip(newest).zip(taps(0)) {
            *sum = value * tap;
        }
        for back in 1..self.count.min(self.position + 1) {
            let place = self.place(self.position - back, channel);
            // SAFETY: inside the tail, as the part that is kept below is: a slot's rows are whole. Nobody writes to rows
            // before the slot's own.
            let before = unsafe { slice::from_raw_parts(self.tail.start().add(place), newest.len()) };
            for ((sum, value), tap) in sums.iter_mut().zip(before).zip(taps(back)) {
                *sum += value * tap;
            }
        }
        if keeps {
            let place = self.place(self.position, channel);
            // SAFETY: of all threads one keeps these channels, and nobody reads them.
            unsafe { self.tail.part(place..place + newest.len()) }.copy_from_slice(newest);
        }
    }
}
