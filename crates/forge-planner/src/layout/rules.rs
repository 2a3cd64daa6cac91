//! Kernel layouts: measured ones, or the defaults for the chip; and the number of partial sums that they
//! imply.

use crate::fuse::list::{CombineInput, Epilogue, ExpertsSum, Kind, Linear};
use crate::layout::tuning_key::{ExpertMatrix, ExpertsProduct, Layout, LinearKey, TuningKey};
use crate::lower::select::{Select, places};
use crate::predict::chips::Chip;
use forge_ir::{Apply, Body, WeightId};
use forge_kernels::Spec;
use forge_kernels::spec::{self, Knobs};
use forge_ops::Format;

impl Select<'_> {
    /// Number of partial sums of the producer with the most threadgroups, rounded up to whole vectors. Other
    /// producers pad with zeros, so readers do not depend on the producer.
    pub(crate) fn most_partials(&self) -> usize {
        // A producer that has a whole row writes one.
        let mut most = 1;
        for (_, apply) in places(self.graph) {
            let body = self.graph.body(apply);
            for operation in &self.lists.decode[apply.body.0].operations {
                match &operation.kind {
                    Kind::Linear(linear) if matches!(linear.ending, Epilogue::AddSquares(_)) => {
                        let (format, outputs, inputs) = self.matrix_shape(body, apply, linear);
                        let knobs = self.knobs(spec::Rows::One, (format, outputs, inputs), linear.ending);
                        most = most.max(outputs.div_ceil(knobs.outputs_of_group()));
                    }
                    Kind::ExpertsSum(sum) if matches!(sum.ending, CombineInput::AddSquares(_)) => {
                        let Some(down) = apply.weight(body, sum.down) else { continue };
                        let weight = &self.graph.weights[down.0];
                        let outputs = weight.rows() / weight.matrices();
                        let shape = (self.formats.of(&[down]), outputs, weight.columns());
                        let stacks = [Some(down), sum.shared.and_then(|shared| apply.weight(body, shared))];
                        let experts = stacks
                            .into_iter()
                            .flatten()
                            .map(|stack| self.graph.weights[stack.0].matrices())
                            .sum();
                        let (rows, simdgroups) = self.sum_knobs(experts, shape, sum);
                        most = most.max(outputs.div_ceil(rows * simdgroups));
                    }
                    _ => {}
                }
            }
        }
        most.next_multiple_of(4)
    }

    /// Format, rows and columns of a projection's matrix.
    pub(crate) fn matrix_shape(&self, body: &Body, apply: &Apply, linear: &Linear) -> (Format, usize, usize) {
        let weights: Vec<WeightId> =
            linear.parts.iter().filter_map(|part| apply.weight(body, part.0)).collect();
        let rows = weights.iter().map(|id| self.graph.weights[id.0].rows()).sum();
        let columns = weights.first().map_or(0, |id| self.graph.weights[id.0].columns());
        (self.formats.of(&weights), rows, columns)
    }

    /// The measured layout for a key, if any.
    fn measured(&self, subject: &TuningKey) -> Option<Layout> {
        self.options.tuned.as_ref()?.layout(subject)
    }

    /// The kernel with its measured layout, or unchanged.
    pub(crate) fn laid_out(&self, spec: &Spec) -> Spec {
        let measured = TuningKey::of(spec).and_then(|(subject, _)| self.measured(&subject));
        measured.and_then(|layout| layout.apply_to(spec)).unwrap_or_else(|| spec.clone())
    }

    /// The target chip.
    pub(crate) fn chip(&self) -> &'static Chip {
        self.options.chip.unwrap_or_else(Chip::common)
    }

    pub(crate) fn knobs(
        &self,
        rows: spec::Rows,
        (format, outputs, inputs): (Format, usize, usize),
        ending: Epilogue,
    ) -> Knobs {
        if rows.of_decode_batch().is_some() {
            return self
                .knobs(spec::Rows::One, (format, outputs, inputs), ending)
                .for_decode_batch(rows, format);
        }
        let writes_partials = matches!(ending, Epilogue::AddSquares(_) | Epilogue::Best);
        let product = LinearKey { rows, format, outputs, inputs, writes_partials };
        // An f32 KV cache means that nothing is rounded, so activations are neither quantized nor split.
        let exact = self.plan.cache == Format::F32;
        match self.measured(&TuningKey::Projection(product)) {
            Some(Layout::Projection(measured)) if !(measured.mma && exact) => measured,
            _ => {
                let chip = self.chip();
                Knobs::for_chip(
                    chip.family,
                    chip.cores as usize,
                    rows,
                    format,
                    [outputs, inputs],
                    writes_partials,
                    exact,
                )
            }
        }
    }

    /// Outputs that a per-head matmul kernel computes at once.
    pub(crate) fn heads_knob(&self, format: Format, shape: [usize; 3], transposed: bool) -> usize {
        let chip = self.chip();
        spec::PerHeadLayout::each_for(chip.cores as usize, format, shape, transposed)
    }

    /// Rows per simdgroup and simdgroups per threadgroup of an expert kernel with this many outputs and
    /// inputs.
    pub(crate) fn experts_knobs(
        &self,
        (format, outputs, inputs): (Format, usize, usize),
        writes_partials: bool,
    ) -> (usize, usize) {
        let chip = self.chip();
        Knobs::of_experts(chip.family, chip.cores as usize, format, outputs, inputs, writes_partials)
    }

    /// The same for the down projection with its sum, which treats all experts of a row as one long row.
    /// Measured layouts are applied here too, because the number of partial sums depends on them.
    pub(crate) fn sum_knobs(
        &self,
        experts: usize,
        (format, outputs, inputs): (Format, usize, usize),
        sum: &ExpertsSum,
    ) -> (usize, usize) {
        let writes_partials = matches!(sum.ending, CombineInput::AddSquares(_));
        let (product, rows) =
            (ExpertMatrix::Down, if writes_partials { spec::Rows::One } else { spec::Rows::Few });
        let chosen = sum.chosen;
        let product =
            ExpertsProduct { product, rows, format, experts, chosen, outputs, inputs, writes_partials };
        if let Some(Layout::Experts(measured)) = self.measured(&TuningKey::Experts(product)) {
            return (measured.rows_per_simdgroup, measured.simdgroups);
        }
        self.experts_knobs((format, outputs, sum.chosen * inputs), writes_partials)
    }
}
