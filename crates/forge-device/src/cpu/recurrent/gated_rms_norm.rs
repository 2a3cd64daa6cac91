//! Gated RMSNorm of each head, in place: norm times gain times silu(gate). Scalars: rows. Buffers: inputs,
//! gain, heads.

use crate::cpu::attention::rope_tables::inverse_rms;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::elementwise::activation::Vectorized;
use crate::cpu::recurrent::delta_rule::MOST_VALUES;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Activation, GatedRmsNorm, UnaryOp};

/// Runs this thread's part.
pub fn gated_rms_norm(call: &KernelArgs<'_>, shape: &GatedRmsNorm) {
    call.level().run(GatedNorm { call, shape });
}

struct GatedNorm<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a GatedRmsNorm,
}

impl Task for GatedNorm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let GatedRmsNorm { heads, values, pitch, first, epsilon } = *self.shape;
        let (call, rows) = (self.call, self.call.scalar(0));
        let inputs = call.input::<f32>("inputs", rows * pitch);
        let gain = call.input::<f32>("gain", values);
        let output = call.output::<f32>("heads", rows * heads * values);
        for row in call.static_range(rows, 1) {
            // SAFETY: this row belongs to this thread.
            let output = unsafe { output.part(row * heads * values..(row + 1) * heads * values) };
            let gates = &inputs[row * pitch + first..];
            for (output, gates) in output.chunks_exact_mut(values).zip(gates.chunks_exact(values)) {
                // SAFETY: gain and gates are as long as the head.
                unsafe { open::<S>(output, gain, gates, epsilon) };
            }
        }
    }
}

/// Norms one head, and multiplies it by the gain and silu of its gates.
#[inline(always)]
pub(crate) unsafe fn open<S: Simd>(output: &mut [f32], gain: &[f32], gates: &[f32], epsilon: f32) {
    let mut open = [0.0_f32; MOST_VALUES];
    let open = &mut open[..gates.len()];
    open.copy_from_slice(gates);
    // SAFETY: local buffers.
    let scale = unsafe {
        UnaryOp::Activate(Activation::Silu).apply::<S>(open);
        inverse_rms::<S>(output, epsilon)
    };
    for ((output, gain), open) in output.iter_mut().zip(gain).zip(open) {
        *output *= scale * gain * *open;
    }
}
