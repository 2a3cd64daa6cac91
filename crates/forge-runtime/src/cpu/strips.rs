//! Matrices in strips: sixteen rows side by side, as the CPU device lays weights out when it copies them.
//!
//! In the file a matrix lies row by row. Lanes are columns then: each output ends with a sum over lanes, and rows that are computed
//! at once are as many streams from memory. In a strip lanes are outputs. Of each 32 columns the first four codes of all
//! sixteen rows lie side by side, then the next four; x is the same for all lanes, and a strip is read from front to back:
//!
//! ```text
//! codes    [strip][block][word][16 outputs]   words of 4 bytes: 8 of 32 codes, or 4 of 32 nibbles
//! scales   [strip][block][16 outputs]         halves
//! ```
//!
//! A strip takes the bytes that its rows had, and lies where they lay, so that a matrix is where the model says. Which matrices can
//! be laid out so is asked of the model itself ([`survey`]): those of which every kernel that reads them says that it
//! can read strips.

use super::super::device::{Binding, Buffer, Kernel, Pass, Program};
use super::super::model::Model;
use super::formats::{self, BLOCK};
use std::collections::BTreeSet;
use std::ops::Range;

/// Outputs of a strip.
pub(super) const OUTPUTS: usize = 16;

/// A matrix of the weight file that can lie in strips.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Matrix {
    /// Its bytes in the file.
    codes: [usize; 2],
    scales: [usize; 2],
    /// Strips that it makes.
    strips: usize,
    /// Blocks of a row.
    blocks: usize,
}

/// The matrices that `model` reads in strips wherever it reads them.
pub fn survey<M: Model>(model: &M) -> Vec<Matrix> {
    let mut survey = Survey::default();
    let layout = model.layout();
    for (program, count) in [(Program::Decode, 1), (Program::Batch, 1), (Program::Batch, M::INFO.chunk)] {
        model.forward(&mut survey, &layout.rows(program, count, count));
        model.head(&mut survey, program, &layout.heads(count.min(M::INFO.head_rows)));
    }
    let Survey { in_strips, others } = survey;
    let is_read_otherwise = |matrix: &Matrix| {
        let apart =
            |[start, end]: &[usize; 2], other: &Range<usize>| *end <= other.start || other.end <= *start;
        let planes = [&matrix.codes, &matrix.scales];
        planes.iter().any(|plane| others.iter().any(|other| !apart(plane, other)))
            || in_strips.iter().any(|other| {
                let reads = [other.codes, other.scales].map(|[start, end]| start..end);
                other != matrix && planes.iter().any(|plane| reads.iter().any(|read| !apart(plane, read)))
            })
    };
    in_strips.iter().filter(|matrix| !is_read_otherwise(matrix)).cloned().collect()
}

/// A pass that computes nothing, and notes what is read of the weights.
#[derive(Default)]
struct Survey {
    in_strips: BTreeSet<Matrix>,
    /// What is read in other ways.
    others: Vec<Range<usize>>,
}

impl Pass for Survey {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], _: &[u32], _: [u32; 3]) {
        let plane = |name: &str| {
            let slot = kernel.buffers.iter().position(|buffer| buffer.ends_with(name));
            slot.and_then(|slot| bindings.get(slot)).filter(|binding| binding.buffer == Buffer::Weights)
        };
        let matrix = match (kernel.strips, plane("_codes"), plane("_scales")) {
            (Some(shape), Some(codes), Some(scales)) => Matrix::new(shape, codes, scales),
            _ => None,
        };
        let planes = matrix.as_ref().map(|matrix| [matrix.codes[0], matrix.scales[0]]);
        for binding in bindings.iter().filter(|binding| binding.buffer == Buffer::Weights) {
            if !planes.is_some_and(|planes| planes.contains(&binding.offset)) {
                self.others.push(binding.offset..binding.offset + binding.bytes);
            }
        }
        self.in_strips.extend(matrix);
    }

    fn barrier(&mut self) {}

    fn cores(&self) -> u32 {
        0
    }
}

impl Matrix {
    /// A matrix of so many rows and columns, if it makes whole strips.
    pub fn new([rows, columns]: [usize; 2], codes: &Binding, scales: &Binding) -> Option<Matrix> {
        let (strips, blocks) = (rows / OUTPUTS, columns.div_ceil(BLOCK));
        let matrix = Matrix {
            codes: [codes.offset, codes.offset + codes.bytes],
            scales: [scales.offset, scales.offset + scales.bytes],
            strips,
            blocks,
        };
        let of_codes = [4, 8].map(|words| rows * blocks * words * 4);
        let is_whole = strips * OUTPUTS == rows && scales.bytes == rows * blocks * 2;
        (is_whole && of_codes.contains(&codes.bytes)).then_some(matrix)
    }

    /// Where its planes begin.
    pub(super) fn starts(&self) -> [usize; 2] {
        [self.codes[0], self.scales[0]]
    }

    /// Its planes.
    pub(super) fn planes(&self) -> [Range<usize>; 2] {
        [self.codes, self.scales].map(|[start, end]| start..end)
    }

    /// Strips that it makes.
    pub(super) fn strips(&self) -> usize {
        self.strips
    }

    /// Bytes of a strip in each plane.
    pub(super) fn of_strip(&self) -> [usize; 2] {
        [self.codes, self.scales].map(|[start, end]| (end - start) / self.strips)
    }

    /// Writes strip number `strip` of the file's matrix to where it lies in the copy.
    ///
    /// # Safety
    /// `copy` has to begin as many bytes as the file has, and nobody else may touch those of this strip.
    pub(super) unsafe fn lay_out(&self, strip: usize, file: &[u8], copy: *mut u8) {
        let [of_codes, of_scales] = self.of_strip();
        let [codes, scales] =
            [(self.codes[0], of_codes), (self.scales[0], of_scales)].map(|(start, size)| {
                let start = start + strip * size;
                // SAFETY: planes lie in the file, and so in the copy.
                let to = unsafe { std::slice::from_raw_parts_mut(copy.add(start), size) };
                (&file[start..start + size], to)
            });
        beside::<4>(codes.0, codes.1);
        beside::<2>(scales.0, scales.1);
    }
}

/// A number of a matrix in strips: of an output of the strip and the 32 columns that a block is of.
#[inline(always)]
pub(super) unsafe fn number_of<M: formats::Matrix>(
    matrix: M,
    block: usize,
    output: usize,
    column: usize,
) -> f32 {
    // SAFETY: the caller promises that there is such a block.
    let (words, scale) =
        unsafe { (matrix.strip_words(block, column % (BLOCK / 2) / 4), matrix.strip_scale(block, output)) };
    let word = words[column / (BLOCK / 2)][output].to_ne_bytes();
    (i32::from(word[column % 4].cast_signed()) + M::LACKING.unwrap_or(0)) as f32 * scale
}

/// Sixteen rows of words of `N` bytes: the first word of each row, then the second of each.
fn beside<const N: usize>(rows: &[u8], to: &mut [u8]) {
    let rows = rows.as_chunks::<N>().0;
    let width = rows.len() / OUTPUTS;
    for (word, to) in to.as_chunks_mut::<N>().0.chunks_exact_mut(OUTPUTS).enumerate() {
        for (output, to) in to.iter_mut().enumerate() {
            *to = rows[output * width + word];
        }
    }
}
