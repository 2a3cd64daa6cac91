//! Validates specs. A spec that passes renders.

use forge_ops::{Format, LongContext, RopeParameters};

use crate::attention::layout::MMA_HEADS;
use crate::context::{
    LINES, LINES_MEMORY, WIDEST_HEAD, WIDEST_LINE, grouped_bytes, head_memory, packet_columns,
    packet_elements, queries_fit, sums_bytes, tile_bytes,
};
use crate::error::KernelError;
pub use crate::mla::limits::prologue_fits as latent_prologue_fits;
use crate::spec::{AttendKernel, AttentionKnobs, Spec, quantizes_heads};
use crate::support;
use forge_ops::{Argmax, Function, HeadNorm, KvSource, Sample, UnaryOp};

/// The one supported head width above [`WIDEST_HEAD`], with two packets per lane; registers hold the sums of
/// four heads.
const DOUBLE_HEAD: usize = 512;

/// Maximum head width for combining KV splits: one thread per channel.
const WIDEST_COMBINE: usize = 1024;

/// Maximum query heads per KV head: what 8 simdgroups hold in registers.
const LARGEST_GROUP: usize = 32;

/// Names that are reserved in the kernel source. Kernel names contain a role (`qkv_one`), so the list only
/// needs plausible names.
const KEYWORDS: [&str; 24] = [
    "args",
    "auto",
    "bool",
    "char",
    "class",
    "constant",
    "device",
    "do",
    "double",
    "else",
    "float",
    "for",
    "half",
    "if",
    "int",
    "kernel",
    "long",
    "main",
    "new",
    "short",
    "struct",
    "thread",
    "threadgroup",
    "void",
];

/// Whether decode attention can prepare its own queries and key; otherwise `rope_append` does.
pub fn prologue_fits(query_heads: usize, key_heads: usize, width: usize) -> bool {
    queries_fit(query_heads / key_heads, width)
}

