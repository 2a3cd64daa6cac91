//! Inputs of experts and routing.

use super::{Content, plane_of};
use crate::cases::Writer;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Route, Summed};

impl Writer {
    /// The contents of a buffer of an expert kernel.
    pub(super) fn of_experts(&mut self, spec: &Spec, name: &str, rows: usize) -> Content {
        match (spec, name) {
            (Spec::Route(it), "logits") => self.logits(rows, it.logits()),
            (Spec::Route(it), "routes") => Content::Unwritten(rows * 2 * it.routes() * 4),
            (Spec::Route(it), _) => self.logits(1, it.experts),
            (Spec::ExpertsInner(ExpertsInner { experts, .. }), "seats")
            | (Spec::ExpertsSum(ExpertsSum { experts, .. }), "seats")
            | (Spec::ExpertsTiles(ExpertsTiles { experts, .. }), "seats") => seats(*experts),
            (Spec::ExpertsInner(it), "routes") => match it.route {
                Some(_) => Content::Unwritten(rows * 2 * it.chosen * 4),
                None => self.routes(rows, it.experts, it.chosen),
            },
            (Spec::ExpertsInner(it), "logits") => {
                self.logits(rows, it.route.as_ref().map_or(0, Route::logits))
            }
            (Spec::ExpertsInner(it), "correction" | "scale") => {
                self.logits(1, it.route.as_ref().map_or(0, |route| route.experts))
            }
            (Spec::ExpertsInner(it), "x") => self.floats(rows * it.inputs),
            (Spec::ExpertsInner(it), "bias") => {
                // One gate of the last expert is no number.
                let first = (it.experts - 1) * it.outputs;
                let bias = |index| if index == first { f32::NAN } else { self.float() };
                Content::Words((0..it.experts * it.outputs).map(bias).map(f32::to_bits).collect())
            }
            (Spec::ExpertsInner(it), "squares") => {
                let partials = it.norm.map_or(0, |norm| norm.partials);
                Content::Words((0..partials).map(|_| self.float().abs().to_bits()).collect())
            }
            (Spec::ExpertsInner(it), "y") => Content::Unwritten(rows * it.chosen * it.outputs / 2 * 4),
            (Spec::ExpertsInner(it), _) => {
                let whole = self.plane(it.format, plane_of(name), it.experts * it.outputs, it.inputs);
                apart(whole, it.experts, it.record)
            }
            (Spec::ExpertsSum(it), "routes") => self.routes(rows, it.experts, it.chosen),
            (Spec::ExpertsSum(it), "x") => self.floats(rows * it.chosen * it.inputs),
            (Spec::ExpertsSum(it), "y") => match it.ending {
                Summed::Store => Content::Unwritten(rows * it.outputs * 4),
                Summed::Add | Summed::AddSquares(_) => self.floats(rows * it.outputs),
            },
            (Spec::ExpertsSum(it), "bias") => self.floats(it.experts * it.outputs),
            (Spec::ExpertsSum(it), "gain") => self.floats(it.outputs),
            (Spec::ExpertsSum(it), "gained") => Content::Unwritten(it.outputs * 4),
            (Spec::ExpertsSum(it), "squares_out") => match it.ending {
                Summed::AddSquares(squares) => Content::Unwritten(squares.partials * 4),
                Summed::Store | Summed::Add => Content::Unwritten(0),
            },
            (Spec::ExpertsSum(it), _) => {
                let whole = self.plane(it.format, plane_of(name), it.experts * it.outputs, it.inputs);
                apart(whole, it.experts, it.record)
            }
            (Spec::ExpertsGroup(it), "routes") => self.routes(rows, it.experts, it.chosen),
            (Spec::ExpertsGroup(it), "pairs") => Content::Unwritten(rows * it.chosen * 4),
            (Spec::ExpertsGroup(it), _) => Content::Unwritten(it.tiles(rows) * 12),
            (Spec::ExpertsTiles(it), "pairs") => Content::Words(grouped(it, rows).0),
            (Spec::ExpertsTiles(it), "tiles") => Content::Words(grouped(it, rows).1),
            (Spec::ExpertsTiles(it), "x") => {
                self.floats(rows * it.inputs * if it.gating.is_some() { 1 } else { it.chosen })
            }
            (Spec::ExpertsTiles(it), "bias") => self.floats(it.experts * it.outputs),
            (Spec::ExpertsTiles(it), "y") => Content::Unwritten(
                rows * it.chosen * it.outputs / if it.gating.is_some() { 2 } else { 1 } * 4,
            ),
            (Spec::ExpertsTiles(it), _) => {
                let whole = self.plane(it.format, plane_of(name), it.experts * it.outputs, it.inputs);
                apart(whole, it.experts, it.record)
            }
            (Spec::ExpertsJoin(it), "routes") => self.routes(rows, 2 * it.chosen, it.chosen),
            (Spec::ExpertsJoin(it), "each") => self.floats(rows * it.chosen * it.width),
            (Spec::ExpertsJoin(it), _) if it.adds => self.floats(rows * it.width),
            (Spec::ExpertsJoin(it), _) => Content::Unwritten(rows * it.width * 4),
            _ => unreachable!("{name} is of another family"),
        }
    }

    /// Routing scores with the maximum at the last expert, so that it is selected.
    fn logits(&mut self, rows: usize, experts: usize) -> Content {
        let best = |index: usize| index % experts == experts - 1;
        let logit = |index| if best(index) { 2.0 } else { self.float() };
        Content::Words((0..rows * experts).map(logit).map(f32::to_bits).collect())
    }

    /// Each row has experts of its own, the last ones first, and weights.
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

/// Expert cache slots in reverse order, except for the last expert, which rows use: nothing follows its matrix.
fn seats(experts: usize) -> Content {
    let last = experts as u32 - 1;
    Content::Words((0..last).rev().chain([last]).collect())
}

/// A plane of all experts' matrices with this stride, and sentinel values in between.
fn apart(plane: Content, experts: usize, record: usize) -> Content {
    let Content::Weights(plane) = plane else { return plane };
    let of_one = plane.len() / experts;
    let mut bytes = vec![0xff; (experts - 1) * record + of_one];
    for (to, from) in bytes.chunks_mut(record).zip(plane.chunks_exact(of_one)) {
        to[..of_one].copy_from_slice(from);
    }
    Content::Weights(bytes)
}

/// Pairs and tiles of those routes.
fn grouped(spec: &ExpertsTiles, rows: usize) -> (Vec<u32>, Vec<u32>) {
    let ExpertsTiles { experts, chosen, tile_rows, .. } = *spec;
    let (mut pairs, mut tiles) = (Vec::new(), Vec::new());
    for expert in 0..experts {
        let own: Vec<u32> = (0..rows * chosen)
            .filter(|pair| routed(*pair, experts) == expert)
            .map(|pair| pair as u32)
            .collect();
        for some in own.chunks(tile_rows) {
            tiles.extend([expert as u32, pairs.len() as u32, some.len() as u32]);
            pairs.extend(some);
        }
    }
    tiles.resize(3 * ExpertsGroup { experts, chosen, tile_rows }.tiles(rows), 0);
    (pairs, tiles)
}
