//! Tuning keys and layouts. A layout is the distribution of a kernel's work over threads. Kernels with equal
//! keys have the same layout, chosen by rule or measured. A [`Spec`] provides its key and layout, and accepts
//! another layout.
//!
//! There are keys for linear layers, for expert matrices and for attention. All other kernels have a single
//! layout.

use forge_kernels::Spec;
use forge_kernels::spec::{
    AttentionKnobs, AttentionLayout, ExpertsKnobs, ExpertsLayout, ExpertsTileLayout, Knobs, LinearKernel,
    Rows,
};
use forge_ops::{Attend, Epilogue, ExpertsInner, ExpertsSum, ExpertsTiles, Format, Linear};
use serde::{Deserialize, Deserializer, Serialize};

/// All properties that a layout is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "subject", rename_all = "snake_case")]
pub enum TuningKey {
    /// A linear layer.
    Projection(LinearKey),
    /// An expert matrix.
    Experts(ExpertsProduct),
    /// Attention over a KV cache.
    Attention(Attention),
}

/// Tuning key of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct LinearKey {
    /// Batch-size class of the kernel.
    pub rows: Rows,
    /// Format of the matrix.
    #[serde(deserialize_with = "format")]
    pub format: Format,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Whether each threadgroup writes a partial result: a sum of squares or an argmax candidate.
    pub writes_partials: bool,
}

/// Which matrix of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertMatrix {
    /// Gate and up.
    GateUp,
    /// Down.
    Down,
}

/// Tuning key of an expert matrix. Small-batch kernels may also serve one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ExpertsProduct {
    /// Which matrix.
    pub product: ExpertMatrix,
    /// Batch-size class of the kernel.
    pub rows: Rows,
    /// Format of the matrices.
    #[serde(deserialize_with = "format")]
    pub format: Format,
    /// Number of experts.
    pub experts: usize,
    /// Experts per row.
    pub chosen: usize,
    /// Rows of an expert's matrix.
    pub outputs: usize,
    /// Columns of an expert's matrix.
    pub inputs: usize,
    /// Whether each threadgroup writes a sum of squares.
    pub writes_partials: bool,
}

/// Tuning key of attention. The one-row kernel includes RoPE and append. Small-batch kernels may also serve
/// one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Attention {
    /// Batch-size class of the kernel.
    pub rows: Rows,
    /// Number of query heads.
    pub query_heads: usize,
    /// Number of KV heads.
    pub key_heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Format of the KV cache.
    #[serde(deserialize_with = "format")]
    pub cache: Format,
    /// Sliding window in positions, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
}

/// Layout of a kernel: the knobs for its kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Layout {
    /// Of a linear layer.
    Projection(Knobs),
    /// Of an expert matrix.
    Experts(ExpertsKnobs),
    /// Of attention.
    Attention(AttentionKnobs),
}

/// Deserializes a format by name.
fn format<'a, D: Deserializer<'a>>(from: D) -> Result<Format, D::Error> {
    let name = String::deserialize(from)?;
    Format::from_name(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown format {name}")))
}

impl LinearKey {
    /// Key of a linear layer.
    pub fn of(linear: &LinearKernel) -> LinearKey {
        let writes_partials = matches!(linear.op.epilogue, Epilogue::AddSquares(_) | Epilogue::Best { .. });
        let (Linear { format, outputs, inputs, .. }, rows) = (linear.op, linear.layout.rows);
        LinearKey { rows, format, outputs, inputs, writes_partials }
    }
}

impl ExpertsProduct {
    fn of_inner(inner: &ExpertsInner) -> ExpertsProduct {
        let ExpertsInner { format, experts, chosen, outputs, inputs, .. } = *inner;
        let rows = if inner.norm.is_some() || inner.route.is_some() { Rows::One } else { Rows::Few };
        let product = ExpertMatrix::GateUp;
        ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, writes_partials: false }
    }

    fn of_sum(sum: &ExpertsSum) -> ExpertsProduct {
        let ExpertsSum { format, experts, chosen, outputs, inputs, .. } = *sum;
        let writes_partials = matches!(sum.epilogue, Epilogue::AddSquares(_));
        let (product, rows) = (ExpertMatrix::Down, if writes_partials { Rows::One } else { Rows::Few });
        ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, writes_partials }
    }

    fn of_tiles(tiles: &ExpertsTiles) -> ExpertsProduct {
        let ExpertsTiles { format, experts, chosen, outputs, inputs, .. } = *tiles;
        let product = if tiles.gating.is_some() { ExpertMatrix::GateUp } else { ExpertMatrix::Down };
        let rows = Rows::Many;
        ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, writes_partials: false }
    }
}

