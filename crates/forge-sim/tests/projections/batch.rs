//! Batched GEMV: every row has the bits of the kernel for one row.

use crate::execution::{Input, Kernels};
use crate::scalars;
use forge_kernels::Spec;
use forge_kernels::spec::{LinearKernel, LinearLayout, Rows};
use forge_ops::{Epilogue, Quantize, Squares};
use forge_oracle::Random;
use forge_oracle::matmul::{LinearInputs, row_len};

/// Batched kernels of a layer, each with a number of rows; most fill no threadgroup.
fn batches(linear: &LinearKernel) -> &'static [(Rows, usize)] {
    match linear.layout.knobs.mma {
        true => &[(Rows::Four, 3), (Rows::Eight, 7), (Rows::Sixteen, 19)],
        false => &[(Rows::Two, 2), (Rows::Four, 7)],
    }
}

/// The kernel that quantizes x for the batched kernels of a layer.
fn quantize(linear: &LinearKernel) -> Quantize {
    let norm = linear.op.own_norm;
    Quantize {
        width: linear.op.inputs,
        gain: norm.is_some_and(|norm| norm.gain),
        parts: norm.map_or(0, |_| linear.layout.knobs.split),
        pitch: norm.and_then(|norm| norm.pitch),
    }
}

/// Inputs of a linear layer for several rows.
struct Rowwise<'a> {
    linear: &'a LinearKernel,
    given: LinearInputs,
}

impl Rowwise<'_> {
    fn new<'a>(linear: &'a LinearKernel, rows: usize, random: &mut Random) -> Rowwise<'a> {
        Rowwise { linear, given: LinearInputs::random(random, &linear.op, rows) }
    }

    /// The contents of a buffer for these rows.
    fn input(&self, buffer: &str, rows: std::ops::Range<usize>) -> Input<'_> {
        let len = row_len(&self.linear.op, buffer);
        match (self.given.floats(&self.linear.op, buffer), len) {
            (Some(numbers), Some(len)) => Input::F32(&numbers[rows.start * len..rows.end * len]),
            (Some(numbers), None) => Input::F32(numbers),
            (None, Some(len)) => Input::Uninitialized(4 * rows.len() * len),
            (None, None) => Input::Bytes(self.given.weight.plane(buffer)),
        }
    }
}

/// Compares the quantized rows that batched kernels write with those of the kernel that only quantizes.
pub(crate) fn check_quantized_outputs(linears: &[LinearKernel]) {
    let mut random = Random(4);
    for linear in linears {
        let results = linear.op.epilogue.results_per_output();
        let (width, result) = match linear.op.epilogue {
            Epilogue::AddSquares(Squares { gain: true, .. }) => (linear.op.outputs, "gained"),
            _ => (linear.op.outputs / results, "y"),
        };
        let alone = Quantize { width, gain: false, parts: 0, pitch: None };
        let mut specs = vec![Spec::Quantize(quantize(linear)), Spec::Quantize(alone)];
        let batched: Vec<LinearKernel> =
            batches(linear).iter().map(|(rows, _)| batch(linear, *rows).with_quantized_output()).collect();
        specs.extend(batched.into_iter().map(Spec::Linear));
        let kernels = Kernels::of(specs);
        for (place, &(_, rows)) in batches(linear).iter().enumerate() {
            let inputs = Rowwise::new(linear, rows, &mut random);
            let bytes = 16 * rows.div_ceil(4) * Quantize::row_words(linear.op.inputs);
            let codes = kernels.run_with(0, &scalars(rows), |buffer| match buffer {
                "quantized_x" => Input::Uninitialized(bytes),
                _ => inputs.input(buffer, 0..rows),
            });
            let zeros = vec![0; 16 * rows.div_ceil(4) * Quantize::row_words(width)];
            let written = kernels.run_with(2 + place, &scalars(rows), |buffer| match buffer {
                "quantized_x" => Input::Bytes(&codes[0]),
                "quantized_y" => Input::Bytes(&zeros),
                _ => inputs.input(buffer, 0..rows),
            });
            let names = kernels.written(2 + place);
            let of = |name: &str| &written[names.iter().position(|other| other == name).unwrap()];
            let expected = kernels.run_with(1, &scalars(rows), |buffer| match buffer {
                "quantized_x" => Input::Bytes(&zeros),
                _ => Input::Bytes(of(result)),
            });
            assert!(*of("quantized_y") == expected[0], "{rows} rows: {linear:?}");
        }
    }
}

/// The batched kernel of a layer.
fn batch(linear: &LinearKernel, rows: Rows) -> LinearKernel {
    linear.with_layout(|layout| LinearLayout {
        rows,
        knobs: layout.knobs.for_decode_batch(rows, linear.op.format),
        ..layout
    })
}

/// Compares each linear layer in batches with the same layer for one row.
pub(crate) fn check_batches(linears: &[LinearKernel]) {
    // The argmax candidates of a row follow those of the row before.
    let compact = |linear: &LinearKernel| {
        linear.with_op(|op| match op.epilogue {
            Epilogue::Best { .. } => {
                let candidates = op.outputs.div_ceil(linear.layout.knobs.outputs_of_group());
                forge_ops::Linear { epilogue: Epilogue::Best { candidates }, ..op }
            }
            _ => op,
        })
    };
    let linears: Vec<LinearKernel> = linears.iter().map(compact).collect();
    let mut random = Random(3);
    for linear in &linears {
        let batches = batches(linear);
        let mut specs = vec![Spec::Linear(*linear), Spec::Quantize(quantize(linear))];
        specs.extend(batches.iter().map(|(rows, _)| Spec::Linear(batch(linear, *rows))));
        let kernels = Kernels::of(specs);
        for (place, &(_, rows)) in batches.iter().enumerate() {
            let inputs = Rowwise::new(linear, rows, &mut random);
            let quads = 16 * rows.div_ceil(4);
            let codes = linear.layout.knobs.quantizes_x(linear.op.format).then(|| {
                let Quantize { width, parts, .. } = quantize(linear);
                kernels.run_with(1, &scalars(rows), |buffer| match buffer {
                    "quantized_x" => Input::Uninitialized(quads * Quantize::row_words(width)),
                    "squares_of_x" => Input::Uninitialized(quads * parts),
                    _ => inputs.input(buffer, 0..rows),
                })
            });
            let together = kernels.run_with(2 + place, &scalars(rows), |buffer| match (buffer, &codes) {
                ("quantized_x", Some(codes)) => Input::Bytes(&codes[0]),
                ("squares_of_x", Some(codes)) => Input::Bytes(&codes[1]),
                _ => inputs.input(buffer, 0..rows),
            });
            for row in 0..rows {
                let alone = kernels.run_with(0, &scalars(1), |buffer| inputs.input(buffer, row..row + 1));
                for (together, alone) in together.iter().zip(&alone) {
                    let of_row = &together[row * alone.len()..][..alone.len()];
                    assert!(of_row == &alone[..], "row {row} of {rows} differs: {linear:?}");
                }
            }
        }
    }
}
