//! Embedding lookup: rows of the token embedding table as f32.
//!
//! Scalars: rows. Buffers: the table's planes, ids[, gain], stream[, gained][, squares].

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::{BLOCK, Matrix};
use crate::cpu::format::repacked::{OUTPUTS, load_output};
use crate::cpu::format::weight_format::WeightFormat;
use crate::cpu::matmul::epilogue::write_squares;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::Embed;
use std::marker::PhantomData;

/// Runs this thread's part, with a table in weight format `F`.
pub fn embed<F: WeightFormat>(call: &KernelArgs<'_>, shape: &Embed) {
    F::embed(call, shape);
}

pub(crate) fn gather<M: Matrix>(call: &KernelArgs<'_>, shape: &Embed) {
    call.level().run(Gather::<M> { call, shape, format: PhantomData });
}

struct Gather<'a, M> {
    call: &'a KernelArgs<'a>,
    shape: &'a Embed,
    format: PhantomData<M>,
}

impl<M: Matrix> Task for Gather<'_, M> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Embed { vocabulary, width, scale, adds, squares, .. } = *self.shape;
        let rows = self.call.scalar(0);
        let blocks = width.div_ceil(M::WHOLE * BLOCK) * M::WHOLE;
        let table = M::find(self.call, "table", vocabulary, blocks);
        let is_repacked = S::HAS_INT8 && M::BITS > 0 && self.call.is_repacked("table_codes");
        let ids = self.call.input::<u32>("ids", rows);
        let stream = self.call.output::<f32>("stream", rows * width);
        let mut widened = [0.0_f32; BLOCK];
        for row in self.call.static_range(rows, 1) {
            let id = Some(ids[row] as usize).filter(|&id| id < vocabulary).unwrap_or(0);
            // SAFETY: this row belongs to this thread.
            let out = unsafe { stream.part(row * width..(row + 1) * width) };
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                // SAFETY: `find` checked that the table has all its blocks, and a block's parts fill
                // `widened`.
                unsafe {
                    if is_repacked {
                        let at = id / OUTPUTS * blocks + block;
                        widened = load_output::<S, M>(table, at, id % OUTPUTS).map(|x| x * scale);
                    } else {
                        for part in 0..BLOCK / S::LANES {
                            let v = S::mul(table.load_f32::<S>(id * blocks + block, part), S::splat(scale));
                            S::store(widened.as_mut_ptr().add(part * S::LANES), v);
                        }
                    }
                }
                if adds {
                    out.iter_mut().zip(&widened).for_each(|(out, x)| *out += x);
                } else {
                    out.copy_from_slice(&widened[..out.len()]);
                }
            }
            if let Some(squares) = squares {
                assert_eq!(rows, 1, "partial sums of squares are for one row only");
                write_squares::<S>(squares, self.call, "squares", out);
            }
        }
    }
}