impl Attention {
    fn of(attend: &Attend, rows: Rows) -> Attention {
        let Attend { query_heads, key_heads, width, cache, window, .. } = *attend;
        Attention { rows, query_heads, key_heads, width, cache, window }
    }
}

impl TuningKey {
    /// Key and layout of a kernel, if it has alternatives.
    pub fn of(spec: &Spec) -> Option<(TuningKey, Layout)> {
        Some(match spec {
            // Its layout follows from that of the kernel for one row.
            Spec::Linear(linear) if linear.layout.rows.of_decode_batch().is_some() => return None,
            Spec::Linear(linear) => {
                (TuningKey::Projection(LinearKey::of(linear)), Layout::Projection(linear.layout.knobs))
            }
            Spec::ExpertsInner(inner) => {
                let ExpertsLayout { rows_per_simdgroup, simdgroups } = inner.layout;
                let knobs = ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs: 1 };
                (TuningKey::Experts(ExpertsProduct::of_inner(&inner.op)), Layout::Experts(knobs))
            }
            Spec::ExpertsSum(sum) => {
                let ExpertsLayout { rows_per_simdgroup, simdgroups } = sum.layout;
                let knobs = ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs: 1 };
                (TuningKey::Experts(ExpertsProduct::of_sum(&sum.op)), Layout::Experts(knobs))
            }
            Spec::ExpertsTiles(tiles) => {
                let knobs = ExpertsKnobs {
                    rows_per_simdgroup: 1,
                    simdgroups: 4,
                    tile_outputs: tiles.layout.tile_outputs,
                };
                (TuningKey::Experts(ExpertsProduct::of_tiles(&tiles.op)), Layout::Experts(knobs))
            }
            Spec::AttendSplit(attend) => {
                let rows = if attend.op.prologue.is_some() { Rows::One } else { Rows::Few };
                (
                    TuningKey::Attention(Attention::of(&attend.op, rows)),
                    Layout::Attention(attend.layout.knobs),
                )
            }
            Spec::AttendTiled(attend) => (
                TuningKey::Attention(Attention::of(&attend.op, Rows::Many)),
                Layout::Attention(attend.layout.knobs),
            ),
            _ => return None,
        })
    }

    /// Batch-size class of the kernel.
    pub fn rows(&self) -> Rows {
        match self {
            TuningKey::Projection(product) => product.rows,
            TuningKey::Experts(product) => product.rows,
            TuningKey::Attention(attention) => attention.rows,
        }
    }

    /// All candidate layouts within the kernels' limits.
    pub fn tried(&self) -> Vec<Layout> {
        match *self {
            TuningKey::Projection(LinearKey { rows, format, inputs, writes_partials, .. }) => {
                Knobs::tried(rows, format, inputs, writes_partials)
                    .into_iter()
                    .map(Layout::Projection)
                    .collect()
            }
            TuningKey::Experts(ExpertsProduct { rows, writes_partials, .. }) => {
                ExpertsKnobs::tried(rows, writes_partials).into_iter().map(Layout::Experts).collect()
            }
            TuningKey::Attention(Attention { rows, query_heads, key_heads, width, cache, .. }) => {
                let tried = AttentionKnobs::tried(rows, query_heads, key_heads, width, cache);
                tried.into_iter().map(Layout::Attention).collect()
            }
        }
    }

    /// Description for tables.
    pub fn describe(&self) -> String {
        match self {
            TuningKey::Projection(LinearKey { rows, format, outputs, inputs, .. }) => {
                format!("{format} {outputs} × {inputs} {}", rows.name())
            }
            TuningKey::Experts(ExpertsProduct { rows, format, experts, chosen, outputs, inputs, .. }) => {
                format!("{format} {chosen} of {experts} {outputs} × {inputs} {}", rows.name())
            }
            TuningKey::Attention(Attention { rows, query_heads, key_heads, width, cache, window }) => {
                let window = window.map(|window| format!(" of {window}")).unwrap_or_default();
                format!("{cache} cache{window}, {query_heads} / {key_heads} × {width} {}", rows.name())
            }
        }
    }
}

