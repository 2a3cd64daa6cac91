//! RoPE: rotates all heads of each row by its position. Scalars: rows[, context]. Buffers: x, positions, y.

use crate::cpu::attention::rope_tables::RopeTables;
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::Rope;

/// Runs this thread's part.
pub fn rope(call: &KernelArgs<'_>, shape: &Rope) {
    call.level().run(Heads { call, shape });
}

struct Heads<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a Rope,
}

impl Task for Heads<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Rope { heads, width, ref rope } = *self.shape;
        let rows = self.call.scalar(0);
        let context = if rope.long.is_some() { self.call.scalar(1) } else { 0 };
        let x = self.call.input::<f32>("x", rows * heads * width);
        let positions = self.call.input::<u32>("positions", rows);
        let y = self.call.output::<f32>("y", rows * heads * width);
        let mut cos_sin = Scratch::take(rope.table_len());
        for row in self.call.static_range(rows, 1) {
            rope.cos_sin(positions[row] as usize, context, &mut cos_sin);
            let range = row * heads * width..(row + 1) * heads * width;
            // SAFETY: this row belongs to this thread.
            unsafe {
                let y = y.part(range.clone());
                y.copy_from_slice(&x[range]);
                for head in y.chunks_exact_mut(width) {
                    rope.rotate::<S>(head, &cos_sin);
                }
            }
        }
    }
}