/// Returns an error for a spec that cannot be rendered.
pub(crate) fn check(name: &str, spec: &Spec) -> Result<(), KernelError> {
    let mut characters = name.chars();
    let starts = characters.next().is_some_and(|first| first.is_ascii_alphabetic());
    let plain = characters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    let taken = KEYWORDS.contains(&name) || support::is_function(name);
    if !starts || !plain || taken {
        return Err(KernelError::Name { name: name.to_owned() });
    }
    let limits = Limits { kernel: name };
    match spec {
        Spec::Embed(embed) => {
            limits.finite("the scale", embed.scale)?;
            limits.positive("the vocabulary", embed.vocabulary)?;
            limits.positive("the width", embed.width)?;
            limits.indexable("the vocabulary", embed.vocabulary, embed.width, embed.format)?;
            let fits = !embed.adds || embed.squares.is_none();
            limits.holds("the width", embed.width, fits, || {
                "normalized in a separate step if rows are added".to_owned()
            })?;
            let partials = embed.squares.map_or(1, |squares| squares.partials);
            limits.positive("the number of partial sums of squares", partials)
        }
        Spec::RmsNorm(norm) => {
            limits.positive("the width", norm.width)?;
            limits.positive("the number of parts", norm.parts)?;
            let row = norm.parts.saturating_mul(norm.width);
            let pitch = norm.pitch.unwrap_or(row);
            limits.holds("a row of x", pitch, pitch >= row, || {
                format!("at least the normalized width, {row}")
            })?;
            limits.finite("epsilon", norm.epsilon)
        }
        Spec::NormAdd(norm) => {
            limits.positive("the width", norm.width)?;
            limits.finite("epsilon", norm.epsilon)?;
            let partials = norm.squares.map_or(1, |squares| squares.partials);
            limits.positive("the number of partial sums of squares", partials)
        }
        Spec::LayerNorm(norm) => {
            limits.positive("the width", norm.width)?;
            limits.finite("epsilon", norm.epsilon)
        }
        Spec::Linear(linear) => limits.linear(linear),
        Spec::Quantize(quantize) => {
            limits.positive("the width", quantize.width)?;
            limits.pitch(quantize.pitch, quantize.width)?;
            limits
                .holds("the number of parts", quantize.parts, quantize.parts <= 8, || "at most 8".to_owned())
        }
        Spec::Rope(rope) => {
            limits.heads(rope.heads, rope.heads, rope.width)?;
            limits.positive("the number of rotated pairs", rope.rope.frequencies.len())?;
            limits.rope(&rope.rope, rope.width)
        }
        Spec::Append(append) => {
            limits.heads(append.key_heads, append.key_heads, append.width)?;
            limits.cache(append.cache, append.width)?;
            limits.ring(append.ring, None)
        }
        Spec::RopeAppend(rope) => {
            limits.heads(rope.query_heads, rope.key_heads, rope.width)?;
            limits.cache(rope.cache, rope.width)?;
            limits.ring(rope.ring, None)?;
            limits.holds(
                "the number of KV heads of a row",
                0,
                rope.kv_source != KvSource::Nothing,
                || "that of the cache: use `rope` for queries only".to_owned(),
            )?;
            limits.head_norm(rope.norm, &rope.rope)?;
            limits.rope(&rope.rope, rope.width)
        }
        Spec::AttendSplit(attend) | Spec::AttendTiled(attend) => {
            limits.heads(attend.op.query_heads, attend.op.key_heads, attend.op.width)?;
            limits.cache(attend.op.cache, attend.op.width)?;
            limits.ring(attend.op.ring, Some(attend.op.window))?;
            limits.scores(attend.op.scale, attend.op.window, attend.op.softcap)?;
            let alone = matches!(spec, Spec::AttendSplit(_));
            limits.attend_knobs(attend, alone)?;
            limits.quantized_heads(
                attend.layout.quantizes,
                alone,
                (attend.op.query_heads, attend.op.width),
            )?;
            let Some(prologue) = &attend.op.prologue else { return Ok(()) };
            limits.holds("the number of rows that are prepared at once", 8, alone, || {
                "1: use rope_append".to_owned()
            })?;
            limits.head_norm(prologue.norm, &prologue.rope)?;
            limits.rope(&prologue.rope, attend.op.width)?;
            let group = attend.op.query_heads / attend.op.key_heads;
            limits.holds(
                "the number of query heads that are prepared at once",
                group,
                queries_fit(group, attend.op.width),
                || "small enough to fit in 8 KiB: use rope_append".to_owned(),
            )
        }
        Spec::AttendCombine(combine) => {
            let forge_ops::AttendCombine { query_heads, width, .. } = combine.op;
            limits.positive("the number of query heads", query_heads)?;
            limits.positive("the head's width", width)?;
            limits.quantized_heads(combine.layout.quantizes, true, (query_heads, width))?;
            limits.holds("the head's width", width, width <= WIDEST_COMBINE, || {
                format!("at most {WIDEST_COMBINE}: one thread per channel")
            })
        }
        Spec::PerHeadLinear(each) => limits.per_head_linear(each),
        Spec::MlaAppend(append) => limits.mla_append(append),
        Spec::MlaAttention(attend) => limits.mla_attention(attend),
        Spec::MlaLoadLatents(load) => limits.load_latents(load),
        Spec::MlaAttentionExpanded(attend) => limits.attend_expanded(attend),
        Spec::Convolve(convolve) => limits.convolve(convolve),
        Spec::DeltaRule(rule) => limits.delta_rule(rule),
        Spec::DeltaChunks(chunks) => limits.delta_chunks(chunks),
        Spec::GatedRmsNorm(through) => limits.gated_rms_norm(through),
        Spec::DeltaStep(step) => limits.delta_step(step),
        Spec::Route(route) => limits.route(route),
        Spec::ExpertsInner(inner) => limits.experts_inner(inner),
        Spec::ExpertsSum(sum) => limits.experts_sum(sum),
        Spec::ExpertsGroup(group) => limits.experts_group(group),
        Spec::ExpertsTiles(tiles) => limits.experts_tiles(tiles),
        Spec::ExpertsCombine(combine) => limits.experts_combine(combine),
        Spec::Elementwise(elementwise) => {
            limits.positive("the width", elementwise.width)?;
            match elementwise.function {
                Function::Unary(unary) => limits.unary(unary),
                Function::Multiply | Function::ScaleRows | Function::ScaleBy | Function::Add => Ok(()),
            }
        }
        Spec::SliceColumns(take) => {
            limits.positive("the width", take.width)?;
            limits.holds("the width", take.width, take.width <= take.of, || {
                format!("at most the width of the source rows, {}", take.of)
            })
        }
        &Spec::Argmax(Argmax { vocabulary }) | &Spec::Sample(Sample { vocabulary }) => {
            limits.positive("the vocabulary", vocabulary)?;
            limits.holds("the vocabulary", vocabulary, fits_word(vocabulary), || {
                "below 2^32, the range of token ids".to_owned()
            })
        }
        Spec::ArgmaxCombine(combine) => {
            limits.positive("the number of candidates", combine.candidates)?;
            limits.holds(
                "the number of candidates",
                combine.candidates,
                fits_word(2 * combine.candidates),
                || "below 2^31, since their words are indexed in 32 bits".to_owned(),
            )
        }
    }
}

