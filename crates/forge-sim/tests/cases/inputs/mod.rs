//! Inputs of kernels: the contents of each buffer of a spec before a dispatch, by buffer name.

mod attention;
mod experts;
mod recurrent;
mod rows;

use super::{CONTEXT, Launch, Writer};
use forge_kernels::Spec;
use forge_ops::Format;

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
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.seed >> 8
    }

    /// A pseudorandom number between -1 and 1.
    fn float(&mut self) -> f32 {
        self.random() as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Content {
        Content::Words((0..count).map(|_| self.float().to_bits()).collect())
    }

    /// A plane of a weight; columns past the last are zeros.
    fn plane(&mut self, format: Format, plane: &str, rows: usize, columns: usize) -> Content {
        let group = format.group();
        let mut bytes = Vec::new();
        for row in 0..rows {
            for column in 0..columns.next_multiple_of(group) {
                // A block of zeros may have any exponent, even one whose scale is infinite.
                let empty = format == Format::Mxfp4 && row == 0 && column < group;
                let value = if column < columns { self.float() } else { 0.0 };
                match (format, plane) {
                    // An f16 scale of 2^-8, and an offset.
                    (Format::Q4K | Format::Q5K, "scales") if column % group == 0 => {
                        // f16 scales of 2^-12 and 2^-8, and 6-bit scales per 16 columns.
                        bytes.extend([0x0c00u16, 0x1c00u16].map(u16::to_le_bytes).concat());
                        bytes.extend((0..16).map(|_| self.random() as u8 & 63));
                    }
                    (Format::Q2K, "scales") if column % group == 0 => {
                        // f16 scales of 2^-8, and two nibbles per 16 columns.
                        bytes.extend([0x1c00u16, 0x1c00u16].map(u16::to_le_bytes).concat());
                        bytes.extend((0..16).map(|_| self.random() as u8));
                    }
                    (Format::Iq4Xs, "scales") if column % group == 0 => {
                        bytes.extend(0x0400u16.to_le_bytes());
                        bytes.extend((0..8).map(|_| self.random() as u8));
                    }
                    (Format::Q6K | Format::Q3K, "scales") if column % group == 0 => {
                        bytes.extend(0x0400u16.to_le_bytes());
                        bytes.extend((0..16).map(|_| self.random() as u8));
                    }
                    (Format::Nvfp4, "scales") if column % group == 0 => {
                        bytes.extend(0.003_906_25_f32.to_le_bytes());
                        bytes.extend((0..8).map(|_| self.random() as u8 & 0x3f));
                    }
                    (Format::Mxfp4, "scales") if column % group == 0 => {
                        bytes.push(if empty { 241 } else { 122 })
                    }
                    (Format::Fp8, "scales") if column % group == 0 => {
                        bytes.extend(0.003_906_25_f32.to_le_bytes())
                    }
                    (_, "scales") if column % group == 0 => {
                        bytes.extend(0x1c00u16.to_le_bytes());
                        if matches!(format, Format::Affine(_)) {
                            bytes.extend(0xb000u16.to_le_bytes());
                        }
                    }
                    (_, "scales") => {}
                    (Format::F32, _) => bytes.extend(value.to_le_bytes()),
                    (Format::F16, _) => {
                        bytes.extend((0x3000u16 | (value.to_bits() >> 16) as u16 & 0x83ff).to_le_bytes())
                    }
                    (Format::Bf16, _) => bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
                    // No NaN.
                    (Format::Fp8, _) => bytes.push(self.random() as u8 & 0xbf),
                    (Format::Q8_0, _) => bytes.push((value * 127.0) as i8 as u8),
                    _ if column % 8 == 0 => {
                        let bits = format.bits().map_or(0, |bits| bits.count());
                        bytes.extend((0..bits).map(|_| if empty { 0 } else { self.random() as u8 }));
                    }
                    _ => {}
                }
            }
        }
        Content::Weights(bytes)
    }
}

/// The plane of a weight that a buffer holds, by its name.
fn plane_of(name: &str) -> &str {
    name.split('_').nth(1).unwrap_or_default()
}

/// Capacity of a slot in positions.
pub(super) fn capacity(ring: Option<usize>) -> usize {
    ring.unwrap_or(CONTEXT).min(CONTEXT)
}
