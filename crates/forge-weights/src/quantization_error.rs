//! Quantization error statistics per weight, per layer and overall.
//!
//! The error is relative: the root mean square of the differences over that of the original values. Several
//! weights are combined by adding squares, as if they were one.
//!
//! With activation statistics there is also the output error: that of the matrix's outputs, as expected from
//! the mean squares of its inputs if the errors of its columns are independent.

use forge_ir::Format;
use serde::Serialize;

/// Statistics of one weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stat {
    /// Name in the file.
    pub name: String,
    /// Number format.
    pub format: Format,
    /// Bytes over all planes.
    pub bytes: u64,
    /// Relative RMS error. For a matrix with a folded gain, relative to the product.
    pub error: f64,
    /// Relative RMS error of the outputs; `None` without activation statistics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<f64>,
    #[serde(skip)]
    pub(crate) sums: Sums,
}

/// Summary of a written file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Length of the file.
    pub bytes: u64,
    /// CRC-32 (IEEE) of the file.
    pub crc32: u32,
    /// Every packed weight, in file order.
    pub weights: Vec<Stat>,
}

impl Summary {
    /// Weights with a nonzero error, worst first.
    pub fn worst(&self) -> Vec<&Stat> {
        let mut weights: Vec<&Stat> = self.weights.iter().filter(|stat| stat.error > 0.0).collect();
        weights.sort_by(|a, b| b.error.total_cmp(&a.error));
        weights
    }

    /// The combined error of each layer's matrices, in file order. Matrices outside layers are listed
    /// separately.
    pub fn layers(&self) -> Vec<(String, f64)> {
        let mut layers: Vec<(String, Sums)> = Vec::new();
        for stat in self.weights.iter().filter(|stat| stat.sums.squares > 0.0) {
            let name = match stat.name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
                Some((layer, _)) => format!("layer {layer}"),
                None => stat.name.clone(),
            };
            match layers.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sums)) => *sums = sums.plus(stat.sums),
                None => layers.push((name, stat.sums)),
            }
        }
        layers.into_iter().map(|(name, sums)| (name, sums.relative())).collect()
    }

    /// The combined error of all matrices.
    pub fn error(&self) -> f64 {
        self.weights.iter().fold(Sums::default(), |sums, stat| sums.plus(stat.sums)).relative()
    }

    /// The root mean square of all matrices' output errors; `None` without activation statistics.
    pub fn output_error(&self) -> Option<f64> {
        let errors: Vec<f64> = self.weights.iter().filter_map(|stat| stat.output_error).collect();
        let squares = errors.iter().map(|error| error * error).sum::<f64>();
        (!errors.is_empty()).then(|| (squares / errors.len() as f64).sqrt())
    }
}

/// The error of a matrix in one format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizationError {
    /// Relative RMS error of the values.
    pub relative: f64,
    /// Expected squared error of the outputs, summed over these; `None` without activation statistics.
    pub output: Option<f64>,
    /// Relative RMS error of the outputs; `None` without activation statistics.
    pub relative_output: Option<f64>,
}

/// Sums of squared values and squared errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    squares: f64,
    errors: f64,
    /// The same, times the mean squared input of each column.
    output_squares: f64,
    output_errors: f64,
}

impl Sums {
    /// The sums of a row and its stored values. The second argument has the weights of columns and their
    /// unit.
    #[inline(always)]
    pub(crate) fn of(row: &[f32], stored: &[f32], weights: Option<(&[f32], f64)>) -> Sums {
        let squares = sum(row, stored, |x, _, _| x * x);
        let errors = sum(row, stored, |x, y, _| (x - y) * (x - y));
        let Some((weights, unit)) = weights else { return Sums { squares, errors, ..Sums::default() } };
        let weight = |column: usize| f64::from(weights[column]);
        let output_squares = unit * sum(row, stored, |x, _, column| weight(column) * x * x);
        let output_errors = unit * sum(row, stored, |x, y, column| weight(column) * (x - y) * (x - y));
        Sums { squares, errors, output_squares, output_errors }
    }

    pub(crate) fn plus(self, other: Sums) -> Sums {
        Sums {
            squares: self.squares + other.squares,
            errors: self.errors + other.errors,
            output_squares: self.output_squares + other.output_squares,
            output_errors: self.output_errors + other.output_errors,
        }
    }

    pub(crate) fn relative(self) -> f64 {
        if self.squares > 0.0 { (self.errors / self.squares).sqrt() } else { 0.0 }
    }

    /// The relative RMS error of the outputs; `None` without activation statistics.
    pub(crate) fn relative_output(self) -> Option<f64> {
        (self.output_squares > 0.0).then(|| (self.output_errors / self.output_squares).sqrt())
    }

    pub(crate) fn error(self) -> QuantizationError {
        let output = (self.output_squares > 0.0).then_some(self.output_errors);
        QuantizationError { relative: self.relative(), output, relative_output: self.relative_output() }
    }
}

/// Sum over columns of `term` of two values and the column.
#[inline(always)]
fn sum(row: &[f32], stored: &[f32], term: impl Fn(f64, f64, usize) -> f64) -> f64 {
    /// Sums added up at once, so that the loop is vectorized.
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let ((rows, rest), (stored, stored_rest)) = (row.as_chunks::<LANES>(), stored.as_chunks::<LANES>());
    for (chunk, (values, stored)) in rows.iter().zip(stored).enumerate() {
        for lane in 0..LANES {
            sums[lane] += term(values[lane].into(), stored[lane].into(), chunk * LANES + lane);
        }
    }
    for (lane, (x, y)) in rest.iter().zip(stored_rest).enumerate() {
        sums[lane] += term((*x).into(), (*y).into(), rows.len() * LANES + lane);
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_error_combines_the_errors_of_its_weights() {
        let stat = |name: &str, squares, errors| {
            let sums = Sums { squares, errors, ..Sums::default() };
            let (name, error) = (name.to_owned(), sums.relative());
            Stat { name, format: Format::Q4_0, bytes: 0, error, output_error: None, sums }
        };
        let weights = vec![
            stat("embed", 100.0, 1.0),
            stat("layers.0.qkv", 100.0, 4.0),
            stat("layers.0.gain", 0.0, 0.0),
            stat("layers.0.down", 300.0, 0.0),
            stat("layers.12.qkv", 100.0, 9.0),
        ];
        let summary = Summary { bytes: 0, crc32: 0, weights };
        let layers = summary.layers();
        let names: Vec<&str> = layers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["embed", "layer 0", "layer 12"]);
        assert_eq!(layers.iter().map(|(_, error)| *error).collect::<Vec<_>>(), [0.1, 0.1, 0.3]);
        assert!((summary.error() - (14.0_f64 / 600.0).sqrt()).abs() < 1e-15);
        let worst: Vec<&str> = summary.worst().iter().map(|stat| stat.name.as_str()).collect();
        assert_eq!(worst, ["layers.12.qkv", "layers.0.qkv", "embed"]);
    }
}
