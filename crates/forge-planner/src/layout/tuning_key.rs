//! What layouts are chosen by, and layouts: how a kernel's work is laid over threads. Kernels of one subject have the same layout,
//! by rule or as it was measured; a [`Spec`] says both of its kernel, and can be given another layout.
//!
//! A subject is of a product of a matrix, of one of experts, or of attention. Kernels of anything else have one layout.

use forge_ir::Format;
use forge_kernels::Spec;
use forge_kernels::spec::{
    Attend, AttentionKnobs, Epilogue, ExpertsInner, ExpertsKnobs, ExpertsSum, ExpertsTiles, Knobs, Linear,
    Rows, Summed,
};
use serde::{Deserialize, Deserializer, Serialize};

/// All that a layout is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "subject", rename_all = "snake_case")]
pub enum TuningKey {
    /// A product of a matrix with rows.
    Projection(LinearKey),
    /// A product of experts with rows.
    Experts(ExpertsProduct),
    /// Attention over keys and values.
    Attention(Attention),
}

/// A product of a matrix with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct LinearKey {
    /// How many rows it is made for.
    pub rows: Rows,
    /// Of the matrix.
    #[serde(deserialize_with = "format")]
    pub format: Format,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Whether something is left for each threadgroup: squares, or a candidate.
    pub leaves: bool,
}

/// Which product of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertMatrix {
    /// The first.
    GateUp,
    /// The last.
    Down,
}

/// A product of the matrices of a row's experts with it. What is made for few rows may serve one as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ExpertsProduct {
    /// Which.
    pub product: ExpertMatrix,
    /// How many rows it is made for.
    pub rows: Rows,
    /// Of the matrices.
    #[serde(deserialize_with = "format")]
    pub format: Format,
    /// Experts that there are.
    pub experts: usize,
    /// Experts of a row.
    pub chosen: usize,
    /// Rows of an expert's matrix.
    pub outputs: usize,
    /// Columns of it.
    pub inputs: usize,
    /// Whether something is left for each threadgroup.
    pub leaves: bool,
}

/// Attention. That of one row prepares it; what is made for few rows may serve one as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Attention {
    /// How many rows it is made for.
    pub rows: Rows,
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Of keys and values.
    #[serde(deserialize_with = "format")]
    pub cache: Format,
    /// Positions that a row sees, where it does not see all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
}

/// How a kernel is laid out: knobs of its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Layout {
    /// Of a product of a matrix.
    Projection(Knobs),
    /// Of a product of experts.
    Experts(ExpertsKnobs),
    /// Of attention.
    Attention(AttentionKnobs),
}

/// The format of that name.
fn format<'a, D: Deserializer<'a>>(from: D) -> Result<Format, D::Error> {
    let name = String::deserialize(from)?;
    Format::from_name(&name).ok_or_else(|| serde::de::Error::custom(format!("there is no format {name}")))
}

impl LinearKey {
    /// That of a projection.
    pub fn of(project: &Linear) -> LinearKey {
        let leaves = matches!(project.epilogue, Epilogue::AddSquares(_) | Epilogue::Best);
        let Linear { rows, format, outputs, inputs, .. } = *project;
        LinearKey { rows, format, outputs, inputs, leaves }
    }
}

impl ExpertsProduct {
    fn of_inner(inner: &ExpertsInner) -> ExpertsProduct {
        let ExpertsInner { format, experts, chosen, outputs, inputs, .. } = *inner;
        let rows = if inner.norm.is_some() || inner.route.is_some() { Rows::One } else { Rows::Few };
        let product = ExpertMatrix::GateUp;
        ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, leaves: false }
    }

    fn of_sum(sum: &ExpertsSum) -> ExpertsProduct {
        let ExpertsSum { format, experts, chosen, outputs, inputs, .. } = *sum;
        let leaves = matches!(sum.ending, Summed::AddSquares(_));
        let (product, rows) = (ExpertMatrix::Down, if leaves { Rows::One } else { Rows::Few });
        ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, leaves }
    }

    fn of_tiles(tiles: &ExpertsTiles) -> ExpertsProduct {
        let ExpertsTiles { format, experts, chosen, outputs, inputs, .. } = *tiles;
        let product = if tiles.gating.is_some() { ExpertMatrix::GateUp } else { ExpertMatrix::Down };
        let rows = Rows::Many;
        ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, leaves: false }
    }
}

impl Attention {
    fn of(attend: &Attend, rows: Rows) -> Attention {
        let Attend { query_heads, key_heads, width, cache, window, .. } = *attend;
        Attention { rows, query_heads, key_heads, width, cache, window }
    }
}

