//! Inputs of kernels over rows: embedding, norms, projections, elementwise functions and sampling.

use super::{Content, plane};
use crate::cases::Writer;
use forge_kernels::Spec;
use forge_ops::{Epilogue, Function, Quantize};

impl Writer {
    /// The contents of a buffer of a row kernel.
    pub(super) fn of_rows(&mut self, spec: &Spec, name: &str, rows: usize) -> Content {
        match (spec, name) {
            (Spec::Embed(_), "ids") => {
                // The last token id is outside the vocabulary.
                Content::Words(
                    (0..rows).map(|row| if row + 1 < rows { row as u32 * 7 } else { 9999 }).collect(),
                )
            }
            (Spec::Embed(it), "stream") if it.adds => self.floats(rows * it.width),
            (Spec::Embed(it), "stream" | "gained") => Content::Unwritten(rows * it.width * 4),
            (Spec::Embed(it), "gain") => self.floats(it.width),
            (Spec::Embed(it), "squares") => {
                Content::Unwritten(rows * it.squares.map_or(0, |squares| squares.partials) * 4)
            }
            (Spec::Embed(it), _) => plane(it.format, name, it.vocabulary, it.width),
            (Spec::LayerNorm(it), "x") => self.floats((rows + 3) * it.width),
            (Spec::LayerNorm(it), "gain" | "bias") => self.floats(it.width),
            (Spec::LayerNorm(_), "wanted") => Content::Words((0..rows).map(|row| row as u32 + 3).collect()),
            (Spec::LayerNorm(it), _) => Content::Unwritten(rows * it.width * 4),
            (Spec::NormAdd(it), "x" | "stream") => self.floats(rows * it.width),
            (Spec::NormAdd(it), "norm_gain" | "gain") => self.floats(it.width),
            (Spec::NormAdd(_), "factor") => self.floats(1),
            (Spec::NormAdd(it), "gained") => Content::Unwritten(rows * it.width * 4),
            (Spec::NormAdd(it), _) => {
                Content::Unwritten(rows * it.squares.map_or(0, |squares| squares.partials) * 4)
            }
            (Spec::RmsNorm(it), "x") => self.floats((rows + 3) * it.pitch.unwrap_or(it.parts * it.width)),
            (Spec::RmsNorm(it), "gain") => self.floats(it.width),
            (Spec::RmsNorm(_), "wanted") => Content::Words((0..rows).map(|row| row as u32 + 3).collect()),
            (Spec::RmsNorm(it), _) => Content::Unwritten(rows * it.parts * it.width * 4),
            // An infinite value makes the scale of its block NaN.
            (Spec::Quantize(it), "x") => {
                let value = |random: u32| (random % 2000) as f32 * 0.001 - 1.0;
                let mut words: Vec<u32> = (0..rows * it.pitch.unwrap_or(it.width))
                    .map(|_| value(self.random()).to_bits())
                    .collect();
                words[1] = f32::INFINITY.to_bits();
                Content::Words(words)
            }
            (Spec::Quantize(it), "x_gain") => self.floats(it.width),
            (Spec::Quantize(it), "quantized_x") => {
                Content::Unwritten(rows.next_multiple_of(4) * Quantize::row_words(it.width) * 4)
            }
            (Spec::Quantize(it), _) => Content::Unwritten(rows.next_multiple_of(4) * it.parts * 4),
            (Spec::Linear(it), "bias") => self.floats(it.op.outputs),
            (Spec::Linear(it), "x") => {
                self.floats(rows * it.op.own_norm.and_then(|norm| norm.pitch).unwrap_or(it.op.inputs))
            }
            (Spec::Linear(it), "y") => match it.op.epilogue {
                Epilogue::Store | Epilogue::Best { .. } | Epilogue::Multiply { .. } => {
                    Content::Unwritten(rows * it.op.outputs * 4)
                }
                Epilogue::Add | Epilogue::AddSquares(_) => self.floats(rows * it.op.outputs),
                Epilogue::Gate(_) => Content::Unwritten(rows * it.op.outputs / 2 * 4),
            },
            (Spec::Linear(it), "squares") => {
                let partials = it.op.norm.map_or(0, |norm| norm.partials);
                Content::Words((0..rows * partials).map(|_| self.float().abs().to_bits()).collect())
            }
            (Spec::Linear(it), "x_gain") => self.floats(it.op.inputs),
            (Spec::Linear(it), "factors") => match it.op.epilogue {
                Epilogue::Multiply { of } => self.floats(rows * of),
                _ => Content::Unwritten(0),
            },
            (Spec::Linear(it), "gain") => self.floats(it.op.outputs),
            (Spec::Linear(it), "gained") => Content::Unwritten(rows * it.op.outputs * 4),
            (Spec::Linear(it), "squares_out") => match it.op.epilogue {
                Epilogue::AddSquares(squares) => Content::Unwritten(rows * squares.partials * 4),
                _ => Content::Unwritten(0),
            },
            (Spec::Linear(it), "candidates") => {
                let each =
                    it.layout.knobs.rows_per_simdgroup * it.layout.knobs.simdgroups / it.layout.knobs.split;
                Content::Unwritten(it.op.outputs.div_ceil(each) * 8)
            }
            (Spec::Linear(it), _) => plane(it.op.format, name, it.op.outputs, it.op.inputs),
            (Spec::Argmax(it), "logits") => self.floats(rows * it.vocabulary),
            (Spec::Argmax(_), _) => Content::Unwritten(rows * 4),
            // Few distinct logits, hundreds of them equal, except in the second row. The third row is all
            // NaN.
            (Spec::Sample(it), "logits") => {
                // One maximum, which is neither the first nor the last element of a thread.
                let logit = |row: usize, id: usize, random: u32| match row {
                    1 => -(id as f32 - 300.0).abs(),
                    2 => f32::NAN,
                    _ if random.is_multiple_of(31) => f32::NAN,
                    _ => (random % 7) as f32 * 0.75 - 3.0,
                };
                let logits = (0..rows * it.vocabulary)
                    .map(|i| logit(i / it.vocabulary, i % it.vocabulary, self.random()));
                Content::Words(logits.map(f32::to_bits).collect())
            }
            // Scale, top-k, top-p, min-p, seed and draw index. The second row is greedy, and the fourth has
            // no filters.
            (Spec::Sample(_), "draws") => {
                let draw = |row| match row {
                    1 => [0; 8],
                    3 => [1.5_f32.to_bits(), 0, 0, 0, 7, 9, 3, 0],
                    _ => [1.5_f32.to_bits(), 250, 0xe000_0000, 0x0400_0000, 7, 9, row as u32, 0],
                };
                Content::Words((0..rows).flat_map(draw).collect())
            }
            (Spec::Sample(_), _) => Content::Unwritten(rows * 4),
            (Spec::ArgmaxCombine(it), "candidates") => {
                let pairs = rows * it.candidates;
                Content::Words((0..2 * pairs).map(|_| self.random()).collect())
            }
            (Spec::Elementwise(it), "y") => Content::Unwritten(rows * it.width * 4),
            (Spec::Elementwise(it), "b") if it.function == Function::ScaleBy => self.floats(1),
            (Spec::Elementwise(it), _) => self.floats(rows * it.width),
            (Spec::SliceColumns(it), "y") => Content::Unwritten(rows * it.width * 4),
            (Spec::SliceColumns(it), _) => self.floats(rows * it.of),
            (Spec::PerHeadLinear(it), "x") => self.floats(rows * it.op.pitch),
            (Spec::PerHeadLinear(it), "y") => Content::Unwritten(
                rows * it.op.heads * if it.op.transposed { it.op.columns } else { it.op.rows } * 4,
            ),
            (Spec::PerHeadLinear(it), _) => {
                plane(it.op.format, name, it.op.heads * it.op.rows, it.op.columns)
            }
            (Spec::ArgmaxCombine(_), _) => Content::Unwritten(rows * 4),
            _ => unreachable!("{name} is of another family"),
        }
    }
}
