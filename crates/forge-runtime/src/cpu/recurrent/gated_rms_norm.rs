//! Of what heads say, normed each by itself, what their gates let through, in place. Scalars: rows. Buffers: inputs, gain, heads.

use crate::cpu::attention::rope_tables::inverse_rms;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::elementwise::activation::{Activation, UnaryOp};
use crate::cpu::recurrent::delta_rule::MOST_VALUES;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct GatedRmsNorm {
    /// Heads.
    pub heads: usize,
    /// Channels of one.
    pub values: usize,
    /// Numbers from one row of inputs to the next.
    pub pitch: usize,
    /// The first of a row's gates.
    pub first: usize,
    /// Added to the mean of squares of a head.
    pub epsilon: f32,
}

/// Runs this thread's share.
pub fn let_through(call: &KernelArgs<'_>, shape: &GatedRmsNorm) {
    call.level().run(Through { call, shape });
}

struct Through<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a GatedRmsNorm,
}

impl Task for Through<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let GatedRmsNorm { heads, values, pitch, first, epsilon } = *self.shape;
        let (call, rows) = (self.call, self.call.scalar(0));
        let inputs = call.input::<f32>("inputs", rows * pitch);
        let gain = call.input::<f32>("gain", values);
        let said = call.output::<f32>("heads", rows * heads * values);
        for row in call.own(rows, 1) {
            // SAFETY: this thread alone has this row.
            let said = unsafe { said.part(row * heads * values..(row + 1) * heads * values) };
            let gates = &inputs[row * pitch + first..];
            for (said, gates) in said.chunks_exact_mut(values).zip(gates.chunks_exact(values)) {
                // SAFETY: as many gains and gates as channels.
                unsafe { open::<S>(said, gain, gates, epsilon) };
            }
        }
    }
}

/// What one head says, normed, times the gain and silu of its gates.
#[inline(always)]
pub(crate) unsafe fn open<S: Simd>(said: &mut [f32], gain: &[f32], gates: &[f32], epsilon: f32) {
    let mut open = [0.0_f32; MOST_VALUES];
    let open = &mut open[..gates.len()];
    open.copy_from_slice(gates);
    // SAFETY: numbers of our own.
    let scale = unsafe {
        UnaryOp::Activate(Activation::Silu).apply::<S>(open);
        inverse_rms::<S>(said, epsilon)
    };
    for ((said, gain), open) in said.iter_mut().zip(gain).zip(open) {
        *said *= scale * gain * *open;
    }
}
