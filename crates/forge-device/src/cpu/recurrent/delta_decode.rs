//! Gated DeltaNet decode step: convolution, recurrent-state update and gated output of one row per slot.
//! Scalars: rows. Buffers: inputs, taps, a_log, dt_bias, gain, slots, positions, conv_state, recurrent_state,
//! heads.
//!
//! Each row has its own slot. A row of `inputs` is queries, keys and values, then gates, beta and dt.

use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::elementwise::activation::Vectorized;
use crate::cpu::recurrent::delta_rule::{MOST_VALUES, decay, sigmoid};
use crate::cpu::recurrent::delta_update::{RowUpdate, normalize_l2, update_state};
use crate::cpu::recurrent::gated_rms_norm::open;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Activation, UnaryOp};
use forge_ops::{DeltaRule, DeltaStep};
use std::slice;

/// Maximum key head dimension; the compiler rejects larger ones.
const MOST_KEYS: usize = 256;

/// Runs this thread's part.
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
        let [a_log, dt_bias] = ["a_log", "dt_bias"].map(|name| call.input::<f32>(name, heads));
        let gain = call.input::<f32>("gain", values);
        let [slots, positions] = ["slots", "positions"].map(|name| call.input::<u32>(name, rows));
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let conv_state = call.output::<f32>("conv_state", last * count * rule.channels());
        let recurrent_state = call.output::<f32>("recurrent_state", last * heads * values * keys);
        let output = call.output::<f32>("heads", rows * heads * values);
        for of_head in call.claim(rows * heads, 1).flatten() {
            let (row, head) = (of_head / heads, of_head % heads);
            let (slot, position) = (slots[row] as usize, positions[row] as usize);
            let inputs = &inputs[row * rule.inputs()..(row + 1) * rule.inputs()];
            let ring = Ring { conv_state, width: rule.channels(), count, slot, position };

            let mut made = [0.0_f32; 2 * MOST_KEYS + MOST_VALUES];
            let made = &mut made[..2 * keys + values];
            let (key_part, value) = made.split_at_mut(2 * keys);
            let (query, key) = key_part.split_at_mut(keys);
            // All value heads of a key head compute its query and key; the first one writes their inputs to
            // the conv state.
            let keeps = head % (heads / key_heads) == 0;
            let [of_query, of_key, of_value] = rule.head_offsets(head);
            for (made, channel, keeps) in
                [(&mut *query, of_query, keeps), (&mut *key, of_key, keeps), (&mut *value, of_value, true)]
            {
                ring.convolve(&inputs[channel..channel + made.len()], channel, taps, made, keeps);
                // SAFETY: local buffers.
                unsafe { UnaryOp::Activate(Activation::Silu).apply::<S>(made) };
            }

            let after = &inputs[rule.channels()..];
            // SAFETY: local buffers.
            let likeness = unsafe { normalize_l2::<S>(query, key, rule.scale, rule.epsilon) };
            let decay = decay(a_log[head], after[heads * (values + 1) + head] + dt_bias[head]);
            let beta = sigmoid(after[heads * values + head]);
            let update = RowUpdate { query, key, likeness, decay, beta };
            let start = (slot * heads + head) * values * keys;
            // SAFETY: this head of this slot belongs to this thread.
            let (recurrent_state, output) = unsafe {
                (
                    recurrent_state.part(start..start + values * keys),
                    output.part(of_head * values..(of_head + 1) * values),
                )
            };
            if position == 0 {
                recurrent_state.fill(0.0);
            }
            // SAFETY: the state has as many columns as values.
            unsafe { update_state::<S>(&update, value, recurrent_state, output) };
            let gates = &after[head * values..(head + 1) * values];
            // SAFETY: gain and gates are as long as the head.
            unsafe { open::<S>(output, gain, gates, rule.gated.unwrap_or(0.0)) };
        }
    }
}

/// The conv state of a slot.
struct Ring<'a> {
    conv_state: Output<'a, f32>,
    width: usize,
    count: usize,
    slot: usize,
    position: usize,
}

impl Ring<'_> {
    /// Offset of a channel at a position.
    fn place(&self, position: usize, channel: usize) -> usize {
        (self.slot * self.count + position % self.count) * self.width + channel
    }

    /// Convolves adjacent channels. With `keeps`, also stores the row's own values, at a place that no other
    /// thread reads.
    #[inline(always)]
    fn convolve(&self, newest: &[f32], channel: usize, taps: &[f32], sums: &mut [f32], keeps: bool) {
        let taps =
            |back: usize| taps[channel * self.count..].iter().skip(self.count - 1 - back).step_by(self.count);
        for ((sum, value), tap) in sums.iter_mut().zip(newest).zip(taps(0)) {
            *sum = value * tap;
        }
        for back in 1..self.count.min(self.position + 1) {
            let place = self.place(self.position - back, channel);
            // SAFETY: in bounds of `conv_state`, which has whole rows per slot. No thread writes rows before
            // the slot's own.
            let before = unsafe { slice::from_raw_parts(self.conv_state.start().add(place), newest.len()) };
            for ((sum, value), tap) in sums.iter_mut().zip(before).zip(taps(back)) {
                *sum += value * tap;
            }
        }
        if keeps {
            let place = self.place(self.position, channel);
            // SAFETY: one thread stores these channels, and no thread reads them.
            unsafe { self.conv_state.part(place..place + newest.len()) }.copy_from_slice(newest);
        }
    }
}