pub(crate) fn fits_word(value: usize) -> bool {
    u32::try_from(value).is_ok()
}

pub(crate) struct Limits<'a> {
    kernel: &'a str,
}

impl Limits<'_> {
    pub(crate) fn positive(&self, what: &'static str, value: usize) -> Result<(), KernelError> {
        if value > 0 { Ok(()) } else { Err(KernelError::Zero { kernel: self.kernel.to_owned(), what }) }
    }

    pub(crate) fn holds(
        &self,
        what: &'static str,
        value: usize,
        holds: bool,
        must: impl FnOnce() -> String,
    ) -> Result<(), KernelError> {
        if holds {
            return Ok(());
        }
        Err(KernelError::Dimension { kernel: self.kernel.to_owned(), what, value, must: must() })
    }

    pub(crate) fn finite(&self, what: &'static str, value: f32) -> Result<(), KernelError> {
        if value.is_finite() {
            return Ok(());
        }
        Err(KernelError::NotFinite { kernel: self.kernel.to_owned(), what, value })
    }

    /// Packets of a matrix are indexed in 32 bits.
    pub(crate) fn indexable(
        &self,
        what: &'static str,
        rows: usize,
        columns: usize,
        format: Format,
    ) -> Result<(), KernelError> {
        let packets = rows.saturating_mul(columns.next_multiple_of(format.group()) / packet_columns(format));
        let elements = packets.saturating_mul(packet_elements(format));
        self.holds(what, rows, fits_word(elements), || {
            format!(
                "small enough that a matrix of {columns} columns has fewer than 2^32 packets of 16 bytes: split the matrix"
            )
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
        if lines != LINES {
            self.holds("lines", lines, lines == 8, || format!("8 or {LINES}"))?;
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

    pub(crate) fn memory(&self, what: &'static str, bytes: usize, most: usize) -> Result<(), KernelError> {
        self.holds(what, bytes, bytes <= most, || format!("at most {most} bytes"))
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

    /// Rows of x do not overlap.
    pub(crate) fn pitch(&self, pitch: Option<usize>, width: usize) -> Result<(), KernelError> {
        let pitch = pitch.unwrap_or(width);
        self.holds("the row stride of x", pitch, pitch >= width, || format!("at least its width, {width}"))
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

    pub(crate) fn unary(&self, unary: UnaryOp) -> Result<(), KernelError> {
        match unary {
            UnaryOp::Activate(_) => Ok(()),
            UnaryOp::Softcap(cap) => self.cap(cap),
            UnaryOp::Scale(factor) => self.finite("the factor", factor),
        }
    }

    fn cap(&self, cap: f32) -> Result<(), KernelError> {
        if cap == 0.0 {
            return Err(KernelError::Zero { kernel: self.kernel.to_owned(), what: "the cap" });
        }
        self.finite("the cap", cap)
    }
}