impl TuningKey {
    /// That of a kernel, and how it is laid out, if it could be otherwise.
    pub fn of(spec: &Spec) -> Option<(TuningKey, Layout)> {
        Some(match spec {
            Spec::Project(project) => {
                (TuningKey::Projection(LinearKey::of(project)), Layout::Projection(project.knobs))
            }
            Spec::ExpertsInner(inner) => {
                let ExpertsInner { rows_per_simdgroup, simdgroups, .. } = *inner;
                let knobs = ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs: 1 };
                (TuningKey::Experts(ExpertsProduct::of_inner(inner)), Layout::Experts(knobs))
            }
            Spec::ExpertsSum(sum) => {
                let ExpertsSum { rows_per_simdgroup, simdgroups, .. } = *sum;
                let knobs = ExpertsKnobs { rows_per_simdgroup, simdgroups, tile_outputs: 1 };
                (TuningKey::Experts(ExpertsProduct::of_sum(sum)), Layout::Experts(knobs))
            }
            Spec::ExpertsTiles(tiles) => {
                let knobs =
                    ExpertsKnobs { rows_per_simdgroup: 1, simdgroups: 4, tile_outputs: tiles.tile_outputs };
                (TuningKey::Experts(ExpertsProduct::of_tiles(tiles)), Layout::Experts(knobs))
            }
            Spec::AttendSplit(attend) => {
                let rows = if attend.prologue.is_some() { Rows::One } else { Rows::Few };
                (TuningKey::Attention(Attention::of(attend, rows)), Layout::Attention(attend.knobs))
            }
            Spec::AttendTiled(attend) => {
                (TuningKey::Attention(Attention::of(attend, Rows::Many)), Layout::Attention(attend.knobs))
            }
            _ => return None,
        })
    }

    /// How many rows it is made for.
    pub fn rows(&self) -> Rows {
        match self {
            TuningKey::Projection(product) => product.rows,
            TuningKey::Experts(product) => product.rows,
            TuningKey::Attention(attention) => attention.rows,
        }
    }

    /// The layouts that forge has for it, as far as kernels' limits allow.
    pub fn tried(&self) -> Vec<Layout> {
        match *self {
            TuningKey::Projection(LinearKey { rows, format, inputs, leaves, .. }) => {
                Knobs::tried(rows, format, inputs, leaves).into_iter().map(Layout::Projection).collect()
            }
            TuningKey::Experts(ExpertsProduct { rows, leaves, .. }) => {
                ExpertsKnobs::tried(rows, leaves).into_iter().map(Layout::Experts).collect()
            }
            TuningKey::Attention(Attention { rows, query_heads, key_heads, width, cache, .. }) => {
                let tried = AttentionKnobs::tried(rows, query_heads, key_heads, width, cache);
                tried.into_iter().map(Layout::Attention).collect()
            }
        }
    }

    /// What it is, for people.
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
    /// Whether it is one that wants matrix units for a row alone.
    pub fn wants_units(&self) -> bool {
        match self {
            Layout::Projection(knobs) => knobs.codes,
            Layout::Attention(knobs) => knobs.units,
            Layout::Experts(_) => false,
        }
    }

    /// The kernel, laid out so; nothing where it is of another subject.
    pub fn lay_out(&self, spec: &Spec) -> Option<Spec> {
        Some(match (self, spec) {
            (Layout::Projection(knobs), Spec::Project(project)) => {
                Spec::Project(Linear { knobs: *knobs, ..project.clone() })
            }
            (
                Layout::Experts(ExpertsKnobs { rows_per_simdgroup, simdgroups, .. }),
                Spec::ExpertsInner(inner),
            ) => {
                let (rows_per_simdgroup, simdgroups) = (*rows_per_simdgroup, *simdgroups);
                Spec::ExpertsInner(ExpertsInner { rows_per_simdgroup, simdgroups, ..inner.clone() })
            }
            (Layout::Experts(ExpertsKnobs { rows_per_simdgroup, simdgroups, .. }), Spec::ExpertsSum(sum)) => {
                let (rows_per_simdgroup, simdgroups) = (*rows_per_simdgroup, *simdgroups);
                Spec::ExpertsSum(ExpertsSum { rows_per_simdgroup, simdgroups, ..sum.clone() })
            }
            (Layout::Experts(ExpertsKnobs { tile_outputs, .. }), Spec::ExpertsTiles(tiles)) => {
                Spec::ExpertsTiles(ExpertsTiles { tile_outputs: *tile_outputs, ..tiles.clone() })
            }
            (Layout::Attention(knobs), Spec::AttendSplit(attend)) => {
                Spec::AttendSplit(Attend { knobs: *knobs, ..attend.clone() })
            }
            (Layout::Attention(knobs), Spec::AttendTiled(attend)) => {
                Spec::AttendTiled(Attend { knobs: *knobs, ..attend.clone() })
            }
            _ => return None,
        })
    }

    /// What it is, in a kernel's name.
    pub fn name(&self, rows: Rows) -> String {
        match self {
            Layout::Projection(knobs) => knobs.name(rows),
            Layout::Experts(knobs) => knobs.name(rows),
            Layout::Attention(knobs) => knobs.name(rows),
        }
    }

    /// What it is, for people: what matters for so many rows.
    pub fn describe(&self, rows: Rows) -> String {
        match (*self, rows) {
            (Layout::Projection(knobs), Rows::Many) => {
                format!("tiles of {} × {}, split {}", knobs.tile_rows, knobs.tile_outputs, knobs.split)
            }
            (Layout::Projection(Knobs { rows_per_simdgroup, simdgroups, split, packets, codes, .. }), _) => {
                let packets = if rows == Rows::One { format!(", {packets} packets") } else { String::new() };
                let codes = if codes { ", codes" } else { "" };
                format!("{rows_per_simdgroup} rows, {simdgroups} simdgroups, split {split}{packets}{codes}")
            }
            (Layout::Experts(knobs), Rows::Many) => format!("tiles of {} outputs", knobs.tile_outputs),
            (Layout::Experts(knobs), _) => {
                format!("{} rows, {} simdgroups", knobs.rows_per_simdgroup, knobs.simdgroups)
            }
            (Layout::Attention(AttentionKnobs { tile, lines, .. }), Rows::Many) => {
                format!("{lines} lines, tiles of {tile} positions")
            }
            (Layout::Attention(AttentionKnobs { simdgroups, units: true, .. }), _) => {
                format!("{simdgroups} simdgroups, matrix units")
            }
            (Layout::Attention(AttentionKnobs { simdgroups, heads_each, loads, .. }), _) => {
                format!("{simdgroups} simdgroups of {heads_each} heads, {loads} loads")
            }
        }
    }
}
