//! Specs of routing and of expert kernels.

use forge_ir::Record;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsLayout, ExpertsTileLayout, Kernel, Operand};
use forge_ops::{
    Activation, DeferredNorm, Epilogue, ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles,
    Format, Gating, Groups, Route, Scores, Squares,
};

/// Ways of choosing experts.
pub(crate) fn routes() -> Vec<Route> {
    let plain = Route { experts: 128, chosen: 8, ..forge_oracle::moe::PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    vec![
        Route { experts: 5, chosen: 5, renormalize: false, factor: 2.5, scale: true, ..plain },
        Route { experts: 60, chosen: 4, scores: Scores::Sigmoid, ..plain },
        Route { correction: true, ..plain },
        Route { experts: 512, chosen: 16, scores: Scores::Sigmoid, correction: true, factor: 2.5, ..plain },
        Route {
            experts: 96,
            chosen: 6,
            groups: groups(8, 4, 2),
            scores: Scores::Sigmoid,
            correction: true,
            ..plain
        },
        Route { experts: 60, chosen: 3, groups: groups(6, 3, 1), renormalize: false, ..plain },
        Route { shared: 1, ..plain },
        Route { experts: 60, chosen: 4, shared: 4, gated: true, renormalize: false, ..plain },
        plain,
    ]
}

/// Stride in bytes between the matrices of two experts, with another matrix in between.
fn record(format: Format, matrix: [usize; 2]) -> usize {
    Record::of(&[(format, matrix), (Format::Q8_0, [50, 100])]).bytes
}

/// Every expert kernel.
pub(super) fn experts() -> Vec<Spec> {
    let mut specs: Vec<Spec> = routes().into_iter().map(Spec::Route).collect();
    let squares = |gain| Epilogue::AddSquares(Squares { partials: 64, gain });
    for format in Format::ALL.into_iter().filter(|format| format.takes(768)) {
        let plain = Gating::Plain(Activation::Silu);
        let clamped = Gating::Clamped { limit: 7.0, sharpness: 1.702 };
        for (norm, route, (bias, gating)) in [
            (None, None, (false, plain)),
            (None, None, (true, plain)),
            (None, None, (true, clamped)),
            (Some(DeferredNorm { partials: 64, epsilon: 1e-6 }), routes().pop(), (true, clamped)),
            (Some(DeferredNorm { partials: 64, epsilon: 1e-6 }), routes().pop(), (false, plain)),
            (
                Some(DeferredNorm { partials: 33, epsilon: 1e-6 }),
                Some(routes().swap_remove(3)),
                (false, clamped),
            ),
            (None, Some(routes().swap_remove(4)), (false, plain)),
            (None, Some(routes().swap_remove(8)), (false, plain)),
        ] {
            let shared = route.as_ref().map_or(0, |route| route.shared);
            let (experts, chosen) =
                route.as_ref().map_or((128, 8), |route| (route.experts + shared, route.routes()));
            specs.push(Spec::ExpertsInner(Kernel {
                op: ExpertsInner {
                    format,
                    experts,
                    chosen,
                    shared,
                    outputs: 100,
                    inputs: 768,
                    record: record(format, [100, 768]),
                    norm,
                    bias,
                    gating,
                    route,
                },
                layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
            }));
        }
        for (epilogue, bias) in
            [(Epilogue::Store, false), (Epilogue::Add, true), (squares(true), true), (squares(false), false)]
        {
            specs.push(Spec::ExpertsSum(Kernel {
                op: ExpertsSum {
                    format,
                    experts: 128,
                    chosen: 8,
                    shared: 0,
                    outputs: 100,
                    inputs: 768,
                    record: record(format, [100, 768]),
                    bias,
                    epilogue,
                },
                layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
            }));
        }
        for (outputs, gating, operand) in [
            (100, Some(plain), Operand::F32),
            (128, Some(clamped), Operand::F16),
            (100, None, Operand::F32),
            (64, None, Operand::F16),
        ] {
            specs.push(Spec::ExpertsTiles(Kernel {
                op: ExpertsTiles {
                    format,
                    experts: 128,
                    chosen: 8,
                    shared: 0,
                    outputs,
                    inputs: 768,
                    record: record(format, [outputs, 768]),
                    bias: outputs == 100,
                    gating,
                    tile_rows: 32,
                },
                layout: ExpertsTileLayout { operand, tile_outputs: 64 },
            }));
        }
    }
    for (experts, chosen, tile_rows) in [(1, 1, 16), (60, 4, 16), (512, 16, 32)] {
        specs.push(Spec::ExpertsGroup(ExpertsGroup { experts, chosen, tile_rows }));
    }
    for (width, adds) in [(100, false), (256, true)] {
        specs.push(Spec::ExpertsCombine(ExpertsCombine { chosen: 8, width, adds }));
    }
    specs
}
