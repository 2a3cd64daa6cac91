//! RMSNorm of each row, added to the residual stream in place.
//!
//! Scalars: rows. Buffers: x[, norm_gain][, factor][, gain], stream[, gained][, squares_out].

use crate::cpu::attention::rope_tables::inverse_rms;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::matmul::epilogue::write_squares;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::NormAdd;

/// Runs this thread's part.
pub fn norm_add(call: &KernelArgs<'_>, shape: &NormAdd) {
    call.level().run(Add { call, shape });
}

struct Add<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a NormAdd,
}

impl Task for Add<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let NormAdd { width, epsilon, gain, factor, squares } = *self.shape;
        let rows = self.call.scalar(0);
        let x = self.call.input::<f32>("x", rows * width);
        let gain = gain.then(|| self.call.input::<f32>("norm_gain", width));
        let factor = if factor { self.call.input::<f32>("factor", 1)[0] } else { 1.0 };
        let stream = self.call.output::<f32>("stream", rows * width);
        for row in self.call.static_range(rows, 1) {
            let x = &x[row * width..(row + 1) * width];
            // SAFETY: this runs compiled for its instruction set.
            let scale = unsafe { inverse_rms::<S>(x, epsilon) };
            // SAFETY: this row belongs to this thread.
            let stream = unsafe { stream.part(row * width..(row + 1) * width) };
            match gain {
                Some(gain) => {
                    for ((sum, x), gain) in stream.iter_mut().zip(x).zip(gain) {
                        *sum = factor * (*sum + x * scale * gain);
                    }
                }
                None => stream.iter_mut().zip(x).for_each(|(sum, x)| *sum = factor * (*sum + x * scale)),
            }
            if let Some(squares) = squares {
                assert_eq!(rows, 1, "partial sums of squares are for one row only");
                write_squares::<S>(squares, self.call, "squares_out", stream);
            }
        }
    }
}
