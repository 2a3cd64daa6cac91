//! Limits of projections.

use crate::{common, rejection};
use forge_kernels::spec::{Kernel, Knobs, LinearLayout, Operand, Rows};
use forge_kernels::{KernelDecl, KernelError, Spec, render};
use forge_ops::{Activation, DeferredNorm, Epilogue, Format, Gating, InlineNorm, Linear, Squares, UnaryOp};

/// A projection of 64 by 64 with other knobs.
fn knobs(rows: Rows, epilogue: Epilogue, change: impl FnOnce(&mut Knobs)) -> Spec {
    let mut linear = common::linear(rows, Format::F32, 64, 64, epilogue);
    change(&mut linear.layout.knobs);
    Spec::Linear(linear)
}

#[test]
fn rejects_impossible_projections() {
    let gate = Epilogue::Gate(Gating::Plain(Activation::Silu));
    let squares = |partials| Epilogue::AddSquares(Squares { partials, gain: true });
    let norm = |partials, epsilon| Some(DeferredNorm { partials, epsilon });
    let plain = |rows, outputs, inputs| common::linear(rows, Format::Q4_0, outputs, inputs, Epilogue::Store);
    let one = || plain(Rows::One, 64, 64);
    let rejected = |linear| rejection("a", Spec::Linear(linear));
    let rejected_knobs =
        |rows, epilogue, change: fn(&mut Knobs)| rejection("a", knobs(rows, epilogue, change));
    let cases = [
        rejected(plain(Rows::One, 0, 64)),
        rejected(plain(Rows::One, 64, 0)),
        rejected(plain(Rows::One, 1 << 30, 4096)),
        rejected(plain(Rows::One, 7, 64).with_op(|op| Linear { epilogue: gate, ..op })),
        rejected(one().with_op(|op| Linear { unary: Some(UnaryOp::Scale(f32::INFINITY)), ..op })),
        rejected(one().with_op(|op| Linear { norm: norm(0, 1e-5), ..op })),
        rejected(one().with_op(|op| Linear { norm: norm(4, f32::NAN), ..op })),
        rejected(plain(Rows::Few, 64, 64).with_op(|op| Linear { norm: norm(4, 1e-5), ..op })),
        rejected(plain(Rows::Many, 64, 64).with_op(|op| Linear { epilogue: squares(64), ..op })),
        rejected(
            plain(Rows::Few, 64, 64)
                .with_op(|op| Linear { epilogue: Epilogue::Best { candidates: 1 << 16 }, ..op }),
        ),
        rejected(
            plain(Rows::Few, 64, 64).with_op(|op| Linear { epilogue: Epilogue::Multiply { of: 64 }, ..op }),
        ),
        rejected(
            plain(Rows::One, 64, 64).with_op(|op| Linear { epilogue: Epilogue::Multiply { of: 63 }, ..op }),
        ),
        rejected(one().with_op(|op| Linear { epilogue: squares(3), ..op })),
        rejected_knobs(Rows::One, gate, |knobs| knobs.rows_per_simdgroup = 3),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 0),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 33),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.split = 3),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.split = 0),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.simdgroups = 64),
        rejected_knobs(Rows::One, Epilogue::Store, |knobs| knobs.packets = 2),
        rejected_knobs(Rows::One, Epilogue::Best { candidates: 1 << 16 }, |knobs| {
            (knobs.rows_per_simdgroup, knobs.simdgroups) = (8, 8)
        }),
        rejected_knobs(Rows::Few, Epilogue::Store, |knobs| knobs.rows_per_simdgroup = 4),
        rejected_knobs(Rows::Few, Epilogue::Store, |knobs| {
            (knobs.rows_per_simdgroup, knobs.simdgroups) = (32, 16)
        }),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_rows = 24),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_outputs = 0),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.tile_outputs = 256),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| knobs.split = 4),
        rejected_knobs(Rows::Many, Epilogue::Store, |knobs| (knobs.tile_rows, knobs.split) = (64, 2)),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r"
    kernel `a`: the number of outputs is 0; leave the kernel out of the plan
    kernel `a`: the number of inputs is 0; leave the kernel out of the plan
    kernel `a`: the number of outputs is 1073741824, and must be small enough that a matrix of 4096 columns has fewer than 2^32 packets of 16 bytes: split the matrix
    kernel `a`: the number of outputs is 7, and must be even: gate and up rows alternate
    kernel `a`: the factor is inf: it has to be finite; check the configuration
    kernel `a`: the number of partial sums of squares is 0; leave the kernel out of the plan
    kernel `a`: epsilon is NaN: it has to be finite; check the configuration
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or MMA
    kernel `a`: the number of rows of x is 17, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or MMA
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or MMA
    kernel `a`: the number of rows of x is 2, and must be 1 for a deferred or inline norm, partial squares, argmax candidates, column factors or MMA
    kernel `a`: the number of factors is 63, and must be at least the number of outputs, 64
    kernel `a`: the number of partial sums of squares is 3, and must be at least the number of threadgroups, 16
    kernel `a`: rows_per_simdgroup is 3, and must be even: a simdgroup computes pairs of gate and up
    kernel `a`: rows_per_simdgroup is 0; leave the kernel out of the plan
    kernel `a`: rows_per_simdgroup is 33, and must be at most 32: each lane writes one row
    kernel `a`: split is 3, and must be a divisor of simdgroups, 2
    kernel `a`: split is 0; leave the kernel out of the plan
    kernel `a`: simdgroups is 64, and must be at most 32
    kernel `a`: packets is 2, and must be 1, or 2 if lanes have a second packet: a row has 16
    kernel `a`: the number of outputs of a threadgroup is 64, and must be at most 32, which one simdgroup writes: use fewer simdgroups
    kernel `a`: rows_per_simdgroup is 4, and must be 8, 16, 24 or 32: matrices are 8 by 8, and registers hold 4 rows of them
    kernel `a`: the threadgroup memory of rows_per_simdgroup and simdgroups is 32768, and must be at most 16384 bytes: reduce either
    kernel `a`: tile_rows is 24, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: tile_outputs is 0; leave the kernel out of the plan
    kernel `a`: tile_outputs is 256, and must be a multiple of 16, at most 128: 2 by 2 simdgroups of 8 by 8 matrices
    kernel `a`: split is 4, and must be 1 or 2 groups of four simdgroups
    kernel `a`: the threadgroup memory of tile_rows and tile_outputs is 36864, and must be at most 32768 bytes: use a smaller tile, or f16
    ");
}

