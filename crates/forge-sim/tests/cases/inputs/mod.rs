//! Inputs of kernels: the contents of each buffer of a spec before a dispatch, by buffer name.

mod attention;
mod experts;
mod recurrent;
mod rows;

use super::{CONTEXT, Launch, Writer};
use forge_kernels::Spec;
use forge_ops::Format;
use forge_oracle::{Matrix, Random};

/// The contents of a buffer before a dispatch.
pub(super) enum Content {
    /// Uninitialized; the size.
    Unwritten(usize),
    /// Words.
    Words(Vec<u32>),
    /// A buffer of this size, initialized with words from an offset on.
    Parts(usize, Vec<(usize, Vec<u32>)>),
    /// A part of the weight file.
    Weights(Vec<u8>),
}

impl Writer {
    /// The contents of a buffer of a spec for this number of rows.
    pub(super) fn content(&mut self, spec: &Spec, name: &str, rows: usize, launch: &Launch) -> Content {
        let slot = |index: usize| u32::from(index < rows - launch.others);
        match name {
            "slots" => return Content::Words((0..rows).map(slot).collect()),
            "positions" => return Content::Words(launch.positions.clone()),
            _ => {}
        }
        match spec {
            Spec::Embed(_)
            | Spec::LayerNorm(_)
            | Spec::NormAdd(_)
            | Spec::RmsNorm(_)
            | Spec::Linear(_)
            | Spec::Quantize(_)
            | Spec::PerHeadLinear(_)
            | Spec::Elementwise(_)
            | Spec::SliceColumns(_)
            | Spec::Argmax(_)
            | Spec::ArgmaxCombine(_)
            | Spec::Sample(_) => self.of_rows(spec, name, rows),
            Spec::Rope(_)
            | Spec::Append(_)
            | Spec::RopeAppend(_)
            | Spec::AttendSplit(_)
            | Spec::AttendTiled(_)
            | Spec::AttendCombine(_)
            | Spec::MlaAppend(_)
            | Spec::MlaAttention(_)
            | Spec::MlaLoadLatents(_)
            | Spec::MlaAttentionExpanded(_) => self.of_attention(spec, name, rows, launch),
            Spec::Convolve(_)
            | Spec::DeltaRule(_)
            | Spec::DeltaChunks(_)
            | Spec::DeltaStep(_)
            | Spec::GatedRmsNorm(_) => self.of_recurrence(spec, name, rows, launch),
            Spec::Route(_)
            | Spec::ExpertsInner(_)
            | Spec::ExpertsSum(_)
            | Spec::ExpertsGroup(_)
            | Spec::ExpertsTiles(_)
            | Spec::ExpertsCombine(_) => self.of_experts(spec, name, rows),
        }
    }

    fn random(&mut self) -> u32 {
        self.random.bits() as u32
    }

    /// A pseudorandom number between -1 and 1.
    fn float(&mut self) -> f32 {
        self.random.number()
    }

    fn floats(&mut self, count: usize) -> Content {
        Content::Words((0..count).map(|_| self.float().to_bits()).collect())
    }
}

/// The plane of a weight that a buffer of this name has. All planes are of the same random matrix.
fn plane(format: Format, name: &str, rows: usize, columns: usize) -> Content {
    let matrix = Matrix::random(&mut Random(1), format, rows, columns, 1.0);
    Content::Weights(matrix.plane(name).to_vec())
}

/// Capacity of a slot in positions.
pub(super) fn capacity(ring: Option<usize>) -> usize {
    ring.unwrap_or(CONTEXT).min(CONTEXT)
}
