//! A mixture-of-experts layer, and its definition in f64.

use super::support::{Argument, Matrix, Random, matrix, repacked, silu};
use forge_device::cpu::simd::isa::Isa;
use forge_device::ops::{Activation, Epilogue, ExpertsInner, ExpertsSum, Format, Gating};

/// How a layer's kernels are executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) level: Isa,
    pub(crate) threads: usize,
    /// Whether the device does not quantize x.
    pub(crate) exact: bool,
    /// Whether matrices are repacked into strips.
    pub(crate) is_repacked: bool,
}

/// Rows with their experts, and the expected results in f64.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) experts: usize,
    pub(crate) chosen: usize,
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) gate_up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) x: Vec<f32>,
    pub(crate) routes: Vec<u32>,
    /// The biases of each matrix, if any.
    pub(crate) biases: Option<[Vec<f32>; 2]>,
}

impl Layer {
    pub(crate) fn new(
        random: &mut Random,
        format: Format,
        rows: usize,
        [experts, chosen, width, inner]: [usize; 4],
    ) -> Layer {
        let gate_up = matrix(random, format, experts * 2 * inner, width, 1.0);
        let down = matrix(random, format, experts * width, inner, 1.0);
        let mut routes = Vec::new();
        for _ in 0..rows {
            let mut all: Vec<u32> = (0..experts as u32).collect();
            for place in 0..chosen {
                let other = place + random.below(experts - place);
                all.swap(place, other);
            }
            routes.extend(&all[..chosen]);
            routes.extend(random.floats(chosen).iter().map(|weight| weight.to_bits()));
        }
        Layer {
            experts,
            chosen,
            width,
            inner,
            gate_up,
            down,
            x: random.floats(rows * width),
            routes,
            biases: None,
        }
    }

    /// Bytes from one expert's matrix to the next expert's, for both matrices.
    pub(crate) fn record(&self) -> usize {
        let planes = self.gate_up.planes.iter().chain(&self.down.planes);
        let most = planes.map(|plane| plane.len() / self.experts).max().unwrap_or(0);
        most.next_multiple_of(64) + 64
    }

    /// The planes of all experts' matrices, with the stride of records and garbage in between.
    pub(crate) fn planes(&self, matrix: &Matrix, is_repacked: bool) -> (Vec<&'static str>, Vec<Argument>) {
        let names = match matrix.planes.len() {
            1 => vec!["weight_values"],
            _ => vec!["weight_codes", "weight_scales"],
        };
        let apart = |plane: &Vec<u8>| {
            let plane_bytes = plane.len() / self.experts;
            let mut bytes = vec![0xff; (self.experts - 1) * self.record() + plane_bytes];
            for (to, from) in bytes.chunks_mut(self.record()).zip(plane.chunks_exact(plane_bytes)) {
                to[..plane_bytes].copy_from_slice(from);
            }
            match is_repacked {
                true => Argument::Stack(bytes, [self.experts, self.record()]),
                false => Argument::Bytes(bytes),
            }
        };
        (names, matrix.planes.iter().map(apart).collect())
    }

    /// Rows and stored columns of each expert's matrix.
    pub(crate) fn repacked(&self, matrix: &Matrix) -> [usize; 2] {
        let [rows, columns] = repacked(matrix);
        [rows / self.experts, columns]
    }

    /// The layer with biases added.
    pub(crate) fn biased(self, random: &mut Random) -> Layer {
        let counts = [self.gate_up.rows, self.down.rows];
        Layer { biases: Some(counts.map(|count| random.floats(count))), ..self }
    }

    /// The bias of a row of a matrix: the first or the second.
    pub(crate) fn bias(&self, matrix: usize, row: usize) -> f64 {
        self.biases.as_ref().map_or(0.0, |biases| f64::from(biases[matrix][row]))
    }

    pub(crate) fn rows(&self) -> usize {
        self.x.len() / self.width
    }

