//! Attention shapes, and the expected results of their kernels.

use crate::{CONTEXT, Random, SLOTS, bytes_of, normed, rotated, to_f32, to_f64};
use forge_kernels::Spec;
use forge_kernels::spec::{AttendKernel, AttentionKnobs, AttentionLayout, CombineLayout, Kernel};
use forge_ops::{
    Attend, AttendCombine, Format, Gates, HeadNorm, KvSource, LongContext, Prologue, RopeAppend,
    RopeParameters,
};
use forge_sim::Precision;
use half::f16;

/// The heads of an attention layer, and its options.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) query_heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) width: usize,
    pub(crate) cache: Format,
    pub(crate) ring: Option<usize>,
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: bool,
    /// Whether the output is multiplied by sigmoid gates.
    pub(crate) gated: bool,
    pub(crate) kv_source: KvSource,
    pub(crate) norm: Option<HeadNorm>,
    pub(crate) rope: RopeParameters,
    /// Layout of the attention kernels; `None`: by the rule.
    pub(crate) knobs: Option<AttentionKnobs>,
}

impl Shape {
    pub(crate) fn group(&self) -> usize {
        self.query_heads / self.key_heads
    }

    pub(crate) fn scale(&self) -> f32 {
        2.0 / (self.width as f32).sqrt()
    }

    pub(crate) fn split(&self, prologue: bool) -> Spec {
        let (kv_source, norm, rope) = (self.kv_source, self.norm, self.rope.clone());
        let prologue = prologue.then_some(Prologue { kv_source, norm, rope });
        Spec::AttendSplit(self.attend().with_op(|op| Attend { prologue, ..op }))
    }

    pub(crate) fn tiled(&self) -> Spec {
        Spec::AttendTiled(self.attend())
    }

    pub(crate) fn attend(&self) -> AttendKernel {
        let Shape { query_heads, key_heads, width, cache, ring, window, softcap, sinks, .. } = *self;
        let (scale, gates, prologue) = (self.scale(), self.gates(), None);
        let by_rule = || AttentionKnobs::for_heads(query_heads, key_heads, width, cache);
        let knobs = self.knobs.unwrap_or_else(by_rule);
        Kernel {
            op: Attend {
                query_heads,
                key_heads,
                width,
                cache,
                ring,
                scale,
                window,
                softcap,
                sinks,
                gates,
                prologue,
            },
            layout: AttentionLayout { knobs, quantizes: false },
        }
    }

    /// The gates: the last columns of a row.
    pub(crate) fn gates(&self) -> Option<Gates> {
        let pitch = self.row_width();
        self.gated.then(|| Gates { pitch, first: pitch - self.query_heads * self.width })
    }

    /// The heads of a row, multiplied by their gates if there are any.
    pub(crate) fn opened(&self, heads: Vec<f64>, row: &[f32]) -> Vec<f64> {
        let Some(Gates { first, .. }) = self.gates() else { return heads };
        let open = |(head, gate): (f64, &f32)| head / (1.0 + (-f64::from(*gate)).exp());
        heads.into_iter().zip(&row[first..]).map(open).collect()
    }

    pub(crate) fn join(&self) -> Spec {
        let Shape { query_heads, width, .. } = *self;
        Spec::AttendCombine(Kernel {
            op: AttendCombine { query_heads, width, gates: self.gates() },
            layout: CombineLayout::default(),
        })
    }

    pub(crate) fn rope_append(&self) -> Spec {
        let Shape { query_heads, key_heads, width, cache, ring, kv_source, norm, .. } = *self;
        let rope = self.rope.clone();
        Spec::RopeAppend(RopeAppend { query_heads, key_heads, width, cache, ring, kv_source, norm, rope })
    }

