//! Column slice of wider rows. Scalars: rows, first. Buffers: x, y.

use crate::cpu::device::kernel_args::KernelArgs;
use forge_ops::SliceColumns;

/// Runs this thread's part.
pub fn slice_columns(call: &KernelArgs<'_>, shape: &SliceColumns) {
    let SliceColumns { width, of } = *shape;
    let (rows, first) = (call.scalar(0), call.scalar(1));
    let x = call.input::<f32>("x", rows * of);
    let y = call.output::<f32>("y", rows * width);
    for row in call.static_range(rows, 1) {
        // SAFETY: this row belongs to this thread.
        let to = unsafe { y.part(row * width..(row + 1) * width) };
        to.copy_from_slice(&x[row * of + first..][..width]);
    }
}
