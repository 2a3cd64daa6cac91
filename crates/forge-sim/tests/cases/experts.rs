//! Specs of experts and routing, at sizes that fill no tile.

use super::{Case, Launch};
use forge_ir::Record;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsInnerKernel, ExpertsLayout, ExpertsTileLayout, Kernel, Operand};
use forge_ops::{
    Activation, DeferredNorm, Epilogue, ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles,
    Format, Gating, Groups, Route, Scores, Squares,
};

/// Stride in bytes between the matrices of two experts, with another matrix in between.
fn record(format: Format, matrix: [usize; 2]) -> usize {
    Record::of(&[(format, matrix), (Format::F16, [3, 32])]).bytes
}

/// Decode expert kernels with every way of routing, in a format, at sizes that fill no tile.
pub(crate) fn experts(format: Format) -> Vec<Case> {
    let route = Route {
        experts: 37,
        chosen: 5,
        scores: Scores::Softmax,
        correction: false,
        groups: None,
        renormalize: true,
        factor: 1.0,
        scale: false,
        shared: 0,
        gated: false,
    };
    let groups = Some(Groups { count: 6, kept: 3, best: 2 });
    let of_groups = Route { experts: 42, correction: true, scores: Scores::Sigmoid, groups, ..route };
    let scaled = Route { renormalize: false, scale: true, correction: true, factor: 2.5, ..route };
    let inner = |norm, route: Option<Route>| Kernel {
        op: ExpertsInner {
            format,
            experts: 7,
            chosen: 3,
            shared: 0,
            outputs: 22,
            inputs: 50,
            record: record(format, [22, 50]),
            norm,
            bias: false,
            gating: Gating::Plain(Activation::Silu),
            route: route.map(|route| Route { experts: 7, chosen: 3, ..route }),
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let sum = |epilogue| Kernel {
        op: ExpertsSum {
            format,
            experts: 7,
            chosen: 3,
            shared: 0,
            outputs: 45,
            inputs: 22,
            record: record(format, [45, 22]),
            bias: false,
            epilogue,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let clamped = |inner: ExpertsInnerKernel| {
        inner.with_op(|op| ExpertsInner {
            bias: true,
            gating: Gating::Clamped { limit: 0.5, sharpness: 1.702 },
            ..op
        })
    };
    let biased = |epilogue| sum(epilogue).with_op(|op| ExpertsSum { bias: true, ..op });
    let norm = Some(DeferredNorm { partials: 40, epsilon: 1e-5 });
    let left = |gain| Epilogue::AddSquares(Squares { partials: 40, gain });
    let several = || vec![Launch::rows(3, 2)];
    vec![
        Case { spec: Spec::Route(of_groups), launches: several() },
        Case { spec: Spec::Route(scaled), launches: several() },
        Case { spec: Spec::ExpertsInner(inner(None, None)), launches: several() },
        Case { spec: Spec::ExpertsInner(inner(norm, Some(route))), launches: several() },
        Case { spec: Spec::ExpertsInner(inner(None, Some(scaled))), launches: several() },
        Case { spec: Spec::ExpertsSum(sum(Epilogue::Store)), launches: several() },
        Case { spec: Spec::ExpertsSum(sum(Epilogue::Add)), launches: several() },
        Case { spec: Spec::ExpertsSum(sum(left(true))), launches: several() },
        Case { spec: Spec::ExpertsSum(sum(left(false))), launches: several() },
        Case { spec: Spec::ExpertsInner(clamped(inner(None, None))), launches: several() },
        Case { spec: Spec::ExpertsInner(clamped(inner(norm, Some(route)))), launches: several() },
        Case { spec: Spec::ExpertsSum(biased(Epilogue::Add)), launches: several() },
        Case { spec: Spec::ExpertsSum(biased(left(true))), launches: several() },
    ]
}

/// Expert kernels with shared experts, and with group-limited fused routing.
pub(crate) fn shared_experts(format: Format) -> Vec<Case> {
    let route = Route {
        experts: 42,
        chosen: 5,
        scores: Scores::Sigmoid,
        correction: true,
        groups: Some(Groups { count: 6, kept: 3, best: 2 }),
        renormalize: true,
        factor: 2.5,
        scale: false,
        shared: 2,
        gated: true,
    };
    let ungated = Route { experts: 37, groups: None, shared: 1, gated: false, ..route };
    let of_softmax = Route { scores: Scores::Softmax, correction: false, renormalize: false, ..ungated };
    let inner = |norm, route: Route| Kernel {
        op: ExpertsInner {
            format,
            experts: route.experts + route.shared,
            chosen: route.routes(),
            shared: route.shared,
            outputs: 22,
            inputs: 50,
            record: record(format, [22, 50]),
            norm,
            bias: false,
            gating: Gating::Plain(Activation::Silu),
            route: Some(route),
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let norm = Some(DeferredNorm { partials: 40, epsilon: 1e-5 });
    let several = || vec![Launch::rows(3, 2)];
    vec![
        Case { spec: Spec::Route(route), launches: several() },
        Case { spec: Spec::Route(of_softmax), launches: several() },
        // Four launches of one row: the selected groups depend on the group scores only in some of them.
        Case {
            spec: Spec::ExpertsInner(inner(norm, route)),
            launches: [several(), several(), several(), several()].concat(),
        },
        Case { spec: Spec::ExpertsInner(inner(None, ungated)), launches: several() },
        Case { spec: Spec::ExpertsInner(inner(norm, of_softmax)), launches: several() },
    ]
}

/// Prefill expert kernels in a format, at sizes that fill no tile. An expert has one or two tiles.
pub(crate) fn experts_by_tiles(format: Format, gatings: &[Gating]) -> Vec<Case> {
    let tiles = |outputs, inputs, gating, operand| {
        let (experts, chosen) = if outputs == 22 { (3, 2) } else { (12, 1) };
        let bias = outputs == 22;
        let (tile_rows, tile_outputs) = (16, 16);
        let spec = Kernel {
            op: ExpertsTiles {
                format,
                experts,
                chosen,
                shared: 0,
                outputs,
                inputs,
                record: record(format, [outputs, inputs]),
                bias,
                gating,
                tile_rows,
            },
            layout: ExpertsTileLayout { operand, tile_outputs },
        };
        Case { spec: Spec::ExpertsTiles(spec), launches: vec![Launch::rows(28, 27)] }
    };
    let mut cases = vec![tiles(22, 33, None, Operand::F32), tiles(32, 64, None, Operand::F16)];
    cases.extend(gatings.iter().map(|gating| tiles(22, 50, Some(*gating), Operand::F32)));
    cases
}

/// Grouping of rows by expert. An expert has two tiles or, with many experts, one or none.
pub(crate) fn group(experts: usize, chosen: usize, rows: u32) -> Case {
    Case {
        spec: Spec::ExpertsGroup(ExpertsGroup { experts, chosen, tile_rows: 16 }),
        launches: vec![Launch::rows(rows, rows - 1)],
    }
}

/// Grouping, and the weighted sum of expert outputs, at sizes that fill no tile.
pub(crate) fn grouped() -> Vec<Case> {
    let join = |width, adds| Case {
        spec: Spec::ExpertsCombine(ExpertsCombine { chosen: 3, width, adds }),
        launches: vec![Launch::rows(3, 2)],
    };
    vec![group(3, 2, 28), group(1, 1, 17), join(140, true), join(20, false)]
}
