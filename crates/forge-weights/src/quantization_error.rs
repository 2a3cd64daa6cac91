//! Quantization error statistics per weight, per layer and overall.
//!
//! The error is relative: the root mean square of the differences over that of the original values. Several
//! weights are combined by adding squares, as if they were one.

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
}

/// Sums of squared values and squared errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    squares: f64,
    errors: f64,
}

impl Sums {
    pub(crate) fn of(row: &[f32], stored: &[f32]) -> Sums {
        row.iter().zip(stored).fold(Sums::default(), |sums, (x, y)| {
            let (x, error) = (f64::from(*x), f64::from(*x) - f64::from(*y));
            Sums { squares: sums.squares + x * x, errors: sums.errors + error * error }
        })
    }

    pub(crate) fn plus(self, other: Sums) -> Sums {
        Sums { squares: self.squares + other.squares, errors: self.errors + other.errors }
    }

    pub(crate) fn relative(self) -> f64 {
        if self.squares > 0.0 { (self.errors / self.squares).sqrt() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_error_combines_the_errors_of_its_weights() {
        let stat = |name: &str, squares, errors| {
            let sums = Sums { squares, errors };
            Stat { name: name.to_owned(), format: Format::Q4_0, bytes: 0, error: sums.relative(), sums }
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
