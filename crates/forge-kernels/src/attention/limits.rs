//! Limits of attention, RoPE and the KV cache.

use crate::attention::layout::MMA_HEADS;
use crate::context::{
    DIRECT_LINES, LINES, LINES_MEMORY, WIDEST_DIRECT, WIDEST_HEAD, WIDEST_LINE, grouped_bytes, head_memory,
    queries_fit, sums_bytes, tile_bytes,
};
use crate::error::KernelError;
use crate::limits::{Limits, fits_word};
use crate::spec::{AttendKernel, AttentionKnobs, CombineKernel, quantizes_heads};
use forge_ops::{Append, Format, HeadNorm, KvSource, LongContext, Rope, RopeAppend, RopeParameters};

/// The one supported head width above [`WIDEST_HEAD`], with two packets per lane; registers hold the sums of
/// four heads.
const DOUBLE_HEAD: usize = 512;

/// Maximum head width for combining KV splits: one thread per channel.
const WIDEST_COMBINE: usize = 1024;

/// Maximum query heads per KV head: what 8 simdgroups hold in registers.
const LARGEST_GROUP: usize = 32;

/// Whether decode attention can prepare its own queries and key; otherwise `rope_append` does.
pub fn prologue_fits(query_heads: usize, key_heads: usize, width: usize) -> bool {
    queries_fit(query_heads / key_heads, width)
}

