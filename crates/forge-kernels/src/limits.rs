//! Validates specs. A spec that passes renders.

use crate::context::{packet_columns, packet_elements};
use crate::error::KernelError;
use crate::spec::Spec;
use crate::support;
use forge_ops::{Argmax, Format, Function, Sample, UnaryOp};

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
        Spec::Rope(rope) => limits.rope_heads(rope),
        Spec::Append(append) => limits.append(append),
        Spec::RopeAppend(rope) => limits.rope_append(rope),
        Spec::AttendSplit(attend) => limits.attend(attend, true),
        Spec::AttendTiled(attend) => limits.attend(attend, false),
        Spec::AttendCombine(combine) => limits.attend_combine(combine),
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

/// The limits that all kernels share. Families add their own.
pub(crate) struct Limits<'a> {
    pub(crate) kernel: &'a str,
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

    pub(crate) fn memory(&self, what: &'static str, bytes: usize, most: usize) -> Result<(), KernelError> {
        self.holds(what, bytes, bytes <= most, || format!("at most {most} bytes"))
    }

    /// Rows of x do not overlap.
    pub(crate) fn pitch(&self, pitch: Option<usize>, width: usize) -> Result<(), KernelError> {
        let pitch = pitch.unwrap_or(width);
        self.holds("the row stride of x", pitch, pitch >= width, || format!("at least its width, {width}"))
    }

    pub(crate) fn unary(&self, unary: UnaryOp) -> Result<(), KernelError> {
        match unary {
            UnaryOp::Activate(_) => Ok(()),
            UnaryOp::Softcap(cap) => self.cap(cap),
            UnaryOp::Scale(factor) => self.finite("the factor", factor),
        }
    }

    pub(crate) fn cap(&self, cap: f32) -> Result<(), KernelError> {
        if cap == 0.0 {
            return Err(KernelError::Zero { kernel: self.kernel.to_owned(), what: "the cap" });
        }
        self.finite("the cap", cap)
    }
}