    /// Capacity of a slot in positions.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.unwrap_or(CONTEXT).min(CONTEXT)
    }

    /// Offset of a position of a slot in the cache.
    pub(crate) fn place(&self, slot: u32, head: usize, position: usize) -> usize {
        let position = self.ring.map_or(position, |ring| position % ring);
        ((slot as usize * self.key_heads + head) * self.capacity() + position) * self.width
    }

    pub(crate) fn cache_count(&self) -> usize {
        SLOTS * self.key_heads * self.capacity() * self.width
    }

    /// The tolerance of a cached value, for values up to about 3.
    pub(crate) fn unit(&self) -> f64 {
        match self.cache {
            Format::F32 => 3e-6,
            // Half a step of 127.
            Format::Q8_0 => 1.5e-2,
            _ => 1e-3,
        }
    }

    /// The additional tolerance of RoPE, if the frequencies depend on the context length and are computed.
    pub(crate) fn rope_error(&self) -> f64 {
        let is_computed = matches!(self.rope.long, Some(LongContext::DynamicNtk { .. }));
        if is_computed { Precision::own().function_error(CONTEXT as f64) } else { 0.0 }
    }

    /// The tolerance of attention, for values up to 1. With an f16 or q8_0 KV cache, products may have
    /// reduced precision.
    pub(crate) fn attention_error(&self) -> f64 {
        let ranged = Precision::own().reduced_precision_error().filter(|_| self.cache != Format::F32);
        ranged.unwrap_or(3e-6)
    }

    /// The bytes of a KV cache with these values.
    pub(crate) fn bytes(&self, numbers: &[f32]) -> Vec<u8> {
        match self.cache {
            Format::Q8_0 => numbers.chunks_exact(self.width).flat_map(record).collect(),
            format => bytes_of(numbers, format),
        }
    }

    /// The values of a KV cache.
    pub(crate) fn to_f32(&self, bytes: &[u8]) -> Vec<f32> {
        let width = self.width;
        let of_record = |record: &[u8]| -> Vec<f32> {
            let scale = |at: usize| f16::from_le_bytes([record[width + at], record[width + at + 1]]).to_f32();
            (0..width)
                .map(|channel| scale(channel / 32 * 2) * f32::from(record[channel].cast_signed()))
                .collect()
        };
        match self.cache {
            Format::Q8_0 => bytes.chunks_exact(width + width / 16).flat_map(of_record).collect(),
            format => to_f32(bytes, format),
        }
    }

    /// Scalars of a dispatch.
    pub(crate) fn scalars(&self, rows: usize, splits: usize) -> [(&'static str, usize); 6] {
        let capacity = self.capacity();
        [
            ("rows", rows),
            ("context", CONTEXT),
            ("capacity", capacity),
            ("splits", splits),
            ("split_positions", 4),
            ("appends", 1),
        ]
    }

    /// The expected output of one row's query heads.
    pub(crate) fn attended(
        &self,
        q: &[f64],
        keys: &[f32],
        values: &[f32],
        sinks: &[f32],
        slot: u32,
        position: usize,
    ) -> Vec<f64> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut heads = Vec::new();
        for (head, q) in q.chunks_exact(self.width).enumerate() {
            let at = |p: usize| self.place(slot, head / self.group(), p);
            let score = |p: usize| {
                let key = &keys[at(p)..][..self.width];
                let score = q.iter().zip(key).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
                let score = score * f64::from(self.scale());
                self.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let sink = self.sinks.then(|| f64::from(sinks[head]));
            let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let total = scores.iter().copied().chain(sink).map(|score| (score - largest).exp()).sum::<f64>();
            let mut sums = vec![0.0; self.width];
            for (p, score) in (first..=position).zip(scores) {
                for (sum, &v) in sums.iter_mut().zip(&values[at(p)..][..self.width]) {
                    *sum += (score - largest).exp() / total * f64::from(v);
                }
            }
            heads.extend(sums);
        }
        heads
    }

    /// Width of a row of qkv.
    pub(crate) fn row_width(&self) -> usize {
        self.kv_source.row_heads(self.query_heads, self.key_heads) * self.width
    }

    /// Query, key and value heads of a row of qkv, as attention sees them.
    pub(crate) fn prepared(&self, row: &[f32], gains: &[Vec<f32>; 2], position: u32) -> [Vec<f64>; 3] {
        let mut heads = row.chunks_exact(self.width).map(to_f64);
        let queries: Vec<_> = heads.by_ref().take(self.query_heads).collect();
        let keys: Vec<_> = heads.by_ref().take(self.key_heads).collect();
        let values = match self.kv_source {
            KvSource::Keys => keys.clone(),
            _ => heads.take(self.key_heads).collect(),
        };
        let prepared = |heads: Vec<Vec<f64>>, gain: &[f32]| {
            let norm = |head: Vec<f64>, after_rope| match self.norm {
                Some(norm) if norm.after_rope == after_rope => normed(&head, Some(gain), norm.epsilon),
                _ => head,
            };
            let prepare = |head| norm(rotated(&norm(head, false), &self.rope, position), true);
            heads.into_iter().flat_map(prepare).collect()
        };
        let value = |head: Vec<f64>| match self.norm {
            Some(HeadNorm { epsilon, values: true, .. }) => normed(&head, None, epsilon),
            _ => head,
        };
        [
            prepared(queries, &gains[0]),
            prepared(keys, &gains[1]),
            values.into_iter().flat_map(value).collect(),
        ]
    }
}

/// One head of one position in q8_0, by the definition. NaN stays NaN.
pub(crate) fn record(head: &[f32]) -> Vec<u8> {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in head.chunks_exact(32) {
        let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let is_nan = block.iter().any(|x| x.is_nan());
        let scale = if is_nan { f16::NAN } else { f16::from_f32(largest / 127.0) };
        let step = scale.to_f32();
        let code = |x: &f32| (x / step.max(f32::MIN_POSITIVE)).round_ties_even().clamp(-127.0, 127.0) as i8;
        codes.extend(block.iter().map(|x| code(x).cast_unsigned()));
        scales.extend(scale.to_le_bytes());
    }
    codes.extend(scales);
    codes
}

/// Rows of a batch by slot and position. Rows of a slot are adjacent.
pub(crate) struct Batch {
    pub(crate) slots: Vec<u32>,
    pub(crate) positions: Vec<u32>,
}

impl Batch {
    pub(crate) fn of(rows: &[(u32, u32)]) -> Batch {
        let (slots, positions) = rows.iter().copied().unzip();
        Batch { slots, positions }
    }

    pub(crate) fn rows(&self) -> usize {
        self.slots.len()
    }
}

/// A KV cache as bytes, and its values. Positions that no row may read are NaN.
pub(crate) fn cache(random: &mut Random, shape: &Shape, seen: impl Fn(u32) -> usize) -> (Vec<u8>, Vec<f32>) {
    let mut numbers = random.floats(shape.cache_count());
    for slot in 0..SLOTS as u32 {
        for head in 0..shape.key_heads {
            let (begin, capacity) = (shape.place(slot, head, 0), shape.capacity());
            let written = seen(slot).min(capacity);
            numbers[begin + written * shape.width..begin + capacity * shape.width].fill(f32::NAN);
        }
    }
    let bytes = shape.bytes(&numbers);
    let numbers = shape.to_f32(&bytes);
    (bytes, numbers)
}
