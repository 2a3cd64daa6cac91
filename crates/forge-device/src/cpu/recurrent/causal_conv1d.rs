//! Causal 1D convolution of each channel over its last values, with optional activation. The channels are the
//! first columns of wider rows. Scalars: rows. Buffers: x, taps, slots, positions, conv_state, y.
//!
//! `conv_state` is a ring `[slot, taps, channel]`: the row at position p is stored at p %
//! taps. Values before position 0 are zero.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::elementwise::activation::Vectorized;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{CausalConv, UnaryOp};

/// Channels per claim: a few cache lines.
const CHANNELS: usize = 256;

/// Runs this thread's part.
pub fn convolve(call: &KernelArgs<'_>, shape: &CausalConv) {
    call.level().run(Convolution { call, shape });
}

struct Convolution<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a CausalConv,
}

impl Task for Convolution<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let CausalConv { width, taps: count, pitch, activation } = *self.shape;
        let rows = self.call.scalar(0);
        let x = self.call.input::<f32>("x", rows * pitch);
        let taps = self.call.input::<f32>("taps", width * count);
        let slots = self.call.input::<u32>("slots", rows);
        let positions = self.call.input::<u32>("positions", rows);
        let last = slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        let conv_state = self.call.output::<f32>("conv_state", last * count * width);
        let y = self.call.output::<f32>("y", rows * width);
        for channels in self.call.claim(width, CHANNELS) {
            for row in 0..rows {
                let of_row = |row: usize| row * width + channels.start..row * width + channels.end;
                // SAFETY: these channels belong to this thread.
                let sums = unsafe { y.part(of_row(row)) };
                sums.fill(0.0);
                let (slot, position) = (slots[row] as usize, positions[row] as usize);
                // SAFETY: as above; only one slice is alive at a time.
                let ring =
                    |position: usize| unsafe { conv_state.part(of_row(slot * count + position % count)) };
                let own = row * pitch;
                ring(position).copy_from_slice(&x[own + channels.start..own + channels.end]);
                for back in (0..count.min(position + 1)).rev() {
                    let taps = taps[channels.start * count..].iter().skip(count - 1 - back).step_by(count);
                    for ((sum, value), tap) in sums.iter_mut().zip(ring(position - back)).zip(taps) {
                        *sum += *value * tap;
                    }
                }
                if let Some(activation) = activation {
                    // SAFETY: this thread's own elements.
                    unsafe { UnaryOp::Activate(activation).apply::<S>(sums) };
                }
            }
        }
    }
}
