//! Template contexts of the grouped expert GEMM.

use forge_ops::{BLOCK, Gating};
use serde::Serialize;

use crate::context::{Base, Tile, Weight};
use crate::moe::context::gating;
use crate::spec::ExpertsTilesKernel;
use forge_ops::{ExpertsCombine, ExpertsGroup};

#[derive(Serialize)]
pub(crate) struct GroupContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a ExpertsGroup,
    /// One per expert.
    threads: usize,
}

impl<'a> GroupContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsGroup) -> GroupContext<'a> {
        GroupContext { base, spec, threads: spec.experts.next_multiple_of(32) }
    }
}

#[derive(Serialize)]
pub(crate) struct TilesContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    weight: Weight,
    #[serde(flatten)]
    tile: Tile,
    experts: usize,
    chosen: usize,
    outputs: usize,
    inputs: usize,
    /// Stride of expert matrices, in bytes.
    record: usize,
    bias: bool,
    operand: crate::spec::Operand,
    /// Whether Metal 4 multiplies tensors.
    has_tensors: bool,
    /// Support function of the activation, or of the gated activation.
    gating: Option<&'static str>,
    /// Parameters of a clamped gate.
    limit: Option<f32>,
    sharpness: f32,
    /// Support function that loads 4 columns of x.
    load: &'static str,
    /// Bound argument of `load`, if any.
    bound: String,
    /// Whether the last tile has fewer outputs.
    ragged: bool,
}

impl<'a> TilesContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsTilesKernel) -> TilesContext<'a> {
        let (load, bound) = if spec.op.inputs.is_multiple_of(BLOCK) {
            ("load4_whole", String::new())
        } else if spec.op.inputs.is_multiple_of(4) {
            ("load4_guarded", format!(", {}u", spec.op.inputs))
        } else {
            ("load4_single", format!(", {}u", spec.op.inputs))
        };
        let clamp = match spec.op.gating {
            Some(Gating::Clamped { limit, sharpness }) => Some((limit, sharpness)),
            Some(Gating::Plain(_)) | None => None,
        };
        TilesContext {
            base,
            weight: Weight::of(spec.op.format, spec.op.inputs),
            tile: Tile::of([spec.op.tile_rows, spec.layout.tile_outputs], 1, spec.layout.operand),
            experts: spec.op.experts,
            chosen: spec.op.chosen,
            outputs: spec.op.outputs,
            inputs: spec.op.inputs,
            record: spec.op.record,
            bias: spec.op.bias,
            operand: spec.layout.operand,
            has_tensors: spec.has_tensors(),
            gating: spec.op.gating.map(gating),
            limit: clamp.map(|(limit, _)| limit),
            sharpness: clamp.map_or(0.0, |(_, sharpness)| sharpness),
            load,
            bound,
            ragged: !spec.op.outputs.is_multiple_of(spec.layout.tile_outputs),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct CombineContext<'a> {
    #[serde(flatten)]
    base: Base<'a>,
    #[serde(flatten)]
    spec: &'a ExpertsCombine,
    /// Assignment operator for y.
    assign: &'static str,
    threads: usize,
}

impl<'a> CombineContext<'a> {
    pub(crate) fn of(base: Base<'a>, spec: &'a ExpertsCombine) -> CombineContext<'a> {
        CombineContext { base, spec, assign: if spec.adds { "+=" } else { "=" }, threads: 128 }
    }
}
