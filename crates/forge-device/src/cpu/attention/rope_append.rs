//! Norms and rotates queries and keys, and appends keys and values to the KV cache.
//!
//! Scalars: rows, context[, capacity]. Buffers: qkv[, query_gain, key_gain], slots, positions, q, keys,
//! values. A row of qkv is query heads, then the heads given by [`KvSource`](forge_ops::KvSource); keys and values are as in
//! [`crate::cpu::append()`].

use crate::cpu::attention::kv_append::{Cache, store};
use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::rope_tables::RopeTables;
use crate::cpu::attention::rope_tables::{prepare, prepare_value};
use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::device::scratch::Scratch;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Format, RopeAppend};
use half::f16;
use std::marker::PhantomData;

/// Runs this thread's part.
pub fn rope_append(call: &KernelArgs<'_>, shape: &RopeAppend) {
    match shape.cache {
        Format::F32 => call.level().run(Rows::<f32> { call, shape, cache: PhantomData }),
        Format::F16 => call.level().run(Rows::<f16> { call, shape, cache: PhantomData }),
        Format::Q8_0 => call.level().run(Rows::<u8> { call, shape, cache: PhantomData }),
        other => panic!("unsupported KV cache format on the CPU: {other:?}"),
    }
}

struct Rows<'a, C> {
    call: &'a KernelArgs<'a>,
    shape: &'a RopeAppend,
    cache: PhantomData<C>,
}

impl<C: KvElement> Task for Rows<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let RopeAppend { query_heads, key_heads, width, ring, kv_source, norm, ref rope, .. } = *self.shape;
        let call = self.call;
        let rows = call.scalar(0);
        let [first_key, first_value, row_heads] = kv_source.head_offsets(query_heads, key_heads);
        let row_width = row_heads * width;
        let qkv = call.input::<f32>("qkv", rows * row_width);
        let query_norm = norm.map(|norm| (norm, call.input::<f32>("query_gain", width)));
        let key_norm = norm.map(|norm| (norm, call.input::<f32>("key_gain", width)));
        let q = call.output::<f32>("q", rows * query_heads * width);
        let cache = Cache::<C>::find(call, rows, [key_heads, width], ring);
        let mut scratch = Scratch::take(rope.table_len() + width);
        let (cos_sin, prepared) = scratch.split_at_mut(rope.table_len());
        for row in call.static_range(rows, 1) {
            let head_of = |number: usize| &qkv[row * row_width + number * width..][..width];
            rope.cos_sin(cache.position(row), call.scalar(1), cos_sin);
            // SAFETY: this row belongs to this thread, and no other row has its slot and position.
            unsafe {
                let q = q.part(row * query_heads * width..(row + 1) * query_heads * width);
                for (head, to) in q.chunks_exact_mut(width).enumerate() {
                    prepare::<S>(head_of(head), query_norm, rope, cos_sin, to);
                }
                for head in 0..key_heads {
                    let place = cache.place(row, head, cache.position(row));
                    prepare::<S>(head_of(first_key + head), key_norm, rope, cos_sin, prepared);
                    store(cache.keys, place, prepared);
                    let value = prepare_value::<S>(head_of(first_value + head), norm, prepared);
                    store(cache.values, place, value);
                }
            }
        }
    }
}
