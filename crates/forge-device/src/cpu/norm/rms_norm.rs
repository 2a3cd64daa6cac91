//! RMSNorm of each part of each row. Scalars: rows. Buffers: x[, gain][, wanted], y.

use crate::cpu::attention::rope_tables::norm;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::RmsNorm;

/// Runs this thread's part.
pub fn rms_norm(call: &KernelArgs<'_>, shape: &RmsNorm) {
    call.level().run(Norm { call, shape });
}

struct Norm<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a RmsNorm,
}

impl Task for Norm<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let RmsNorm { width, parts, epsilon, gain, gather, pitch } = *self.shape;
        let pitch = pitch.unwrap_or(parts * width);
        let rows = self.call.scalar(0);
        let wanted = if gather { self.call.input::<u32>("wanted", rows) } else { &[] };
        let last = wanted.iter().map(|&row| row as usize + 1).max().unwrap_or(rows);
        let x = self.call.input::<f32>("x", last.saturating_sub(1) * pitch + parts * width);
        let gain = gain.then(|| self.call.input::<f32>("gain", width));
        let y = self.call.output::<f32>("y", rows * parts * width);
        for item in self.call.static_range(rows * parts, 1) {
            let (row, part) = (item / parts, item % parts);
            let from = if gather { wanted[row] as usize } else { row } * pitch + part * width;
            // SAFETY: this part of this row belongs to this thread.
            unsafe {
                let y = y.part(item * width..(item + 1) * width);
                norm::<S>(&x[from..from + width], gain, epsilon, y);
            }
        }
    }
}
