//! What the templates of projections read.

use forge_ir::BLOCK;
use serde::Serialize;

use super::{Base, Weight};
use crate::spec::{Epilogue, Project, Rows};

/// Floats between rows of the tiles of `project/many`: a block and 4 that move neighbours to other banks.
pub(crate) const TILE_PITCH: usize = BLOCK + 4;

#[derive(Serialize)]
pub(super) struct ProjectContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a Project,
    #[serde(flatten)]
    weight: Weight,
    /// The support function that loads 4 columns of x.
    pub(super) load: &'static str,
    /// Its last argument, where it has a bound.
    bound: String,
    /// The support function of a gate.
    pub(super) activation: Option<&'static str>,
    /// How a result goes to y.
    assign: &'static str,
    rows_per_simdgroup: usize,
    simdgroups: usize,
    split: usize,
    tile_rows: usize,
    tile_outputs: usize,
    threads: usize,
    /// Outputs of a threadgroup.
    group_outputs: usize,
    /// Whether the last threadgroup has outputs past the last.
    ragged: bool,
    /// Floats between rows of a tile.
    pitch: usize,
    /// Floats of threadgroup memory.
    tile_floats: usize,
}

impl<'a> ProjectContext<'a> {
    pub(super) fn of(base: Base<'a>, spec: &'a Project) -> ProjectContext<'a> {
        let weight = Weight::of(spec.format, spec.inputs);
        let knobs = spec.knobs;
        // What is loaded of x at once: a packet's columns, or a block's.
        let piece = if spec.rows == Rows::Many { BLOCK } else { weight.columns };
        let (load, bound) = if spec.inputs.is_multiple_of(piece) {
            ("load4_whole", String::new())
        } else if spec.inputs.is_multiple_of(4) {
            ("load4_guarded", format!(", {}u", spec.inputs))
        } else {
            ("load4_single", format!(", {}u", spec.inputs))
        };
        let group_outputs = match spec.rows {
            Rows::One => knobs.rows_per_simdgroup * (knobs.simdgroups / knobs.split),
            Rows::Few => knobs.rows_per_simdgroup * knobs.simdgroups,
            Rows::Many => knobs.tile_outputs,
        };
        ProjectContext {
            base,
            spec,
            weight,
            load,
            bound,
            activation: match spec.epilogue {
                Epilogue::Gate(forge_ir::Activation::Silu) => Some("silu"),
                _ => None,
            },
            assign: if spec.epilogue == Epilogue::Add { "+=" } else { "=" },
            rows_per_simdgroup: knobs.rows_per_simdgroup,
            simdgroups: knobs.simdgroups,
            split: knobs.split,
            tile_rows: knobs.tile_rows,
            tile_outputs: knobs.tile_outputs,
            threads: 32 * knobs.simdgroups,
            group_outputs,
            ragged: !spec.outputs.is_multiple_of(group_outputs),
            pitch: TILE_PITCH,
            tile_floats: tile_floats(knobs.tile_rows, knobs.tile_outputs),
        }
    }
}

/// Floats of threadgroup memory that `project/many` needs: both tiles, or the results that take their place.
pub(crate) fn tile_floats(rows: usize, outputs: usize) -> usize {
    ((rows + outputs) * TILE_PITCH).max(rows * (outputs + 4))
}
