//! Limits of MLA kernels.

use crate::context::{DEFAULT_MEMORY, expanded_bytes};
use crate::error::KernelError;
use crate::limits::Limits;
use crate::spec::{MlaExpandedKernel, MlaExpandedLayout, Operand, PerHeadKernel, mla_attention_heads};
use forge_ops::Format;
use forge_ops::{MlaAppend, MlaAttention, MlaAttentionExpanded, MlaLoadLatents, MlaPrepare};

/// Maximum length of a cache line (latent and RoPE key): a lane holds 4 of each 128 channels in registers.
const LONGEST_LINE: usize = 1024;

/// Maximum rows of x that a threadgroup multiplies at once, limited by registers.
const MOST_TOGETHER: usize = 8;

impl Limits<'_> {
    pub(crate) fn per_head_linear(&self, each: &PerHeadKernel) -> Result<(), KernelError> {
        self.positive("the number of heads", each.op.heads)?;
        self.positive("the number of rows of a head's matrix", each.op.rows)?;
        self.positive("the number of columns of a head's matrix", each.op.columns)?;
        let all = each.op.heads.saturating_mul(each.op.rows);
        self.indexable("the number of rows of all heads", all, each.op.columns, each.op.format)?;
        let of_head = if each.op.transposed { each.op.rows } else { each.op.columns };
        let taken = each.op.heads.saturating_mul(of_head);
        self.holds("a row of x", each.op.pitch, each.op.pitch >= taken, || {
            format!("at least as wide as the inputs of all heads, {taken}")
        })?;
        self.holds(
            "the rows of x",
            each.layout.together,
            (1..=MOST_TOGETHER).contains(&each.layout.together),
            || format!("1 to {MOST_TOGETHER} at once, limited by registers"),
        )?;
        let most = if each.op.transposed { 32 } else { 4 };
        self.holds(
            "each",
            each.layout.each,
            each.layout.each.is_power_of_two() && each.layout.each <= most,
            || format!("a power of two, at most {most}"),
        )
    }

    pub(crate) fn mla_append(&self, append: &MlaAppend) -> Result<(), KernelError> {
        self.line(append.width, append.rope_width, append.cache)?;
        let Some(prepare) = &append.prepare else { return Ok(()) };
        self.prepare(prepare, append.width, append.rope_width)
    }

    pub(crate) fn mla_attention(&self, attend: &MlaAttention) -> Result<(), KernelError> {
        self.positive("the number of heads", attend.heads)?;
        self.line(attend.width, attend.rope_width, attend.cache)?;
        self.finite("the scale", attend.scale)?;
        let Some(prepare) = &attend.prologue else { return Ok(()) };
        self.holds(
            "the number of heads that are prepared",
            prepare.heads,
            prepare.heads == attend.heads,
            || format!("the number of heads, {}", attend.heads),
        )?;
        self.prepare(prepare, attend.width, attend.rope_width)?;
        let fits = prologue_fits(attend);
        self.holds("the width of a RoPE key", attend.rope_width, fits, || {
            format!(
                "small enough that a threadgroup's keys fit in {DEFAULT_MEMORY} bytes: use a separate append"
            )
        })
    }

    pub(crate) fn load_latents(&self, load: &MlaLoadLatents) -> Result<(), KernelError> {
        self.line(load.width, load.rope_width, load.cache)
    }

    pub(crate) fn attend_expanded(&self, attend: &MlaExpandedKernel) -> Result<(), KernelError> {
        let MlaAttentionExpanded { heads, keys, rope_width, values, queries_pitch, scale } = attend.op;
        let MlaExpandedLayout { operand, tile } = attend.layout;
        self.positive("the number of heads", heads)?;
        self.positive("the width of a key", keys)?;
        self.positive("the width of a RoPE key", rope_width)?;
        self.positive("the width of a value", values)?;
        self.finite("the scale", scale)?;
        let all = heads.saturating_mul(keys);
        self.holds("a row of queries", queries_pitch, queries_pitch >= all, || {
            format!("at least as wide as the queries of all heads, {all}")
        })?;
        self.holds("tile", tile, [8, 16, 32].contains(&tile), || "8, 16 or 32".to_owned())?;
        self.holds("tile", tile, matches!(operand, Operand::F32 | Operand::Ranged), || {
            "f32, not f16".to_owned()
        })?;
        let bytes = expanded_bytes(tile, keys.saturating_add(rope_width), values);
        self.memory("the threadgroup memory of a tile", bytes, DEFAULT_MEMORY)
    }

    fn line(&self, width: usize, rope_width: usize, cache: Format) -> Result<(), KernelError> {
        self.positive("the width of a latent", width)?;
        self.positive("the width of a RoPE key", rope_width)?;
        self.holds("the width of a RoPE key", rope_width, rope_width.is_multiple_of(2), || {
            "even, since RoPE rotates pairs of channels".to_owned()
        })?;
        let line = width.saturating_add(rope_width);
        self.holds("the width of a latent and a RoPE key", line, line <= LONGEST_LINE, || {
            format!("at most {LONGEST_LINE}, limited by registers")
        })?;
        let plain = matches!(cache, Format::F32 | Format::F16);
        self.holds("the width of a latent and a RoPE key", line, plain, || {
            format!("cached as f32 or f16, not {cache}")
        })
    }

    fn prepare(&self, prepare: &MlaPrepare, width: usize, rope_width: usize) -> Result<(), KernelError> {
        let columns = prepare.columns;
        self.positive("the number of heads", prepare.heads)?;
        self.finite("epsilon", prepare.epsilon)?;
        self.positive("the number of rotated pairs", prepare.rope.frequencies.len())?;
        self.rope(&prepare.rope, rope_width)?;
        let queries = columns.q_rope_first.saturating_add(prepare.heads.saturating_mul(rope_width));
        self.holds("a row of queries", columns.queries_pitch, columns.queries_pitch >= queries, || {
            format!("at least {queries}, the end of the RoPE queries")
        })?;
        let latent = columns.latent_first.saturating_add(width);
        self.holds("a row of latents", columns.latent_pitch, columns.latent_pitch >= latent, || {
            format!("at least {latent}, the end of the latent")
        })?;
        let key = columns.key_first.saturating_add(rope_width);
        self.holds("a row of keys", columns.key_pitch, columns.key_pitch >= key, || {
            format!("at least {key}, the end of the key")
        })
    }
}

/// Whether decode attention can prepare its own queries and cache line: they fit in threadgroup memory.
pub fn prologue_fits(attend: &MlaAttention) -> bool {
    let [each, simdgroups, _] = mla_attention_heads(attend);
    let line = (attend.width + attend.rope_width).next_multiple_of(128);
    (each * simdgroups * attend.rope_width + line + simdgroups) * 4 <= DEFAULT_MEMORY
}