impl Layout {
    /// Whether the layout uses MMA for a single row.
    pub fn uses_mma(&self) -> bool {
        match self {
            Layout::Projection(knobs) => knobs.mma,
            Layout::Attention(knobs) => knobs.mma,
            Layout::Experts(_) => false,
        }
    }

    /// The kernel with this layout; `None` if the layout is for another kind of kernel.
    pub fn apply_to(&self, spec: &Spec) -> Option<Spec> {
        Some(match (self, spec) {
            (Layout::Projection(knobs), Spec::Linear(kernel)) => Spec::Linear(kernel.with_knobs(*knobs)),
            (Layout::Experts(knobs), Spec::ExpertsInner(kernel)) => {
                Spec::ExpertsInner(kernel.with_layout(|_| experts_layout(knobs)))
            }
            (Layout::Experts(knobs), Spec::ExpertsSum(kernel)) => {
                Spec::ExpertsSum(kernel.with_layout(|_| experts_layout(knobs)))
            }
            (Layout::Experts(ExpertsKnobs { tile_outputs, .. }), Spec::ExpertsTiles(kernel)) => {
                let tile_outputs = *tile_outputs;
                Spec::ExpertsTiles(kernel.with_layout(|layout| ExpertsTileLayout { tile_outputs, ..layout }))
            }
            (Layout::Attention(knobs), Spec::AttendSplit(kernel)) => Spec::AttendSplit(
                kernel.clone().with_layout(|layout| AttentionLayout { knobs: *knobs, ..layout }),
            ),
            (Layout::Attention(knobs), Spec::AttendTiled(kernel)) => Spec::AttendTiled(
                kernel.clone().with_layout(|layout| AttentionLayout { knobs: *knobs, ..layout }),
            ),
            _ => return None,
        })
    }

    /// Suffix of a kernel's name.
    pub fn name(&self, rows: Rows) -> String {
        match self {
            Layout::Projection(knobs) => knobs.name(rows),
            Layout::Experts(knobs) => knobs.name(rows),
            Layout::Attention(knobs) => knobs.name(rows),
        }
    }

    /// Description for tables, limited to the knobs that matter for this batch-size class.
    pub fn describe(&self, rows: Rows) -> String {
        match (*self, rows) {
            (Layout::Projection(knobs), Rows::Many) => {
                format!("tiles of {} × {}, split {}", knobs.tile_rows, knobs.tile_outputs, knobs.split)
            }
            (Layout::Projection(Knobs { rows_per_simdgroup, simdgroups, split, packets, mma, .. }), _) => {
                let packets = if rows == Rows::One { format!(", {packets} packets") } else { String::new() };
                let mma = if mma { ", MMA" } else { "" };
                format!("{rows_per_simdgroup} rows, {simdgroups} simdgroups, split {split}{packets}{mma}")
            }
            (Layout::Experts(knobs), Rows::Many) => format!("tiles of {} outputs", knobs.tile_outputs),
            (Layout::Experts(knobs), _) => {
                format!("{} rows, {} simdgroups", knobs.rows_per_simdgroup, knobs.simdgroups)
            }
            (Layout::Attention(AttentionKnobs { tile, lines, .. }), Rows::Many) => {
                format!("{lines} query rows, tiles of {tile} positions")
            }
            (Layout::Attention(AttentionKnobs { simdgroups, mma: true, .. }), _) => {
                format!("{simdgroups} simdgroups, MMA")
            }
            (Layout::Attention(AttentionKnobs { simdgroups, heads_each, loads, .. }), _) => {
                format!("{simdgroups} simdgroups of {heads_each} heads, {loads} loads")
            }
        }
    }
}

/// The layout of a small-batch expert kernel with these knobs.
fn experts_layout(knobs: &ExpertsKnobs) -> ExpertsLayout {
    ExpertsLayout { rows_per_simdgroup: knobs.rows_per_simdgroup, simdgroups: knobs.simdgroups }
}
