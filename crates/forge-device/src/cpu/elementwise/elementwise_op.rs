//! Elementwise function of one or two vectors. Scalars: rows. Buffers: a[, b], y.

use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::elementwise::activation::Vectorized;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Elementwise, Function, UnaryOp};

/// Elements per unit of work.
const GRAIN: usize = 1024;

/// Runs this thread's part.
pub fn elementwise(call: &KernelArgs<'_>, shape: &Elementwise) {
    call.level().run(Numbers { call, shape });
}

struct Numbers<'a> {
    call: &'a KernelArgs<'a>,
    shape: &'a Elementwise,
}

impl Task for Numbers<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Elementwise { mut function, width } = *self.shape;
        if function == Function::ScaleBy {
            function = Function::Unary(UnaryOp::Scale(self.call.input::<f32>("b", 1)[0]));
        }
        let rows = self.call.scalar(0);
        let count = rows * width;
        let a = self.call.input::<f32>("a", count);
        let y = self.call.output::<f32>("y", count);
        let b = match function {
            // `ScaleBy` was converted to a constant scale above.
            Function::Unary(_) | Function::ScaleBy => a,
            Function::Multiply | Function::Add => self.call.input::<f32>("b", count),
            Function::ScaleRows => return self.times(a, self.call.input::<f32>("b", rows), y),
        };
        let range = self.call.static_range(count, GRAIN);
        // SAFETY: this range belongs to this thread.
        let to = unsafe { y.part(range.clone()) };
        let (a, b) = (&a[range.clone()], &b[range.clone()]);
        let whole = range.len() / S::LANES * S::LANES;
        // SAFETY: vectors up to `whole` are in bounds of all three; the rest uses local arrays.
        unsafe {
            for i in (0..whole).step_by(S::LANES) {
                let v = function.of::<S>(S::load(a.as_ptr().add(i)), S::load(b.as_ptr().add(i)));
                S::store(to.as_mut_ptr().add(i), v);
            }
            let rest = to.len() - whole;
            let (mut x, mut y) = ([0.0_f32; 16], [0.0_f32; 16]);
            x[..rest].copy_from_slice(&a[whole..]);
            y[..rest].copy_from_slice(&b[whole..]);
            S::store(x.as_mut_ptr(), function.of::<S>(S::load(x.as_ptr()), S::load(y.as_ptr())));
            to[whole..].copy_from_slice(&x[..rest]);
        }
    }
}

impl Numbers<'_> {
    /// Multiplies each row of `a` by its element of `b`.
    fn times(&self, a: &[f32], b: &[f32], y: Output<'_, f32>) {
        let width = self.shape.width;
        for row in self.call.static_range(b.len(), 1) {
            let range = row * width..(row + 1) * width;
            // SAFETY: this row belongs to this thread.
            let to = unsafe { y.part(range.clone()) };
            to.iter_mut().zip(&a[range]).for_each(|(to, a)| *to = a * b[row]);
        }
    }
}

/// A function of two values, applied to vectors.
trait VectorizedBinary {
    /// Applies it to vectors.
    ///
    /// # Safety
    ///
    /// The instruction set of `S` is available.
    unsafe fn of<S: Simd>(self, a: S::V, b: S::V) -> S::V;
}

impl VectorizedBinary for Function {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, a: S::V, b: S::V) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Function::Unary(each) => each.of::<S>(a),
                Function::Multiply | Function::ScaleRows | Function::ScaleBy => S::mul(a, b),
                Function::Add => S::add(a, b),
            }
        }
    }
}
