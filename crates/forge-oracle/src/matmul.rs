//! Linear layers: a matrix times rows, with norms and epilogues.

use crate::compare::{Expected, scaled, sum, term};
use crate::elementwise::{gated, unary};
use crate::matrix::Matrix;
use crate::norm::inverse_rms;
use crate::random::Random;
use forge_ops::{Activation, DeferredNorm, Epilogue, Format, Gating, InlineNorm, Linear, Squares, UnaryOp};

/// Inputs of rows of a linear layer.
pub struct LinearInputs {
    /// The weight.
    pub weight: Matrix,
    /// Rows of x, in the layer's pitch.
    pub x: Vec<f32>,
    /// Gain of the layer's own norm.
    pub x_gain: Vec<f32>,
    /// Added to the outputs.
    pub bias: Vec<f32>,
    /// Partial sums of squares of the rows.
    pub squares: Vec<f32>,
    /// Gain of a deferred norm that follows.
    pub gain: Vec<f32>,
    /// Rows of factors.
    pub factors: Vec<f32>,
    /// y before the layer.
    pub before: Vec<f32>,
}

/// Elements of a row of x.
pub fn pitch(op: &Linear) -> usize {
    op.own_norm.and_then(|norm| norm.pitch).unwrap_or(op.inputs)
}

/// Elements of a row of a buffer; `None` for buffers without rows.
pub fn row_len(op: &Linear, buffer: &str) -> Option<usize> {
    Some(match (buffer, op.epilogue) {
        ("x", _) => pitch(op),
        ("y", epilogue) => op.outputs / epilogue.results_per_output(),
        ("gained", _) => op.outputs,
        ("squares", _) => op.norm.map_or(0, |norm| norm.partials),
        ("squares_out", Epilogue::AddSquares(squares)) => squares.partials,
        ("candidates", Epilogue::Best { candidates }) => 2 * candidates,
        ("factors", Epilogue::Multiply { of }) => of,
        _ => return None,
    })
}

impl LinearInputs {
    /// Random inputs, with a weight of values of at most about 1.
    pub fn random(random: &mut Random, op: &Linear, rows: usize) -> LinearInputs {
        let weight = Matrix::random(random, op.format, op.outputs, op.inputs, 1.0);
        LinearInputs::of(weight, random, op, rows)
    }

    /// Random inputs for this weight.
    pub fn of(weight: Matrix, random: &mut Random, op: &Linear, rows: usize) -> LinearInputs {
        let len = |buffer| rows * row_len(op, buffer).unwrap_or(0);
        LinearInputs {
            weight,
            x: random.floats(len("x")),
            x_gain: random.floats(op.inputs),
            bias: random.floats(op.outputs),
            squares: random.magnitudes(len("squares")),
            gain: random.floats(op.outputs),
            factors: random.floats(len("factors")),
            before: random.floats(len("y")),
        }
    }

    /// The contents of a buffer that the layer reads, if it is one of floats.
    pub fn floats(&self, op: &Linear, buffer: &str) -> Option<&[f32]> {
        Some(match buffer {
            "x" => &self.x,
            "x_gain" => &self.x_gain,
            "bias" => &self.bias,
            "squares" => &self.squares,
            "gain" => &self.gain,
            "factors" => &self.factors,
            "y" if matches!(op.epilogue, Epilogue::Add | Epilogue::AddSquares(_)) => &self.before,
            _ => return None,
        })
    }

    /// Rows of x, `[row, inputs]`, times the gain of the layer's own norm.
    pub fn taken(&self, op: &Linear) -> Vec<Expected> {
        let gains = op.own_norm.is_some_and(|norm| norm.gain);
        let rows = self.x.chunks_exact(pitch(op));
        let row = |row: &[f32]| -> Vec<Expected> {
            let gain = |column: usize| if gains { f64::from(self.x_gain[column]) } else { 1.0 };
            let x = row[..op.inputs].iter().enumerate();
            x.map(|(column, x)| scaled(term(*x), gain(column))).collect()
        };
        rows.flat_map(row).collect()
    }
}

/// `y` after [`Linear`], of rows of x as [`LinearInputs::taken`] has them; `first` is the column of the first
/// factor.
pub fn linear(op: &Linear, inputs: &LinearInputs, x: &[Expected], first: usize) -> Vec<Expected> {
    let mut y = Vec::new();
    for (row, x) in x.chunks_exact(op.inputs).enumerate() {
        let squares = |all: &[f32], len: usize| all[row * len..][..len].to_vec();
        let factor = match (op.norm, op.own_norm) {
            (Some(norm), _) => {
                let partials = squares(&inputs.squares, norm.partials).into_iter().map(f64::from);
                inverse_rms(partials.sum(), op.inputs, norm.epsilon)
            }
            (None, Some(norm)) => {
                let x = squares(&inputs.x, pitch(op)).into_iter().take(op.inputs).map(f64::from);
                inverse_rms(x.map(|x| x * x).sum(), op.inputs, norm.epsilon)
            }
            (None, None) => 1.0,
        };
        let result = |output: usize| {
            let result = scaled(inputs.weight.row_product(output, x), factor);
            let result = if op.bias { sum(result, term(inputs.bias[output])) } else { result };
            op.unary.map_or(result, |function| unary(function, result))
        };
        let results: Vec<Expected> = (0..op.outputs).map(result).collect();
        let before = || inputs.before[row * op.outputs..].iter();
        match op.epilogue {
            Epilogue::Store | Epilogue::Best { .. } => y.extend(results),
            Epilogue::Add | Epilogue::AddSquares(_) => {
                y.extend(results.into_iter().zip(before()).map(|(result, h)| sum(result, term(*h))));
            }
            Epilogue::Multiply { of } => {
                let factors = inputs.factors[row * of + first..].iter();
                y.extend(results.into_iter().zip(factors).map(|(result, by)| scaled(result, f64::from(*by))));
            }
            Epilogue::Gate(gating) => {
                y.extend(results.chunks_exact(2).map(|pair| gated(gating, pair[0], pair[1])))
            }
        }
    }
    y
}

