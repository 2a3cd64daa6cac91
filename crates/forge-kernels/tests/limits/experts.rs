//! Limits of mixtures of experts.

use crate::rejection;
use forge_kernels::Spec;
use forge_kernels::spec::{ExpertsLayout, ExpertsTileLayout, Kernel, Operand};
use forge_ops::{
    Activation, Epilogue, ExpertsCombine, ExpertsGroup, ExpertsInner, ExpertsSum, ExpertsTiles, Format,
    Gating, Groups, Route, Squares,
};

#[test]
fn rejects_impossible_experts() {
    let route = || Route { experts: 12, chosen: 3, ..forge_oracle::moe::PLAIN };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let inner = || Kernel {
        op: ExpertsInner {
            format: Format::Q4_0,
            experts: 12,
            chosen: 3,
            shared: 0,
            outputs: 64,
            inputs: 64,
            record: 4096,
            norm: None,
            bias: false,
            gating: Gating::Plain(Activation::Silu),
            route: None,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let sum = || Kernel {
        op: ExpertsSum {
            format: Format::Q4_0,
            experts: 12,
            chosen: 3,
            shared: 0,
            outputs: 64,
            inputs: 64,
            record: 4096,
            bias: false,
            epilogue: Epilogue::Add,
        },
        layout: ExpertsLayout { rows_per_simdgroup: 4, simdgroups: 2 },
    };
    let tiles = || Kernel {
        op: ExpertsTiles {
            format: Format::Q4_0,
            experts: 12,
            chosen: 3,
            shared: 0,
            outputs: 64,
            inputs: 64,
            record: 4096,
            bias: false,
            gating: Some(Gating::Plain(Activation::Silu)),
            tile_rows: 16,
        },
        layout: ExpertsTileLayout { operand: Operand::F16, tile_outputs: 64 },
    };
    let squares = |partials| Epilogue::AddSquares(Squares { partials, gain: true });
    let clamped = |limit, sharpness| Gating::Clamped { limit, sharpness };
    let cases = [
        Spec::Route(Route { experts: 0, ..route() }),
        Spec::Route(Route { experts: 1025, ..route() }),
        Spec::Route(Route { chosen: 13, ..route() }),
        Spec::Route(Route { experts: 64, chosen: 33, ..route() }),
        Spec::Route(Route { factor: f32::NAN, ..route() }),
        Spec::Route(Route { groups: groups(5, 1, 1), ..route() }),
        Spec::Route(Route { groups: groups(6, 1, 1), ..route() }),
        Spec::Route(Route { groups: groups(4, 2, 3), ..route() }),
        Spec::Route(Route { experts: 1024, shared: 1, ..route() }),
        Spec::Route(Route { shared: 30, ..route() }),
        Spec::Route(Route { gated: true, ..route() }),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { outputs: 7, ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { inputs: 1 << 24, outputs: 1 << 13, ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { record: 2048, ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { record: 4096 + 32, ..op })),
        Spec::ExpertsInner(inner().with_layout(|layout| ExpertsLayout { rows_per_simdgroup: 3, ..layout })),
        Spec::ExpertsInner(inner().with_layout(|layout| ExpertsLayout { simdgroups: 33, ..layout })),
        Spec::ExpertsInner(
            inner().with_op(|op| ExpertsInner { route: Some(Route { experts: 11, ..route() }), ..op }),
        ),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { shared: 4, ..op })),
        Spec::ExpertsInner(
            inner().with_op(|op| ExpertsInner { route: Some(Route { shared: 1, ..route() }), ..op }),
        ),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { gating: clamped(f32::NAN, 1.0), ..op })),
        Spec::ExpertsInner(inner().with_op(|op| ExpertsInner { gating: clamped(7.0, f32::INFINITY), ..op })),
        Spec::ExpertsSum(sum().with_op(|op| ExpertsSum {
            inputs: 1 << 31,
            experts: 3,
            outputs: 1,
            record: 1 << 31,
            ..op
        })),
        Spec::ExpertsSum(sum().with_layout(|layout| ExpertsLayout { rows_per_simdgroup: 33, ..layout })),
        Spec::ExpertsSum(
            sum()
                .with_op(|op| ExpertsSum { epilogue: squares(64), ..op })
                .with_layout(|layout| ExpertsLayout { simdgroups: 16, ..layout }),
        ),
        Spec::ExpertsSum(sum().with_op(|op| ExpertsSum { epilogue: squares(3), ..op })),
        Spec::ExpertsGroup(ExpertsGroup { experts: 1025, chosen: 3, tile_rows: 16 }),
        Spec::ExpertsGroup(ExpertsGroup { experts: 12, chosen: 3, tile_rows: 24 }),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { outputs: 63, ..op })),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { gating: Some(clamped(f32::NAN, 1.0)), ..op })),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { inputs: 1 << 24, outputs: 1 << 13, ..op })),
        Spec::ExpertsTiles(tiles().with_layout(|layout| ExpertsTileLayout { tile_outputs: 24, ..layout })),
        Spec::ExpertsTiles(tiles().with_op(|op| ExpertsTiles { tile_rows: 64, ..op })),
        Spec::ExpertsCombine(ExpertsCombine { chosen: 33, width: 64, adds: false }),
        Spec::ExpertsCombine(ExpertsCombine { chosen: 16, width: 1 << 30, adds: false }),
    ];
    let cases: Vec<String> = cases.into_iter().map(|spec| rejection("a", spec)).collect();
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of experts is 0; leave the kernel out of the plan
    kernel `a`: the number of experts is 1025, and must be at most 1024, 32 per lane
    kernel `a`: the number of experts per row is 13, and must be at most 12, one per lane
    kernel `a`: the number of experts per row is 33, and must be at most 32, one per lane
    kernel `a`: the factor is NaN: it has to be finite; check the configuration
    kernel `a`: the number of groups of experts is 5, and must be a divisor of the number of experts, 12, and at most 32, one per lane
    kernel `a`: the number of kept groups is 1, and must be at most 6, with at least 3 experts in them
    kernel `a`: the number of experts that score a group is 3, and must be 1 or 2, and at most the group's size, 3
    kernel `a`: the number of experts is 1025, and must be at most 1024, 32 per lane
    kernel `a`: the number of experts per row is 33, and must be at most 32, one per lane
    kernel `a`: the number of shared experts is 0, and must be at least 1, since a logit weights them
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: the number of outputs is 8192, and must be small enough that a matrix of 16777216 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: the stride of expert matrices in bytes is 2048, and must be a multiple of 64, and at least the size of a matrix, 2304
    kernel `a`: the stride of expert matrices in bytes is 4128, and must be a multiple of 64, and at least the size of a matrix, 2304
    kernel `a`: rows_per_simdgroup is 3, and must be even: gate and up rows alternate
    kernel `a`: simdgroups is 33, and must be at most 32
    kernel `a`: the number of routed experts is 11, and must be 12, with 3 experts per row of which 0 are shared
    kernel `a`: the number of shared experts is 4, and must be at most the number of experts per row, 3
    kernel `a`: the number of routed experts is 12, and must be 12, with 3 experts per row of which 0 are shared
    kernel `a`: the clamp limit of gate and up is NaN: it has to be finite; check the configuration
    kernel `a`: the sharpness of gates is inf: it has to be finite; check the configuration
    kernel `a`: the number of inputs is 2147483648, and must be small enough that the inputs of all experts of a row are indexed in 32 bits
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32: each lane writes one row
    kernel `a`: the number of outputs of a threadgroup is 64, and must be at most 32, which one simdgroup writes: use fewer simdgroups
    kernel `a`: the number of partial sums of squares is 3, and must be at least the number of threadgroups, 8
    kernel `a`: the number of experts is 1025, and must be at most 1024, 32 per lane
    kernel `a`: tile_rows is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the number of outputs is 63, and must be even: gate and up rows alternate
    kernel `a`: the clamp limit of gate and up is NaN: it has to be finite; check the configuration
    kernel `a`: the number of outputs is 8192, and must be small enough that a matrix of 16777216 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: tile_outputs is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 17408, and must be at most 16384 bytes: use a smaller tile
    kernel `a`: the number of experts per row is 33, and must be at most 32, one per lane
    kernel `a`: the width is 1073741824, and must be small enough that the elements of all experts of a row are indexed in 32 bits
    ");
}
