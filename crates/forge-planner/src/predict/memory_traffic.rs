//! The bytes that a kernel reads and writes, for each kind of operand.

use crate::plan::{Field, FieldKind, Plan};
use crate::predict::amounts::{Amounts, Experts, experts};
use forge_kernels::{Instance, Spec};
use forge_ops::{
    BLOCK, ExpertsGroup, ExpertsTiles, Format, MlaAppend, MlaAttention, MlaPrepare, PlaneElement, Prologue,
};

/// Suffixes of a matrix's planes.
const PLANES: [&str; 3] = ["_values", "_codes", "_scales"];

/// A step whose bytes are counted.
pub(super) struct Counted<'a> {
    pub(super) plan: &'a Plan,
    pub(super) instance: &'a Instance,
    pub(super) amounts: Amounts,
}

impl Counted<'_> {
    /// Whether the kernel has a buffer of this name, or planes with this prefix.
    pub(super) fn takes(&self, parameter: &str) -> bool {
        let planes = |name: &str| name.strip_prefix(parameter).is_some_and(|rest| PLANES.contains(&rest));
        self.instance.decl.buffers.iter().any(|buffer| buffer.name == parameter || planes(&buffer.name))
    }

    /// Weight bytes read: for an embedding table the looked-up rows, otherwise the whole weight once.
    pub(super) fn field(&self, parameter: &str, field: &Field) -> u64 {
        match (field.kind, &self.instance.spec) {
            (FieldKind::Matrix { format, columns, .. }, Spec::Embed(_)) => {
                self.amounts.rows * row_bytes(format, columns)
            }
            // GEMM kernels read whole blocks, including the padding of the last.
            (FieldKind::Matrix { format, rows, columns }, Spec::Linear(linear))
                if !linear.layout.rows.is_decode() =>
            {
                rows as u64 * row_bytes(format, columns.next_multiple_of(BLOCK))
            }
            (FieldKind::Matrix { format, rows, columns }, _) => rows as u64 * row_bytes(format, columns),
            // Only experts that a row uses are read.
            (FieldKind::Experts { format, rows, columns, .. }, spec) => {
                let (read, _) = self.experts_read(spec).unwrap_or((1, 1));
                let of_tiles = matches!(spec, Spec::ExpertsTiles(_));
                let columns = if of_tiles { columns.next_multiple_of(BLOCK) } else { columns };
                rows as u64 * read * row_bytes(format, columns)
            }
            (FieldKind::Vector { width }, spec) => {
                let (read, all) = self.experts_read(spec).filter(|_| parameter == "bias").unwrap_or((1, 1));
                width as u64 / all * read * 4
            }
        }
    }

    /// Number of experts that are read, and of all experts. Assumes that rows choose different experts, the
    /// maximum.
    pub(super) fn experts_read(&self, spec: &Spec) -> Option<(u64, u64)> {
        let Experts { free, shared, .. } = experts(spec)?;
        Some((self.amounts.chosen + shared as u64, (free + shared) as u64))
    }

    /// Positions of keys, or of values, that are read and written.
    pub(super) fn positions(&self) -> (u64, u64) {
        match &self.instance.spec {
            Spec::RopeAppend(_) | Spec::Append(_) | Spec::MlaAppend(_) => (0, self.amounts.rows),
            // A row's own key and value are written to the cache and used without being read back.
            Spec::AttendSplit(attend) if attend.op.appends() => {
                (self.amounts.distinct_positions.saturating_sub(self.amounts.rows), self.amounts.rows)
            }
            Spec::MlaAttention(attend) if attend.prologue.is_some() => {
                (self.amounts.distinct_positions.saturating_sub(self.amounts.rows), self.amounts.rows)
            }
            Spec::AttendSplit(_) | Spec::AttendTiled(_) | Spec::MlaAttention(_) => {
                (self.amounts.distinct_positions, 0)
            }
            // Its rows are positions.
            Spec::MlaLoadLatents(_) => (self.amounts.rows, 0),
            _ => (0, 0),
        }
    }

    /// Elements of a recurrent state that are read and written. At position 0 nothing is read.
    pub(super) fn recurrent_state(&self, parameter: &str, elements: u64) -> (u64, u64) {
        let before = self.amounts.before;
        // Conv state is a ring: the row's own entry is written, the others are read.
        let conv_state = |taps: usize, written_rows: u64| {
            let (taps, width) = (taps as u64, elements / taps as u64);
            (before.min(taps - 1) * width, written_rows.min(taps) * width)
        };
        let of_slot = match (&self.instance.spec, parameter) {
            (Spec::Convolve(convolve), _) => conv_state(convolve.taps, self.amounts.rows),
            (Spec::DeltaStep(step), "conv_state") => conv_state(step.taps, 1),
            (Spec::DeltaRule(_) | Spec::DeltaChunks(_) | Spec::DeltaStep(_), _) => {
                (if before > 0 { elements } else { 0 }, elements)
            }
            _ => (0, 0),
        };
        // Its rows belong to different slots.
        let slots = if matches!(self.instance.spec, Spec::DeltaStep(_)) { self.amounts.rows } else { 1 };
        (slots * of_slot.0, slots * of_slot.1)
    }

    /// Scratch bytes that are read and written.
    pub(super) fn scratch(&self, parameter: &str, scratch: usize) -> (u64, u64) {
        let all = self.amounts.rows * self.plan.scratch[scratch].width as u64 * 4;
        let of_rows = |numbers: usize| self.amounts.rows * numbers as u64 * 4;
        match (&self.instance.spec, parameter) {
            (spec, _) if spec.adds_to(parameter) => (all, all),
            // If routing is a separate step, only the expert indices of the routes are read here.
            (Spec::ExpertsInner(inner), "routes") if inner.op.route.is_none() => (all / 2, 0),
            (Spec::ExpertsGroup(_), "routes") => (all / 2, 0),
            // All possible tiles; their number depends on the rows.
            (Spec::ExpertsGroup(group), "tiles") => (0, group.tiles(self.amounts.rows as usize) as u64 * 12),
            (Spec::ExpertsTiles(tiles), "tiles") => {
                let ExpertsTiles { experts, chosen, shared, tile_rows, .. } = tiles.op;
                // An empty tile is read only up to its pair count. Assumes that rows choose different
                // experts.
                let (pairs, free) = (self.amounts.rows as usize * (chosen - shared), experts - shared);
                let (each, more) = (pairs / free, pairs % free);
                let filled = more * (each + 1).div_ceil(tile_rows)
                    + (free - more) * each.div_ceil(tile_rows)
                    + shared * (self.amounts.rows as usize).div_ceil(tile_rows);
                let all = ExpertsGroup { experts, chosen, tile_rows }.tiles(self.amounts.rows as usize);
                (4 * all as u64 + 8 * filled as u64, 0)
            }
            // The combine step reads the weights of the routes, not the expert indices.
            (Spec::ExpertsCombine(_), "routes") => (all / 2, 0),
            (spec, _) if spec.continues_previous(parameter) => {
                (if self.amounts.positions_before_tile > 0 { all } else { 0 }, all)
            }
            (Spec::MlaAttentionExpanded(attend), "q") => (of_rows(attend.op.heads * attend.op.keys), 0),
            (Spec::MlaAttentionExpanded(_), "keys" | "k_rope" | "values") => {
                (self.amounts.distinct_positions * self.plan.scratch[scratch].width as u64 * 4, 0)
            }
            // One split writes the result; several write partial results for the combine step.
            (Spec::AttendSplit(attend), "partials") if self.amounts.splits > 1 => {
                (0, self.partial_bytes(attend.op.query_heads, attend.op.width))
            }
            (Spec::MlaAttention(attend), "partials") if self.amounts.splits > 1 => {
                (0, self.partial_bytes(attend.heads, attend.width))
            }
            (Spec::AttendSplit(_) | Spec::MlaAttention(_), "partials") => (0, 0),
            (Spec::AttendSplit(_) | Spec::MlaAttention(_), "heads" | "quantized_heads")
                if self.amounts.splits > 1 =>
            {
                (0, 0)
            }
            // The step that writes the final result reads the gates.
            (Spec::AttendSplit(_), "gates") if self.amounts.splits > 1 => (0, 0),
            (Spec::AttendSplit(attend) | Spec::AttendTiled(attend), "gates") => {
                (of_rows(attend.op.query_heads * attend.op.width), 0)
            }
            (Spec::AttendCombine(combine), "gates") => {
                (of_rows(combine.op.query_heads * combine.op.width), 0)
            }
            (Spec::RopeAppend(rope), "qkv") => {
                let heads = rope.query_heads + rope.kv_source.cached_heads(rope.key_heads);
                (of_rows(heads * rope.width), 0)
            }
            (Spec::AttendSplit(attend), "qkv") => {
                let cached = |prologue: &Prologue| prologue.kv_source.cached_heads(attend.op.key_heads);
                let heads = attend.op.query_heads + attend.op.prologue.as_ref().map_or(0, cached);
                (of_rows(heads * attend.op.width), 0)
            }
            // A column range of wider rows.
            (Spec::Linear(linear), "x") => (of_rows(linear.op.inputs), 0),
            (Spec::Quantize(quantize), "x") => (of_rows(quantize.width), 0),
            (Spec::Linear(linear), "factors") => (of_rows(linear.op.outputs), 0),
            (Spec::RmsNorm(norm), "x") => (of_rows(norm.parts * norm.width), 0),
            (Spec::PerHeadLinear(each), "x") => {
                (of_rows(each.op.heads * if each.op.transposed { each.op.rows } else { each.op.columns }), 0)
            }
            (
                Spec::MlaAppend(MlaAppend {
                    width, rope_width, prepare: Some(MlaPrepare { heads, .. }), ..
                })
                | Spec::MlaAttention(MlaAttention { heads, width, rope_width, prologue: Some(_), .. }),
                "queries" | "latent" | "key",
            ) => match parameter {
                "queries" => (of_rows(heads * rope_width), 0),
                "latent" => (of_rows(*width), 0),
                _ => (of_rows(*rope_width), 0),
            },
            (Spec::SliceColumns(take), "x") => (self.amounts.rows * take.width as u64 * 4, 0),
            (Spec::Convolve(convolve), "x") => (self.amounts.rows * convolve.width as u64 * 4, 0),
            (Spec::DeltaRule(rule), "inputs") => (of_rows(rule.inputs() - rule.channels()), 0),
            // Gates are read by the step that normalizes the heads.
            (Spec::DeltaChunks(chunks), "inputs") => (of_rows(2 * chunks.op.rule.heads), 0),
            (Spec::GatedRmsNorm(through), "inputs") => (of_rows(through.heads * through.values), 0),
            (Spec::AttendCombine(combine), "partials") => {
                (self.partial_bytes(combine.op.query_heads, combine.op.width), 0)
            }
            _ if self
                .instance
                .decl
                .buffers
                .iter()
                .any(|buffer| buffer.name == parameter && buffer.written) =>
            {
                (0, all)
            }
            _ => (all, 0),
        }
    }

    /// Output sums, a maximum and a denominator for every split of every head.
    fn partial_bytes(&self, heads: usize, width: usize) -> u64 {
        self.amounts.rows * self.amounts.splits * (heads * (width + 2)) as u64 * 4
    }
}

/// Bytes of a stored row that a kernel reads: 16-byte packets up to the row's columns, and the scales of
/// their groups. Padding beyond them is not read.
fn row_bytes(format: Format, columns: usize) -> u64 {
    let plane = |plane: &forge_ir::Plane| {
        let group = plane.per_group * plane.element.bytes();
        match plane.element {
            PlaneElement::F16 if plane.name == "scales" => columns.div_ceil(format.group()) * group,
            PlaneElement::U8 if plane.name == "scales" && format.group() == BLOCK => {
                columns.div_ceil(BLOCK) * group
            }
            _ => (columns * group).div_ceil(format.group()).next_multiple_of(16),
        }
    };
    format.planes().iter().map(plane).sum::<usize>() as u64
}
