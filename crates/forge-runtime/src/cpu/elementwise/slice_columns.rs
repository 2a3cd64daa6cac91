//! Columns of wider rows. Scalars: rows, first. Buffers: x, y.

use crate::cpu::device::kernel_args::KernelArgs;

/// What the compiler decided.
#[derive(Clone, Copy, Debug)]
pub struct SliceColumns {
    /// Columns that are taken.
    pub width: usize,
    /// Columns that there are.
    pub of: usize,
}

/// Runs this thread's share.
pub fn take(call: &KernelArgs<'_>, shape: &SliceColumns) {
    let SliceColumns { width, of } = *shape;
    let (rows, first) = (call.scalar(0), call.scalar(1));
    let x = call.input::<f32>("x", rows * of);
    let y = call.output::<f32>("y", rows * width);
    for row in call.own(rows, 1) {
        // SAFETY: this thread alone has this row.
        let to = unsafe { y.part(row * width..(row + 1) * width) };
        to.copy_from_slice(&x[row * of + first..][..width]);
    }
}
