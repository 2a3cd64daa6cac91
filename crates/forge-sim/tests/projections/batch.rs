//! Batched GEMV: every row has the bits of the kernel for one row.

use crate::plain::{Bench, Input, Random, Stored, stored};
use forge_kernels::Spec;
use forge_kernels::spec::{LinearKernel, LinearLayout, Rows};
use forge_ops::{Epilogue, Quantize, Squares};

/// Batched kernels of a layer, each with a number of rows; most fill no threadgroup.
fn batches(linear: &LinearKernel) -> &'static [(Rows, usize)] {
    match linear.layout.knobs.codes {
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
    weights: Stored,
    bias: Vec<f32>,
    gain: Vec<f32>,
    x_gain: Vec<f32>,
    x: Vec<f32>,
    squares: Vec<f32>,
    factors: Vec<f32>,
    before: Vec<f32>,
}

impl Rowwise<'_> {
    fn new<'a>(linear: &'a LinearKernel, rows: usize, random: &mut Random) -> Rowwise<'a> {
        let op = linear.op;
        let partials = op.norm.map_or(0, |norm| norm.partials);
        let of = if let Epilogue::Multiply { of } = op.epilogue { of } else { 0 };
        Rowwise {
            linear,
            weights: stored(random, op.format, op.outputs, op.inputs),
            bias: random.floats(op.outputs),
            gain: random.floats(op.outputs),
            x_gain: random.floats(op.inputs),
            x: random.floats(rows * op.own_norm.and_then(|norm| norm.pitch).unwrap_or(op.inputs)),
            squares: random.floats(rows * partials).iter().map(|square| square.abs()).collect(),
            factors: random.floats(rows * of),
            before: random.floats(rows * op.outputs),
        }
    }

    /// Elements of a row of a buffer; `None` for buffers without rows.
    fn row_len(&self, buffer: &str) -> Option<usize> {
        let op = self.linear.op;
        Some(match (buffer, op.epilogue) {
            ("x", _) => op.own_norm.and_then(|norm| norm.pitch).unwrap_or(op.inputs),
            ("y", epilogue) => op.outputs / epilogue.results_per_output(),
            ("gained", _) => op.outputs,
            ("squares", _) => op.norm.map_or(0, |norm| norm.partials),
            ("squares_out", Epilogue::AddSquares(squares)) => squares.partials,
            ("candidates", Epilogue::Best { candidates }) => 2 * candidates,
            ("factors", Epilogue::Multiply { of }) => of,
            _ => return None,
        })
    }

    /// The contents of a buffer for these rows.
    fn input(&self, buffer: &str, rows: std::ops::Range<usize>) -> Input {
        let adds = matches!(self.linear.op.epilogue, Epilogue::Add | Epilogue::AddSquares(_));
        let numbers = match buffer {
            "weight_values" | "weight_codes" => return Input::Bytes(self.weights.planes[0].clone()),
            "weight_scales" => return Input::Bytes(self.weights.planes[1].clone()),
            "x" => &self.x,
            "bias" => &self.bias,
            "gain" => &self.gain,
            "x_gain" => &self.x_gain,
            "squares" => &self.squares,
            "factors" => &self.factors,
            "y" if adds => &self.before,
            written => {
                let len = self.row_len(written).unwrap_or_else(|| panic!("unknown buffer `{written}`"));
                return Input::Uninitialized(rows.len() * len);
            }
        };
        Input::F32(match self.row_len(buffer) {
            Some(len) => numbers[rows.start * len..rows.end * len].to_vec(),
            None => numbers.clone(),
        })
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
        let kernels: Vec<LinearKernel> =
            batches(linear).iter().map(|(rows, _)| batch(linear, *rows).with_quantized_output()).collect();
        specs.extend(kernels.iter().map(|kernel| Spec::Linear(*kernel)));
        let bench = Bench::new(&specs);
        for (place, &(_, rows)) in batches(linear).iter().enumerate() {
            let inputs = Rowwise::new(linear, rows, &mut random);
            let words = 4 * rows.div_ceil(4) * Quantize::row_words(linear.op.inputs);
            let codes = bench.run(0, rows, |buffer| match buffer {
                "quantized_x" => Input::Uninitialized(words),
                _ => inputs.input(buffer, 0..rows),
            });
            let words = 4 * rows.div_ceil(4) * Quantize::row_words(width);
            let written = bench.run(2 + place, rows, |buffer| match buffer {
                "quantized_x" => Input::U32(codes[0].clone()),
                "quantized_y" => Input::U32(vec![0; words]),
                _ => inputs.input(buffer, 0..rows),
            });
            let names = bench.written(2 + place);
            let of = |name: &str| &written[names.iter().position(|other| other == name).unwrap()];
            let expected = bench.run(1, rows, |buffer| match buffer {
                "quantized_x" => Input::U32(vec![0; words]),
                _ => Input::U32(of(result).clone()),
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
        let bench = Bench::new(&specs);
        for (place, &(_, rows)) in batches.iter().enumerate() {
            let inputs = Rowwise::new(linear, rows, &mut random);
            let quads = 4 * rows.div_ceil(4);
            let codes = linear.layout.knobs.codes.then(|| {
                let Quantize { width, parts, .. } = quantize(linear);
                bench.run(1, rows, |buffer| match buffer {
                    "quantized_x" => Input::Uninitialized(quads * Quantize::row_words(width)),
                    "squares_of_x" => Input::Uninitialized(quads * parts),
                    _ => inputs.input(buffer, 0..rows),
                })
            });
            let together = bench.run(2 + place, rows, |buffer| match (buffer, &codes) {
                ("quantized_x", Some(codes)) => Input::U32(codes[0].clone()),
                ("squares_of_x", Some(codes)) => Input::U32(codes[1].clone()),
                _ => inputs.input(buffer, 0..rows),
            });
            for row in 0..rows {
                let alone = bench.run(0, 1, |buffer| inputs.input(buffer, row..row + 1));
                for (together, alone) in together.iter().zip(&alone) {
                    let of_row = &together[row * alone.len()..][..alone.len()];
                    assert!(of_row == &alone[..], "row {row} of {rows} differs: {linear:?}");
                }
            }
        }
    }
}
