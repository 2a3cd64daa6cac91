//! LayerNorm of each row. Scalars: rows. Buffers: x, gain[, bias][, wanted], y.

use crate::cpu::attention::rope_tables::inverse_rms;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::LayerNorm;

/// Runs this thread's part.
pub fn layer_norm(call: &KernelArgs<'_>, shape: &LayerNorm) {
    call.level().run(Norm { call, shape });
}

struct Norm<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a LayerNorm,
}

impl Task for Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let LayerNorm { width, epsilon, bias, gather } = *self.shape;
        let rows = self.call.scalar(0);
        let wanted = if gather { self.call.input::<u32>("wanted", rows) } else { &[] };
        let last = wanted.iter().map(|&row| row as usize + 1).max().unwrap_or(rows);
        let x = self.call.input::<f32>("x", last * width);
        let gain = self.call.input::<f32>("gain", width);
        let bias = if bias { self.call.input::<f32>("bias", width) } else { &[] };
        let y = self.call.output::<f32>("y", rows * width);
        for row in self.call.static_range(rows, 1) {
            let from = if gather { wanted[row] as usize } else { row };
            // SAFETY: this row belongs to this thread.
            let y = unsafe { y.part(row * width..(row + 1) * width) };
            let x = &x[from * width..(from + 1) * width];
            let mean = sum::<S>(x) / width as f32;
            for (y, x) in y.iter_mut().zip(x) {
                *y = x - mean;
            }
            // SAFETY: this runs compiled for its instruction set.
            let scale = unsafe { inverse_rms::<S>(y, epsilon) };
            for (y, gain) in y.iter_mut().zip(gain) {
                *y *= scale * gain;
            }
            for (y, bias) in y.iter_mut().zip(bias) {
                *y += bias;
            }
        }
    }
}

#[inline(always)]
fn sum<S: Simd>(x: &[f32]) -> f32 {
    let whole = x.len() / S::LANES * S::LANES;
    // SAFETY: vectors up to `whole` are in bounds.
    let mut total = unsafe {
        let mut sums = S::splat(0.0);
        for i in (0..whole).step_by(S::LANES) {
            sums = S::add(sums, S::load(x.as_ptr().add(i)));
        }
        S::sum(sums)
    };
    for x in &x[whole..] {
        total += x;
    }
    total
}
