//! Inputs of experts and routing.

use super::{Content, plane};
use crate::cases::Writer;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsTilesKernel, Kernel};
use forge_ops::{Epilogue, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Route};
use forge_oracle::moe::{Routes, in_records};

impl Writer {
    /// The contents of a buffer of an expert kernel.
    pub(super) fn of_experts(&mut self, spec: &Spec, name: &str, rows: usize) -> Content {
        match (spec, name) {
            (Spec::Route(it), "logits") => self.logits(rows, it.logits()),
            (Spec::Route(it), "routes") => Content::Unwritten(rows * 2 * it.routes() * 4),
            (Spec::Route(it), _) => self.logits(1, it.experts),
            (Spec::ExpertsInner(Kernel { op: ExpertsInner { experts, .. }, .. }), "expert_slots")
            | (Spec::ExpertsSum(Kernel { op: ExpertsSum { experts, .. }, .. }), "expert_slots")
            | (Spec::ExpertsTiles(Kernel { op: ExpertsTiles { experts, .. }, .. }), "expert_slots") => {
                expert_slots(*experts)
            }
            (Spec::ExpertsInner(it), "routes") => match it.op.route {
                Some(_) => Content::Unwritten(rows * 2 * it.op.chosen * 4),
                None => self.routes(rows, it.op.experts, it.op.chosen),
            },
            (Spec::ExpertsInner(it), "logits") => {
                self.logits(rows, it.op.route.as_ref().map_or(0, Route::logits))
            }
            (Spec::ExpertsInner(it), "correction" | "scale") => {
                self.logits(1, it.op.route.as_ref().map_or(0, |route| route.experts))
            }
            (Spec::ExpertsInner(it), "x") => self.floats(rows * it.op.inputs),
            (Spec::ExpertsInner(it), "bias") => {
                // One gate of the last expert is NaN.
                let first = (it.op.experts - 1) * it.op.outputs;
                let bias = |index| if index == first { f32::NAN } else { self.float() };
                Content::Words((0..it.op.experts * it.op.outputs).map(bias).map(f32::to_bits).collect())
            }
            (Spec::ExpertsInner(it), "squares") => {
                let partials = it.op.norm.map_or(0, |norm| norm.partials);
                Content::Words((0..rows * partials).map(|_| self.float().abs().to_bits()).collect())
            }
            (Spec::ExpertsInner(it), "y") => Content::Unwritten(rows * it.op.chosen * it.op.outputs / 2 * 4),
            (Spec::ExpertsInner(it), _) => {
                let whole = plane(it.op.format, name, it.op.experts * it.op.outputs, it.op.inputs);
                apart(whole, it.op.experts, it.op.record)
            }
            (Spec::ExpertsSum(it), "routes") => self.routes(rows, it.op.experts, it.op.chosen),
            (Spec::ExpertsSum(it), "x") => self.floats(rows * it.op.chosen * it.op.inputs),
            (Spec::ExpertsSum(it), "y") => match it.op.epilogue {
                Epilogue::Store => Content::Unwritten(rows * it.op.outputs * 4),
                _ => self.floats(rows * it.op.outputs),
            },
            (Spec::ExpertsSum(it), "bias") => self.floats(it.op.experts * it.op.outputs),
            (Spec::ExpertsSum(it), "gain") => self.floats(it.op.outputs),
            (Spec::ExpertsSum(it), "gained") => Content::Unwritten(rows * it.op.outputs * 4),
            (Spec::ExpertsSum(it), "squares_out") => match it.op.epilogue {
                Epilogue::AddSquares(squares) => Content::Unwritten(rows * squares.partials * 4),
                _ => Content::Unwritten(0),
            },
            (Spec::ExpertsSum(it), _) => {
                let whole = plane(it.op.format, name, it.op.experts * it.op.outputs, it.op.inputs);
                apart(whole, it.op.experts, it.op.record)
            }
            (Spec::ExpertsGroup(it), "routes") => self.routes(rows, it.experts, it.chosen),
            (Spec::ExpertsGroup(it), "pairs") => Content::Unwritten(rows * it.chosen * 4),
            (Spec::ExpertsGroup(it), _) => Content::Unwritten(it.tiles(rows) * 12),
            (Spec::ExpertsTiles(it), "pairs") => Content::Words(grouped(it, rows)[0].clone()),
            (Spec::ExpertsTiles(it), "tiles") => Content::Words(grouped(it, rows)[1].clone()),
            (Spec::ExpertsTiles(it), "x") => {
                self.floats(rows * it.op.inputs * if it.op.gating.is_some() { 1 } else { it.op.chosen })
            }
            (Spec::ExpertsTiles(it), "bias") => self.floats(it.op.experts * it.op.outputs),
            (Spec::ExpertsTiles(it), "y") => Content::Unwritten(
                rows * it.op.chosen * it.op.outputs / if it.op.gating.is_some() { 2 } else { 1 } * 4,
            ),
            (Spec::ExpertsTiles(it), _) => {
                let whole = plane(it.op.format, name, it.op.experts * it.op.outputs, it.op.inputs);
                apart(whole, it.op.experts, it.op.record)
            }
            (Spec::ExpertsCombine(it), "routes") => self.routes(rows, 2 * it.chosen, it.chosen),
            (Spec::ExpertsCombine(it), "each") => self.floats(rows * it.chosen * it.width),
            (Spec::ExpertsCombine(it), _) if it.adds => self.floats(rows * it.width),
            (Spec::ExpertsCombine(it), _) => Content::Unwritten(rows * it.width * 4),
            _ => unreachable!("{name} is of another family"),
        }
    }

    /// Routing scores with the maximum at the last expert, so that it is selected.
    fn logits(&mut self, rows: usize, experts: usize) -> Content {
        let best = |index: usize| index % experts == experts - 1;
        let logit = |index| if best(index) { 2.0 } else { self.float() };
        Content::Words((0..rows * experts).map(logit).map(f32::to_bits).collect())
    }

    /// Distinct experts for each row, the last experts first, and their weights.
    fn routes(&mut self, rows: usize, experts: usize, chosen: usize) -> Content {
        let mut words = Vec::new();
        for row in 0..rows {
            words.extend((0..chosen).map(|place| routed(row * chosen + place, experts) as u32));
            words.extend((0..chosen).map(|_| self.float().to_bits()));
        }
        Content::Words(words)
    }
}

/// The expert of a (row, rank) pair: rows alternate.
fn routed(pair: usize, experts: usize) -> usize {
    experts - 1 - pair % experts
}

/// Expert cache slots in reverse order, except for the last expert, which rows use: nothing follows its
/// matrix.
fn expert_slots(experts: usize) -> Content {
    let last = experts as u32 - 1;
    Content::Words((0..last).rev().chain([last]).collect())
}

/// A plane of all experts' matrices with this stride, and sentinel values in between.
fn apart(plane: Content, experts: usize, record: usize) -> Content {
    let Content::Weights(plane) = plane else { return plane };
    Content::Weights(in_records(&plane, experts, record, false))
}

/// Pairs and tiles of those routes.
fn grouped(spec: &ExpertsTilesKernel, rows: usize) -> [Vec<u32>; 2] {
    let ExpertsTiles { experts, chosen, tile_rows, .. } = spec.op;
    let row = |row| (0..chosen).map(|place| (routed(row * chosen + place, experts), 0.0)).collect();
    Routes((0..rows).map(row).collect()).grouped(&ExpertsGroup { experts, chosen, tile_rows })
}