impl Limits<'_> {
    pub(crate) fn rope_heads(&self, rope: &Rope) -> Result<(), KernelError> {
        self.heads(rope.heads, rope.heads, rope.width)?;
        self.positive("the number of rotated pairs", rope.rope.frequencies.len())?;
        self.rope(&rope.rope, rope.width)
    }

    pub(crate) fn append(&self, append: &Append) -> Result<(), KernelError> {
        self.heads(append.key_heads, append.key_heads, append.width)?;
        self.cache(append.cache, append.width)?;
        self.ring(append.ring, None)
    }

    pub(crate) fn rope_append(&self, rope: &RopeAppend) -> Result<(), KernelError> {
        self.heads(rope.query_heads, rope.key_heads, rope.width)?;
        self.cache(rope.cache, rope.width)?;
        self.ring(rope.ring, None)?;
        self.holds("the number of KV heads of a row", 0, rope.kv_source != KvSource::Nothing, || {
            "that of the cache: use `rope` for queries only".to_owned()
        })?;
        self.head_norm(rope.norm, &rope.rope)?;
        self.rope(&rope.rope, rope.width)
    }

    /// `is_split`: the kernel for decode and small batches, where a threadgroup has one row.
    pub(crate) fn attend(&self, attend: &AttendKernel, is_split: bool) -> Result<(), KernelError> {
        self.heads(attend.op.query_heads, attend.op.key_heads, attend.op.width)?;
        self.cache(attend.op.cache, attend.op.width)?;
        self.ring(attend.op.ring, Some(attend.op.window))?;
        self.scores(attend.op.scale, attend.op.window, attend.op.softcap)?;
        self.attend_knobs(attend, is_split)?;
        self.quantized_heads(attend.layout.quantizes, is_split, (attend.op.query_heads, attend.op.width))?;
        let Some(prologue) = &attend.op.prologue else { return Ok(()) };
        self.holds("the number of rows that are prepared at once", 8, is_split, || {
            "1: use rope_append".to_owned()
        })?;
        self.head_norm(prologue.norm, &prologue.rope)?;
        self.rope(&prologue.rope, attend.op.width)?;
        let group = attend.op.query_heads / attend.op.key_heads;
        self.holds(
            "the number of query heads that are prepared at once",
            group,
            queries_fit(group, attend.op.width),
            || "small enough to fit in 8 KiB: use rope_append".to_owned(),
        )
    }

    pub(crate) fn attend_combine(&self, combine: &CombineKernel) -> Result<(), KernelError> {
        let forge_ops::AttendCombine { query_heads, width, .. } = combine.op;
        self.positive("the number of query heads", query_heads)?;
        self.positive("the head's width", width)?;
        self.quantized_heads(combine.layout.quantizes, true, (query_heads, width))?;
        self.holds("the head's width", width, width <= WIDEST_COMBINE, || {
            format!("at most {WIDEST_COMBINE}: one thread per channel")
        })
    }

    fn cache(&self, format: Format, width: usize) -> Result<(), KernelError> {
        match format {
            Format::F32 | Format::F16 => Ok(()),
            Format::Q8_0 => self.holds("the head's width", width, width.is_multiple_of(32), || {
                "a multiple of 32 for a q8_0 KV cache: use f16".to_owned()
            }),
            _ => Err(KernelError::Cache { kernel: self.kernel.to_owned(), format }),
        }
    }

    /// A ring holds at least the window. `sees` is the window of an attention kernel.
    fn ring(&self, ring: Option<usize>, sees: Option<Option<usize>>) -> Result<(), KernelError> {
        let Some(ring) = ring else { return Ok(()) };
        self.positive("the length of a ring", ring)?;
        let fits = fits_word(ring) && sees.is_none_or(|window| window.is_some_and(|window| window <= ring));
        self.holds("the length of a ring", ring, fits, || {
            "below 2^32 and at least the window: without a window the cache holds the whole context"
                .to_owned()
        })
    }

    fn heads(&self, query_heads: usize, key_heads: usize, width: usize) -> Result<(), KernelError> {
        self.positive("the number of query heads", query_heads)?;
        self.positive("the number of KV heads", key_heads)?;
        self.positive("the head's width", width)?;
        self.holds("the head's width", width, width.is_multiple_of(2), || {
            "even, since RoPE rotates pairs of channels: pad the head with a zero channel".to_owned()
        })?;
        self.holds("the head's width", width, width <= WIDEST_HEAD || width == DOUBLE_HEAD, || {
            format!("at most {WIDEST_HEAD}, or {DOUBLE_HEAD}")
        })?;
        self.holds("the number of query heads", query_heads, query_heads.is_multiple_of(key_heads), || {
            format!("a multiple of the number of KV heads, {key_heads}")
        })?;
        let group = query_heads / key_heads;
        self.holds("the number of query heads per KV head", group, group <= LARGEST_GROUP, || {
            format!("at most {LARGEST_GROUP}: repeat KV heads")
        })
    }

    /// `split`: the small-batch kernel.
    fn attend_knobs(&self, attend: &AttendKernel, split: bool) -> Result<(), KernelError> {
        let AttentionKnobs { simdgroups, heads_each, mma, loads, tile, lines } = attend.layout.knobs;
        if !split {
            return self.tile_of_lines(attend.op.width, attend.op.cache, tile, lines);
        }
        let group = attend.op.query_heads / attend.op.key_heads;
        if mma {
            let fits = AttentionKnobs::can_use_mma(group, attend.op.width, attend.op.cache);
            self.holds("mma", 1, fits, || {
                "0 unless heads have 64 or 128 channels and an f16 cache".to_owned()
            })?;
            self.holds("heads_each", heads_each, heads_each == group.min(MMA_HEADS), || {
                format!("{}: MMA processes {MMA_HEADS} heads at once", group.min(MMA_HEADS))
            })?;
        } else {
            self.holds("heads_each", heads_each, (1..=group.min(4)).contains(&heads_each), || {
                format!("from 1 to {}, limited by registers", group.min(4))
            })?;
        }
        let parts = group.div_ceil(heads_each);
        self.holds("simdgroups", simdgroups, (parts..=32).contains(&simdgroups), || {
            format!("from {parts} (each with {heads_each} of {group} heads) to 32")
        })?;
        self.holds("loads", loads, (1..=16).contains(&loads), || "from 1 to 16".to_owned())?;
        let (bytes, most) = (sums_bytes(simdgroups, attend.op.width), head_memory(attend.op.width));
        self.memory("the threadgroup memory of sums", bytes, most)
    }

    fn tile_of_lines(
        &self,
        width: usize,
        cache: Format,
        tile: usize,
        lines: usize,
    ) -> Result<(), KernelError> {
        let what = "the threadgroup memory of a tile";
        if lines == DIRECT_LINES {
            self.holds("tile", tile, [32, 64].contains(&tile), || "32 or 64".to_owned())?;
            return self.holds("the head's width", width, width <= WIDEST_DIRECT, || {
                format!("at most {WIDEST_DIRECT}: registers hold the sums of 8 query rows")
            });
        }
        if lines != LINES {
            self.holds("lines", lines, lines == 8, || format!("8, {DIRECT_LINES} or {LINES}"))?;
            self.holds("tile", tile, [8, 16, 32].contains(&tile), || "8, 16 or 32".to_owned())?;
            return self.memory(what, tile_bytes(tile, width), head_memory(width));
        }
        self.holds("tile", tile, [16, 32].contains(&tile), || "16 or 32".to_owned())?;
        self.holds("the head's width", width, width <= WIDEST_LINE, || {
            format!("at most {WIDEST_LINE}: registers hold the sums of 16 query rows")
        })?;
        let bytes = grouped_bytes(tile, width, cache);
        self.memory(what, bytes, LINES_MEMORY)
    }

    pub(crate) fn rope(&self, rope: &RopeParameters, width: usize) -> Result<(), KernelError> {
        let pairs = rope.frequencies.len();
        self.holds("the number of rotated pairs", pairs, pairs * 2 <= width, || {
            format!("at most half the head's width, which is {width}")
        })?;
        self.finite("the magnitude of RoPE", rope.magnitude)?;
        if let Some(long) = &rope.long {
            self.positive("the number of rotated pairs", pairs)?;
            let original_context = long.original_context();
            self.holds(
                "the context length of the short frequencies",
                original_context,
                fits_word(original_context),
                || "below 2^32, the range of positions".to_owned(),
            )?;
            match long {
                LongContext::LongRope { frequencies, .. } => {
                    let count = frequencies.len();
                    self.holds("the number of frequencies of a long context", count, count == pairs, || {
                        format!("the number of rotated pairs, which is {pairs}")
                    })?;
                    frequencies.iter().try_for_each(|frequency| self.finite("a frequency", *frequency))?;
                }
                LongContext::DynamicNtk { factor, .. } => {
                    self.finite("the factor of a long context", *factor)?;
                    self.positive("the context length of the short frequencies", original_context)?;
                    self.holds("the number of rotated pairs", pairs, pairs >= 2, || {
                        "at least 2 for scaled frequencies".to_owned()
                    })?;
                }
            }
        }
        rope.frequencies.iter().try_for_each(|frequency| self.finite("a frequency", *frequency))
    }

    /// Limits of attention that also writes quantized rows.
    fn quantized_heads(
        &self,
        quantizes: bool,
        is_split: bool,
        (query_heads, width): (usize, usize),
    ) -> Result<(), KernelError> {
        let fits = !quantizes || is_split && quantizes_heads(query_heads, width);
        self.holds("the head's width", width, fits, || {
            "a multiple of 32, and all heads of 128, for split-KV attention with quantized rows".to_owned()
        })
    }

    fn head_norm(&self, norm: Option<HeadNorm>, rope: &RopeParameters) -> Result<(), KernelError> {
        let Some(norm) = norm else { return Ok(()) };
        self.finite("epsilon", norm.epsilon)?;
        let keeps = !norm.after_rope || rope.magnitude == 1.0;
        self.holds("the number of rotated pairs", rope.frequencies.len(), keeps, || {
            "0 if heads are normalized after RoPE with a magnitude other than 1: use a separate norm"
                .to_owned()
        })
    }

    fn scores(&self, scale: f32, window: Option<usize>, softcap: Option<f32>) -> Result<(), KernelError> {
        self.finite("the scale", scale)?;
        if let Some(window) = window {
            self.holds("the window", window, window > 0 && fits_word(window), || {
                "at least 1 and below 2^32, the range of positions: omit it for full attention".to_owned()
            })?;
        }
        softcap.map_or(Ok(()), |cap| self.cap(cap))
    }
}