/// Every spec within the limits renders, within the hardware's limits.
#[test]
fn specs_within_the_limits_render() {
    let mut seed = 1_u32;
    let mut below = |end: usize| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as usize % end
    };
    let mut rendered = [0; 7];
    for _ in 0..25_000 {
        let batches = [Rows::Two, Rows::Four, Rows::Eight, Rows::Sixteen];
        let rows = [Rows::One, batches[below(4)], batches[below(4)], Rows::Few, Rows::Many][below(5)];
        let is_decoded = !matches!(rows, Rows::Few | Rows::Many);
        let squares = Squares { partials: below(600), gain: below(2) == 0 };
        let gate = Epilogue::Gate(Gating::Plain(Activation::Silu));
        let epilogues = [
            Epilogue::Store,
            Epilogue::Add,
            gate,
            Epilogue::AddSquares(squares),
            Epilogue::Best { candidates: below(600) },
        ];
        let linear = Kernel {
            op: Linear {
                format: match rows {
                    Rows::Eight | Rows::Sixteen => [Format::Q4_0, Format::Q8_0, Format::Q4K][below(3)],
                    _ => Format::ALL[below(Format::ALL.len())],
                },
                outputs: [below(70), below(5000), 151_936][below(3)],
                inputs: [below(70), below(5000), 64 * below(80)][below(3)],
                norm: (below(3) == 0).then(|| DeferredNorm { partials: below(600), epsilon: 1e-5 }),
                own_norm: None,
                bias: below(2) == 0,
                unary: (below(4) == 0).then_some(UnaryOp::Softcap(30.0)),
                epilogue: epilogues[below(if is_decoded { 5 } else { 3 })],
                chooses: false,
            },
            layout: LinearLayout {
                rows,
                operand: [Operand::F32, Operand::F16][below(2)],
                knobs: Knobs {
                    rows_per_simdgroup: [below(10), 8, 16, 32][below(4)],
                    simdgroups: [below(34), 2, 4, 8][below(4)],
                    split: [below(9), 1, 2][below(3)],
                    packets: below(3),
                    tile_rows: 16 * below(10),
                    tile_outputs: 16 * below(10),
                    mma: matches!(rows, Rows::Eight | Rows::Sixteen) || below(4) == 0,
                },
                quantizes: below(8) == 0,
            },
        };
        let (own_norm, norm) = match linear.op.norm.filter(|_| is_decoded) {
            Some(norm) if below(2) == 0 => {
                (Some(InlineNorm { gain: below(2) == 0, epsilon: norm.epsilon, pitch: None }), None)
            }
            norm => (None, norm),
        };
        let linear = linear.with_op(|op| Linear { norm, own_norm, ..op });
        match render("layer_kernel", &Spec::Linear(linear)) {
            Ok(instance) => {
                assert!(instance.decl.threadgroup_bytes <= KernelDecl::MOST_THREADGROUP_BYTES, "{linear:?}");
                assert!(instance.decl.threads <= KernelDecl::MOST_THREADS, "{linear:?}");
                rendered[rows as usize] += 1;
            }
            Err(KernelError::Template { source, .. }) => panic!("{linear:?}: {source:#}"),
            Err(KernelError::Declaration { source, .. }) => panic!("{linear:?}: {source}"),
            Err(_) => {}
        }
    }
    assert!(rendered.iter().all(|&count| count > 100), "{rendered:?}");
}
