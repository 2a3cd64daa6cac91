//! Specs of projections, in every format, with every epilogue and batch size.

use super::formats;
use forge_kernels::spec::{Kernel, Knobs, LinearKernel, LinearLayout, Operand, Rows};
use forge_kernels::{Family, Spec};
use forge_ops::{Activation, DeferredNorm, Epilogue, Format, Gating, InlineNorm, Linear, Squares, UnaryOp};

/// A projection with the knobs of an M4.
pub(crate) fn linear(
    rows: Rows,
    format: Format,
    outputs: usize,
    inputs: usize,
    epilogue: Epilogue,
) -> LinearKernel {
    let writes_partials = matches!(epilogue, Epilogue::AddSquares(_) | Epilogue::Best { .. });
    let knobs = Knobs::for_chip(Family::Apple9, 10, rows, format, [outputs, inputs], writes_partials, false);
    Kernel {
        op: Linear {
            format,
            outputs,
            inputs,
            norm: None,
            own_norm: None,
            bias: false,
            unary: None,
            epilogue,
            chooses: false,
        },
        layout: LinearLayout { rows, operand: Operand::F32, knobs, quantizes: false },
    }
}

/// Projections of every kind; some share rows between simdgroups.
pub(crate) fn projections() -> Vec<Spec> {
    let mut specs = Vec::new();
    for format in formats() {
        for rows in [Rows::One, Rows::Two, Rows::Four, Rows::Few, Rows::Many] {
            for epilogue in [Epilogue::Store, Epilogue::Add, Epilogue::Gate(Gating::Plain(Activation::Silu))]
            {
                for (outputs, inputs, bias) in
                    [(64, 128, false), (50, 56, true), (112, 30, false), (7, 64, true)]
                {
                    if outputs % 2 == 1 && matches!(epilogue, Epilogue::Gate(_)) {
                        continue;
                    }
                    let plain =
                        linear(rows, format, outputs, inputs, epilogue).with_op(|op| Linear { bias, ..op });
                    specs.push(Spec::Linear(plain));
                    let knobs = Knobs { simdgroups: 4, split: 2, ..plain.layout.knobs };
                    let unary = bias.then_some(if inputs == 56 {
                        UnaryOp::Softcap(30.0)
                    } else {
                        UnaryOp::Scale(0.22)
                    });
                    specs.push(Spec::Linear(
                        plain.with_op(|op| Linear { unary, ..op }).with_layout(|layout| LinearLayout {
                            knobs,
                            operand: Operand::F16,
                            ..layout
                        }),
                    ));
                    if rows == Rows::Many {
                        specs.push(Spec::Linear(
                            plain.with_op(|op| Linear { unary, ..op }).with_layout(|layout| LinearLayout {
                                operand: Operand::F16Weights,
                                ..layout
                            }),
                        ));
                    }
                }
            }
        }
    }
    for (tile_rows, split) in [(64, 1), (16, 2)] {
        let plain = linear(Rows::Many, Format::Q4_0, 320, 96, Epilogue::Add);
        let knobs = Knobs { tile_rows, split, ..plain.layout.knobs };
        specs.push(Spec::Linear(plain.with_layout(|layout| LinearLayout {
            knobs,
            operand: Operand::F16,
            ..layout
        })));
    }
    specs.extend(deferred());
    specs.extend(with_mma());
    specs.extend(specs.iter().flat_map(in_batches).collect::<Vec<_>>());
    specs
}

/// The batched kernels of a decode projection that only decode has.
fn in_batches(spec: &Spec) -> Vec<Spec> {
    let Spec::Linear(linear) = spec else { return Vec::new() };
    let is_decoded = linear.op.norm.is_some() || linear.op.own_norm.is_some() || linear.layout.knobs.mma;
    if linear.layout.rows != Rows::One || !is_decoded {
        return Vec::new();
    }
    let knobs = linear.layout.knobs;
    let mut batches = [2, 4, 8, 16].map(|rows| Rows::for_decode_batch(rows, knobs.mma)).to_vec();
    batches.dedup();
    let batch = |rows| {
        let knobs = knobs.for_decode_batch(rows, linear.op.format);
        Spec::Linear(linear.with_layout(|layout| LinearLayout { rows, knobs, ..layout }))
    };
    batches.into_iter().map(batch).collect()
}

/// Decode projections with MMA.
fn with_mma() -> impl Iterator<Item = Spec> {
    [Format::Q4_0, Format::Q8_0, Format::F16, Format::Bf16].into_iter().flat_map(|format| {
        [(16, 2), (32, 1)].map(|(rows_per_simdgroup, packets)| {
            let plain = linear(Rows::One, format, 70, 560, Epilogue::Store);
            let (simdgroups, split) = (2, 2);
            let knobs =
                Knobs { rows_per_simdgroup, simdgroups, split, packets, mma: true, ..plain.layout.knobs };
            Spec::Linear(plain.with_knobs(knobs))
        })
    })
}

/// Decode projections with all epilogues: deferred norms, softcaps, sums of squares and argmax candidates.
fn deferred() -> Vec<Spec> {
    let mut specs = Vec::new();
    let norms = [None, Some(96), Some(128), Some(12), Some(7), Some(256)];
    let squares = |partials, gain| Epilogue::AddSquares(Squares { partials, gain });
    let epilogues = [
        Epilogue::Store,
        Epilogue::Gate(Gating::Plain(Activation::Silu)),
        squares(128, true),
        squares(25, false),
        Epilogue::Best { candidates: 1 << 16 },
        Epilogue::Multiply { of: 60 },
    ];
    let knobs = [(1, 2, 1), (2, 2, 2), (4, 8, 1), (8, 8, 4), (2, 2, 1), (8, 8, 2)];
    for (index, format) in formats().into_iter().enumerate() {
        for (turn, epilogue) in epilogues.into_iter().enumerate() {
            for (rows_per_simdgroup, simdgroups, split) in knobs {
                let turn = index + turn + rows_per_simdgroup * simdgroups;
                let (outputs, inputs) = [(48, 2048), (50, 1056), (22, 30)][turn % 3];
                if matches!(epilogue, Epilogue::Gate(_)) && rows_per_simdgroup == 1 {
                    continue;
                }
                let packets = if split == 1 && inputs > 1024 { 2 } else { 1 };
                let mut plain = linear(Rows::One, format, outputs, inputs, epilogue);
                plain.layout.knobs =
                    Knobs { rows_per_simdgroup, simdgroups, split, packets, ..plain.layout.knobs };
                plain.op.norm = norms[turn % 6].map(|partials| DeferredNorm { partials, epsilon: 1e-6 });
                plain.op.bias = turn % 2 == 1;
                plain.op.unary = (turn % 5 == 0).then_some(UnaryOp::Softcap(30.0));
                // Every second one with a deferred norm computes the norm itself instead.
                if plain.op.norm.is_some() && turn % 2 == 0 {
                    plain.op.norm = None;
                    plain.op.own_norm = Some(InlineNorm { gain: turn % 4 == 0, epsilon: 1e-6, pitch: None });
                }
                let groups = outputs.div_ceil(rows_per_simdgroup * simdgroups / split);
                if !matches!(epilogue, Epilogue::AddSquares(squares) if squares.partials < groups) {
                    specs.push(Spec::Linear(plain));
                }
            }
        }
    }
    specs
}