    /// All (row, expert, weight) triples, by row and rank.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
        let of = |(row, words): (usize, &[u32])| {
            let (experts, weights) = words.split_at(self.chosen);
            let pairs = experts.iter().zip(weights);
            pairs.map(|(e, w)| (row, *e as usize, f32::from_bits(*w))).collect::<Vec<_>>()
        };
        self.routes.chunks_exact(2 * self.chosen).enumerate().flat_map(of).collect::<Vec<_>>().into_iter()
    }

    /// The dot product of a matrix row, with the magnitude of its terms.
    pub(crate) fn product(matrix: &Matrix, row: usize, x: &[f32]) -> (f64, f64) {
        let of_row = &matrix.values[row * matrix.columns..][..matrix.columns];
        let terms = of_row.iter().zip(x).map(|(w, x)| (f64::from(*w) * f64::from(*x), f64::from(x.abs())));
        // A weight with an offset is a difference of terms of at most a few units.
        terms.fold((0.0, 0.0), |(sum, size), (term, x)| (sum + term, size + term.abs() + 2.0 * x))
    }

    pub(crate) fn inner(&self, factor: f64) -> Vec<(f64, f64)> {
        let of = |(row, expert, _): (usize, usize, f32)| {
            let x = &self.x[row * self.width..][..self.width];
            let part = |o: usize| Layer::product(&self.gate_up, expert * 2 * self.inner + o, x);
            let one = |i: usize| {
                let ((gate, a), (up, b)) = (part(2 * i), part(2 * i + 1));
                let bias = [0, 1].map(|part| self.bias(0, expert * 2 * self.inner + 2 * i + part));
                let (gate, up) = (gate * factor + bias[0], up * factor + bias[1]);
                let (a, b) = (a * factor + bias[0].abs(), b * factor + bias[1].abs());
                if self.biases.is_none() {
                    return (silu(gate) * up, 1.1 * a * up.abs() + silu(gate).abs() * b);
                }
                let (gate, up) = (gate.min(LIMIT), up.clamp(-LIMIT, LIMIT) + 1.0);
                let open = gate / (1.0 + (-SHARPNESS * gate).exp());
                (open * up, 1.2 * a * up.abs() + open.abs() * (b + 1.0))
            };
            (0..self.inner).map(one).collect::<Vec<_>>()
        };
        self.pairs().flat_map(of).collect()
    }

    /// The expected sum over experts, given the values of each (row, expert) pair.
    pub(crate) fn sum(&self, given: &[f32]) -> Vec<(f64, f64)> {
        let mut sums = vec![(0.0, 0.0); self.rows() * self.width];
        for ((row, expert, weight), x) in self.pairs().zip(given.chunks_exact(self.inner)) {
            for output in 0..self.width {
                let (sum, size) = Layer::product(&self.down, expert * self.width + output, x);
                let bias = self.bias(1, expert * self.width + output);
                let (sum, size) = (sum + bias, size + bias.abs());
                let to = &mut sums[row * self.width + output];
                *to = (to.0 + f64::from(weight) * sum, to.1 + f64::from(weight.abs()) * size);
            }
        }
        sums
    }

    pub(crate) fn inner_shape(&self) -> ExpertsInner {
        ExpertsInner {
            format: self.gate_up.format,
            experts: self.experts,
            chosen: self.chosen,
            shared: 0,
            outputs: 2 * self.inner,
            inputs: self.width,
            record: self.record(),
            norm: None,
            bias: self.biases.is_some(),
            gating: match self.biases {
                None => Gating::Plain(Activation::Silu),
                Some(_) => Gating::Clamped { limit: LIMIT as f32, sharpness: SHARPNESS as f32 },
            },
            route: None,
        }
    }

    pub(crate) fn sum_shape(&self, epilogue: Epilogue) -> ExpertsSum {
        let Layer { experts, chosen, width, inner, .. } = *self;
        let (record, bias) = (self.record(), self.biases.is_some());
        ExpertsSum {
            format: self.down.format,
            experts,
            chosen,
            shared: 0,
            outputs: width,
            inputs: inner,
            record,
            bias,
            epilogue,
        }
    }
}

/// The gated activation of layers with biases. All values are halves and quarters, which are exact in f32.
pub(crate) const LIMIT: f64 = 1.25;
pub(crate) const SHARPNESS: f64 = 1.75;
