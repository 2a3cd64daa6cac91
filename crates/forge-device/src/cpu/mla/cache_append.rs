//! MLA cache append: prepares lines and stores them. A line is a latent and a RoPE key.
//!
//! Scalars: rows, context. Buffers: latent, key, slots, positions, latents; with preparation also queries,
//! gain and q_rope. `latents` is `[slot, context, width + rope_width]` for one layer.

use crate::cpu::attention::kv_format::KvElement;
use crate::cpu::attention::rope_tables::RopeTables;
use crate::cpu::attention::rope_tables::norm;
use crate::cpu::device::kernel_args::{KernelArgs, Output};
use crate::cpu::device::scratch::Scratch;
use crate::cpu::simd::isa::Task;
use crate::cpu::simd::vectors::Simd;
use forge_ops::{Format, MlaAppend, MlaColumns, MlaPrepare};
use half::f16;
use std::marker::PhantomData;

/// Runs this thread's part.
pub fn mla_append(call: &KernelArgs<'_>, shape: &MlaAppend) {
    match shape.cache {
        Format::F32 => call.level().run(Rows::<f32> { call, shape, cache: PhantomData }),
        Format::F16 => call.level().run(Rows::<f16> { call, shape, cache: PhantomData }),
        other => panic!("unsupported MLA cache format on the CPU: {other:?}"),
    }
}

struct Rows<'a, C> {
    call: &'a KernelArgs<'a>,
    shape: &'a MlaAppend,
    cache: PhantomData<C>,
}

impl<C: KvElement> Task for Rows<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let MlaAppend { width, rope_width, ref prepare, .. } = *self.shape;
        let call = self.call;
        let rows = call.scalar(0);
        let lines = Lines::find(call, rows, width + rope_width);
        let latents = call.output::<C>("latents", lines.count());
        let Some(prepare) = prepare else {
            let (latent, key) =
                (call.input::<f32>("latent", rows * width), call.input("key", rows * rope_width));
            for row in call.static_range(rows, 1) {
                let at = lines.of_row(row);
                // SAFETY: this row belongs to this thread, and no other row has its slot and position.
                let line = unsafe { latents.part(at..at + width + rope_width) };
                C::store(&mut line[..width], &latent[row * width..][..width]);
                C::store(&mut line[width..], &key[row * rope_width..][..rope_width]);
            }
            return;
        };
        let raw = Raw::find(call, prepare, rows, [width, rope_width]);
        let of_queries = prepare.heads * rope_width;
        let to = call.output::<f32>("q_rope", rows * of_queries);
        let mut scratch = Scratch::take(prepare.rope.table_len() + width + rope_width);
        let (cos_sin, made) = scratch.split_at_mut(prepare.rope.table_len());
        for row in call.static_range(rows, 1) {
            prepare.rope.cos_sin(lines.position(row), call.scalar(1), cos_sin);
            let at = lines.of_row(row);
            // SAFETY: as above.
            unsafe {
                raw.line::<S>(row, cos_sin, made);
                C::store(latents.part(at..at + width + rope_width), made);
                let to = to.part(row * of_queries..(row + 1) * of_queries);
                for (head, to) in to.chunks_exact_mut(rope_width).enumerate() {
                    raw.query::<S>(row, head, cos_sin, to);
                }
            }
        }
    }
}

/// The latent cache of one layer, and the rows' slots and positions.
pub(crate) struct Lines<'a> {
    slots: &'a [u32],
    positions: &'a [u32],
    context: usize,
    kv_stride: usize,
}

impl<'a> Lines<'a> {
    /// Looks up the buffers slots and positions; scalar 1 is the context.
    pub(crate) fn find(call: &KernelArgs<'a>, rows: usize, kv_stride: usize) -> Lines<'a> {
        let (slots, positions) = (call.input::<u32>("slots", rows), call.input::<u32>("positions", rows));
        Lines { slots, positions, context: call.scalar(1), kv_stride }
    }

    /// Elements of the cache up to the last used slot.
    pub(crate) fn count(&self) -> usize {
        let last = self.slots.iter().map(|&slot| slot as usize + 1).max().unwrap_or(0);
        last * self.context * self.kv_stride
    }

    /// Whether two rows have the same slot.
    pub(crate) fn share_slots(&self) -> bool {
        (0..self.slots.len()).any(|row| self.slots[..row].contains(&self.slots[row]))
    }

    /// The position of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        let (position, context) = (self.positions[row] as usize, self.context);
        assert!(position < context, "row {row}: position {position} exceeds the context length {context}");
        position
    }

    /// Offset of the lines of a row's slot.
    pub(crate) fn of_slot(&self, row: usize) -> usize {
        self.slots[row] as usize * self.context * self.kv_stride
    }

    /// Offset of a row's own line.
    pub(crate) fn of_row(&self, row: usize) -> usize {
        self.of_slot(row) + self.position(row) * self.kv_stride
    }
}

/// Unprepared rows.
pub(crate) struct Raw<'a> {
    queries: &'a [f32],
    latent: &'a [f32],
    key: &'a [f32],
    gain: &'a [f32],
    prepare: &'a MlaPrepare,
    width: usize,
    rope_width: usize,
}

impl<'a> Raw<'a> {
    pub(crate) fn find(
        call: &KernelArgs<'a>,
        prepare: &'a MlaPrepare,
        rows: usize,
        [width, rope_width]: [usize; 2],
    ) -> Raw<'a> {
        Raw {
            queries: call.input("queries", rows * prepare.columns.queries_pitch),
            latent: call.input("latent", rows * prepare.columns.latent_pitch),
            key: call.input("key", rows * prepare.columns.key_pitch),
            gain: call.input("gain", width),
            prepare,
            width,
            rope_width,
        }
    }

    /// Writes a row's line: the normed latent and the rotated key.
    #[inline(always)]
    pub(crate) unsafe fn line<S: Simd>(&self, row: usize, cos_sin: &[f32], to: &mut [f32]) {
        let MlaPrepare { columns, epsilon, ref rope, .. } = *self.prepare;
        let of_latent = &self.latent[row * columns.latent_pitch + columns.latent_first..][..self.width];
        let of_key = &self.key[row * columns.key_pitch + columns.key_first..][..self.rope_width];
        let (latent, key) = to.split_at_mut(self.width);
        // SAFETY: the caller has checked the instruction set.
        unsafe {
            norm::<S>(of_latent, Some(self.gain), epsilon, latent);
            key.copy_from_slice(of_key);
            rope.rotate::<S>(key, cos_sin);
        }
    }

    /// Writes the rotated RoPE part of a head's query.
    #[inline(always)]
    pub(crate) unsafe fn query<S: Simd>(&self, row: usize, head: usize, cos_sin: &[f32], to: &mut [f32]) {
        let MlaColumns { queries_pitch, q_rope_first, .. } = self.prepare.columns;
        let at = row * queries_pitch + q_rope_first + head * self.rope_width;
        to.copy_from_slice(&self.queries[at..at + self.rope_width]);
        // SAFETY: the caller has checked the instruction set.
        unsafe { self.prepare.rope.rotate::<S>(to, cos_sin) };
    }
}

/// Stores a row's line in the cache.
///
/// # Safety
/// No other thread may access it.
pub(crate) unsafe fn store<C: KvElement>(latents: Output<'_, C>, at: usize, line: &[f32]) {
    // SAFETY: the caller's contract.
    C::store(unsafe { latents.part(at..at + line.len()) }, line);
}
