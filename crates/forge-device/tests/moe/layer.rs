//! A mixture-of-experts layer with its rows, as arguments of its kernels.

use super::support::{Argument, Expected, Random, plane_buffers, repacked};
use forge_device::cpu::simd::isa::Isa;
use forge_device::ops::Format;
use forge_oracle::moe::{ExpertLayer, Routes, in_records};
use forge_oracle::relative;
use std::ops::Deref;

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

/// Rows with their experts.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) layer: ExpertLayer,
    pub(crate) x: Vec<f32>,
    pub(crate) routes: Routes,
}

impl Deref for Layer {
    type Target = ExpertLayer;

    fn deref(&self) -> &ExpertLayer {
        &self.layer
    }
}

impl Layer {
    pub(crate) fn new(random: &mut Random, format: Format, rows: usize, sizes: [usize; 4]) -> Layer {
        let layer = ExpertLayer::random(random, format, sizes);
        let routes = Routes::random(random, rows, layer.experts, layer.chosen);
        Layer { x: random.floats(rows * layer.width), layer, routes }
    }

    /// The layer with biases added.
    pub(crate) fn biased(self, random: &mut Random) -> Layer {
        Layer { layer: self.layer.biased(random), ..self }
    }

    pub(crate) fn rows(&self) -> usize {
        self.routes.0.len()
    }

    /// The planes of the first or the second matrix of all experts, with the stride of records and garbage in
    /// between.
    pub(crate) fn weight(&self, matrix: usize, is_repacked: bool) -> Vec<(&'static str, Argument)> {
        let matrix = self.matrix(matrix);
        let apart = |plane: &Vec<u8>| {
            let bytes = in_records(plane, self.experts, self.record(), false);
            match is_repacked {
                true => Argument::Stack(bytes, [self.experts, self.record()]),
                false => Argument::Bytes(bytes),
            }
        };
        plane_buffers(matrix, "weight").into_iter().zip(matrix.planes.iter().map(apart)).collect()
    }

    /// The biases of the first or the second matrix, if any.
    pub(crate) fn bias(&self, matrix: usize) -> Option<(&'static str, Argument)> {
        self.biases.as_ref().map(|biases| ("bias", Argument::F32(biases[matrix].clone())))
    }

    /// The first or the second matrix with its biases, and the routes.
    pub(crate) fn arguments(&self, matrix: usize, is_repacked: bool) -> Vec<(&'static str, Argument)> {
        let mut arguments = self.weight(matrix, is_repacked);
        arguments.extend(self.bias(matrix));
        arguments.push(("routes", Argument::U32(self.routes.words())));
        arguments
    }

    /// Rows and stored columns of each expert's matrix.
    pub(crate) fn repacked(&self, matrix: usize) -> [usize; 2] {
        let [rows, columns] = repacked(self.matrix(matrix));
        [rows / self.experts, columns]
    }

    /// The expected activations of every pair.
    pub(crate) fn wanted_inner(&self) -> Vec<Expected> {
        self.inner(&self.x, &self.routes, &[])
    }

    /// The expected sum over experts, given the values of each pair.
    pub(crate) fn wanted_sum(&self, given: &[f32]) -> Vec<Expected> {
        let given = relative(given.iter().copied().map(f64::from), 0.0);
        self.sum(&given, &self.routes)
    }
}