/// A layer without norm, bias or unary function.
pub fn plain(format: Format, outputs: usize, inputs: usize, epilogue: Epilogue) -> Linear {
    let (norm, own_norm, unary) = (None, None, None);
    Linear { format, outputs, inputs, norm, own_norm, bias: false, unary, epilogue, chooses: false }
}

/// The gated epilogue of most models.
pub const SWIGLU: Epilogue = Epilogue::Gate(Gating::Plain(Activation::Silu));

fn squares(partials: usize, gain: bool) -> Epilogue {
    Epilogue::AddSquares(Squares { partials, gain })
}

fn deferred(partials: usize) -> Option<DeferredNorm> {
    Some(DeferredNorm { partials, epsilon: 1e-5 })
}

fn own(gain: bool) -> Option<InlineNorm> {
    Some(InlineNorm { gain, epsilon: 1e-5, pitch: None })
}

/// x is the first columns of wider rows.
fn of_columns(pitch: usize) -> Option<InlineNorm> {
    Some(InlineNorm { gain: true, epsilon: 1e-5, pitch: Some(pitch) })
}

/// Layers for one row, with every norm, unary function and epilogue.
pub fn decode_linears(format: Format) -> [Linear; 17] {
    use Epilogue::{Add, Best, Multiply, Store};
    let plain = |outputs, inputs, epilogue| plain(format, outputs, inputs, epilogue);
    let (scale, gelu) = (Some(UnaryOp::Scale(0.22)), Some(UnaryOp::Activate(Activation::GeluTanh)));
    let softcap = |cap| Some(UnaryOp::Softcap(cap));
    let geglu = Epilogue::Gate(Gating::Plain(Activation::GeluTanh));
    [
        Linear { norm: deferred(128), ..plain(18, 1100, Store) },
        Linear { own_norm: own(true), ..plain(18, 1100, Store) },
        Linear { own_norm: own(false), bias: true, ..plain(21, 70, Store) },
        Linear { own_norm: of_columns(97), ..plain(22, 90, SWIGLU) },
        Linear { norm: deferred(30), bias: true, ..plain(22, 70, SWIGLU) },
        Linear { norm: deferred(52), unary: softcap(0.5), ..plain(26, 64, SWIGLU) },
        plain(22, 96, squares(11, true)),
        plain(64, 40, squares(2, true)),
        Linear { bias: true, ..plain(37, 2100, squares(5, false)) },
        Linear { norm: deferred(200), unary: softcap(3.0), ..plain(150, 32, Best { candidates: 1 << 16 }) },
        Linear { bias: true, ..plain(5, 50, Add) },
        Linear { unary: scale, bias: true, ..plain(6, 50, Add) },
        Linear { norm: deferred(8), unary: scale, ..plain(22, 96, squares(11, true)) },
        Linear { unary: gelu, bias: true, ..plain(7, 50, Store) },
        plain(6, 33, geglu),
        Linear { unary: scale, bias: true, ..plain(7, 50, Multiply { of: 12 }) },
        Linear { norm: deferred(8), bias: true, ..plain(22, 96, Multiply { of: 40 }) },
    ]
}

/// Layers for one row whose x is quantized on a GPU.
pub fn quantized_linears(format: Format) -> [Linear; 9] {
    use Epilogue::{Add, Best, Multiply, Store};
    let plain = |outputs, inputs, epilogue| plain(format, outputs, inputs, epilogue);
    let softcap = Some(UnaryOp::Softcap(3.0));
    [
        plain(16, 128, Store),
        Linear { norm: deferred(128), ..plain(50, 640, Store) },
        Linear { own_norm: own(true), bias: true, ..plain(64, 640, SWIGLU) },
        Linear { own_norm: own(false), ..plain(37, 384, Add) },
        Linear { bias: true, ..plain(70, 896, squares(3, true)) },
        Linear { norm: deferred(128), unary: softcap, ..plain(150, 512, Best { candidates: 1 << 16 }) },
        plain(33, 256, Multiply { of: 60 }),
        Linear { own_norm: of_columns(336), ..plain(18, 272, Store) },
        plain(18, 50, Store),
    ]
}

/// Layers for few rows.
pub fn small_batch_linears(format: Format) -> [Linear; 4] {
    let plain = |outputs, inputs, epilogue| plain(format, outputs, inputs, epilogue);
    [
        Linear { bias: true, ..plain(18, 70, Epilogue::Store) },
        Linear { unary: Some(UnaryOp::Softcap(0.5)), ..plain(22, 96, SWIGLU) },
        Linear { unary: Some(UnaryOp::Scale(0.22)), ..plain(13, 130, Epilogue::Add) },
        plain(8, 640, Epilogue::Store),
    ]
}

/// Layers for many rows.
pub fn gemm_linears(format: Format) -> [Linear; 5] {
    let plain = |outputs, inputs, epilogue| plain(format, outputs, inputs, epilogue);
    [
        Linear { bias: true, unary: Some(UnaryOp::Softcap(2.0)), ..plain(18, 70, Epilogue::Store) },
        plain(70, 33, Epilogue::Add),
        Linear { bias: true, ..plain(16, 128, SWIGLU) },
        plain(16, 96, Epilogue::Store),
        plain(22, 288, SWIGLU),
    ]
}
