//! Repacked matrices: strips of 16 interleaved rows, the layout in which the CPU device copies quantized
//! weights.
//!
//! A matrix in the file is row-major. SIMD lanes are then columns: each output ends with a horizontal sum,
//! and rows computed together are separate memory streams. In a strip, SIMD lanes are outputs. For each block
//! of 32 columns, the first four quants of all 16 rows are adjacent, then the next four. All lanes share x,
//! and a strip is one sequential stream:
//!
//! ```text
//! codes    [strip][block][word][16 outputs]   4-byte words, one per bit of a quant
//! scales   [strip][half][16 outputs]          16-bit scales; byte scales are moved in pairs
//! ```
//!
//! A strip has the size and the offset of its rows, so a matrix stays at its offset. [`survey`] runs the
//! model on a recording pass to find the matrices to repack. It selects those whose kernels all support
//! repacked weights.

use crate::cpu::format::matrix;
use crate::cpu::format::matrix::BLOCK;
use crate::cpu::format::quant_plane::columns;
use crate::cpu::simd::vectors::Simd;
use crate::device::{Binding, Buffer, Kernel, Pass, Schedule};
use crate::model::Model;
use crate::offload::{ExpertWeights, Repacking};
use std::collections::{BTreeSet, HashMap};
#[cfg(target_os = "linux")]
use std::ops::Range;

/// Rows (outputs) in a strip.
pub(crate) const OUTPUTS: usize = 16;

/// A matrix of the weight file that can be repacked, or a stack of one such matrix per expert.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepackedMatrix {
    /// Start and end offsets of the quants and of the scales in the file; for experts, the first one's.
    planes: [[usize; 2]; 2],
    /// Strips per matrix.
    count: usize,
    /// Blocks per row.
    blocks: usize,
    /// Number of matrices, and stride in bytes.
    matrices: usize,
    record: usize,
}

/// Finds the matrices that can be repacked, because all kernels of `model` that read them support it.
pub fn survey(model: &dyn Model) -> Vec<RepackedMatrix> {
    let layout = model.layout();
    let mut survey =
        RepackSurvey { experts: &layout.experts, repacked: BTreeSet::new(), others: BTreeSet::new() };
    for (program, count) in
        [(Schedule::Decode, 1), (Schedule::Batch, 1), (Schedule::Batch, model.info().prefill_chunk)]
    {
        model.forward(&mut survey, &layout.rows(program, count, count));
        model.head(&mut survey, program, &layout.logit_rows(count.min(model.info().head_rows), false));
    }
    survey.found()
}

/// A pass that computes nothing and records how weights are read. Planes are identified by their offset.
struct RepackSurvey<'a> {
    experts: &'a [ExpertWeights],
    repacked: BTreeSet<RepackedMatrix>,
    /// Offsets of planes that are read in other ways.
    others: BTreeSet<usize>,
}

impl RepackSurvey<'_> {
    /// Matrices that are read only as repacked, and with one shape.
    fn found(self) -> Vec<RepackedMatrix> {
        let RepackSurvey { repacked, others, .. } = self;
        let alone = |matrix: &&RepackedMatrix| {
            let shaped = repacked.iter().filter(|other| other != matrix).flat_map(RepackedMatrix::starts);
            let mut others = shaped.chain(others.iter().copied());
            !others.any(|other| matrix.starts().contains(&other))
        };
        repacked.iter().filter(alone).cloned().collect()
    }
}

impl Pass for RepackSurvey<'_> {
    fn dispatch(&mut self, kernel: &'static Kernel, bindings: &[Binding], _: &[u32], _: [u32; 3]) {
        let plane = |name: &str| {
            let slot = kernel.buffers.iter().position(|buffer| buffer.ends_with(name));
            slot.and_then(|slot| bindings.get(slot)).filter(|binding| binding.buffer == Buffer::Weights)
        };
        let strips = match (kernel.strips, plane("_codes"), plane("_scales")) {
            (Some(shape), Some(codes), Some(scales)) => {
                let has = |stacks: &&ExpertWeights| stacks.planes().any(|plane| plane.offset == codes.offset);
                let stacks = self.experts.iter().find(has);
                let apart =
                    stacks.map_or(RepackedMatrix::SINGLE, |stacks| [stacks.experts, stacks.record_bytes()]);
                RepackedMatrix::new(shape, codes, scales, apart)
            }
            _ => None,
        };
        let starts = strips.as_ref().map(RepackedMatrix::starts);
        for binding in bindings.iter().filter(|binding| binding.buffer == Buffer::Weights) {
            if !starts.is_some_and(|starts| starts.contains(&binding.offset)) {
                self.others.insert(binding.offset);
            }
        }
        self.repacked.extend(strips);
    }

    fn barrier(&mut self) {}

    fn gpu_cores(&self) -> u32 {
        0
    }

    fn mla_expand_min_rows(&self, _planned: u32) -> Option<u32> {
        None
    }
}

impl RepackedMatrix {
    /// A single matrix: one, at no stride.
    pub const SINGLE: [usize; 2] = [1, 0];

    /// Describes one matrix of `rows` rows and `columns` stored columns, or `matrices` of them at a stride of
    /// `record` bytes. None if its rows are not whole strips or its format cannot be repacked.
    pub fn new(
        [rows, columns]: [usize; 2],
        codes: &Binding,
        scales: &Binding,
        [matrices, record]: [usize; 2],
    ) -> Option<RepackedMatrix> {
        let (count, blocks) = (rows / OUTPUTS, columns.div_ceil(BLOCK));
        // A binding of experts spans all of them.
        let own = |plane: &Binding| plane.bytes.checked_sub((matrices - 1) * record);
        let (of_codes, of_scales) = (own(codes)?, own(scales)?);
        // The quants of a block are whole 4-byte words, and the scales of a row whole 2-byte words.
        let is_whole = count * OUTPUTS == rows
            && of_codes.is_multiple_of(4 * rows * blocks)
            && of_scales.is_multiple_of(2 * rows);
        let plane = |plane: &Binding, bytes: usize| [plane.offset, plane.offset + bytes];
        let planes = [plane(codes, of_codes), plane(scales, of_scales)];
        is_whole.then_some(RepackedMatrix { planes, count, blocks, matrices, record })
    }

    /// Offsets of the quants and of the scales.
    pub(crate) fn starts(&self) -> [usize; 2] {
        self.planes.map(|[start, _]| start)
    }

    /// Bytes of a strip in each plane.
    pub(crate) fn strip_bytes(&self) -> [usize; 2] {
        self.planes.map(|[start, end]| (end - start) / self.count)
    }
}

/// How to repack planes that are read from disk, by their offset in the file.
pub fn arrangements(matrices: &[RepackedMatrix]) -> HashMap<usize, Repacking> {
    let of_matrix = |matrix: &RepackedMatrix| {
        let ([codes, scales], [of_codes, of_scales]) = (matrix.starts(), matrix.strip_bytes());
        let arrangement = |bytes, arrange| Repacking { group_bytes: bytes, repack: arrange };
        [(codes, arrangement(of_codes, in_place::<4>)), (scales, arrangement(of_scales, in_place::<2>))]
    };
    matrices.iter().flat_map(of_matrix).collect()
}

/// Repacks the rows of one strip in place; `buffer` is a buffer of the same size.
fn in_place<const N: usize>(rows: &mut [u8], buffer: &mut [u8]) {
    buffer.copy_from_slice(rows);
    interleave::<N>(buffer, rows);
}

/// Repacking from the mapped file, for copied weights.
#[cfg(target_os = "linux")]
impl RepackedMatrix {
    /// The strip indices of each matrix.
    pub(crate) fn of_each(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.matrices).map(|matrix| matrix * self.count..(matrix + 1) * self.count)
    }

    /// File ranges of some strips of one matrix, in each plane.
    pub(crate) fn places(&self, strips: Range<usize>) -> [Range<usize>; 2] {
        let (matrix, first) = (strips.start / self.count, strips.start % self.count);
        let [codes, scales] = self.starts().map(|start| start + matrix * self.record);
        let place = |start: usize, size: usize| start + first * size..start + (first + strips.len()) * size;
        let [of_codes, of_scales] = self.strip_bytes();
        [place(codes, of_codes), place(scales, of_scales)]
    }

    /// File ranges of the planes of all matrices.
    pub(crate) fn planes(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let of = |matrix: usize| {
            let first = matrix * self.record;
            self.planes.map(|[start, end]| first + start..first + end)
        };
        (0..self.matrices).flat_map(of)
    }

    /// The file range from the first to the last byte of all planes.
    pub(crate) fn extent(&self) -> Range<usize> {
        let [codes, scales] = self.planes;
        codes[0].min(scales[0])..codes[1].max(scales[1]) + (self.matrices - 1) * self.record
    }

    /// Repacks strip `strip` of the file into the copy.
    ///
    /// # Safety
    /// `copy` must be as long as the file, and no other thread may access the bytes of this strip.
    pub(crate) unsafe fn repack_strip(&self, strip: usize, file: &[u8], copy: *mut u8) {
        let [codes, scales] = self.places(strip..strip + 1).map(|place| {
            // SAFETY: planes are in bounds of the file, and so of the copy.
            let to = unsafe { std::slice::from_raw_parts_mut(copy.add(place.start), place.len()) };
            (&file[place], to)
        });
        interleave::<4>(codes.0, codes.1);
        interleave::<2>(scales.0, scales.1);
    }
}

/// The dequantized elements of a block of a repacked matrix, for output `output` of the strip.
#[inline(always)]
pub(crate) unsafe fn load_output<S: Simd, M: matrix::Matrix>(
    matrix: M,
    block: usize,
    output: usize,
) -> [f32; BLOCK] {
    let (part, lane) = (output / S::LANES, output % S::LANES);
    let mut values = [0.0; BLOCK];
    let (mut scales, mut offsets) = ([[0.0; OUTPUTS]; 2], [[0.0; OUTPUTS]; 2]);
    // SAFETY: the caller ensures that the block exists; no instruction set has more than 16 lanes.
    unsafe {
        let (of_block, offsets_of_block) =
            (matrix.strip_scales::<S>(block, part), matrix.strip_offsets::<S>(block, part));
        for half in 0..2 {
            S::store(scales[half].as_mut_ptr(), of_block[half]);
            S::store(offsets[half].as_mut_ptr(), offsets_of_block[half]);
        }
        for pair in 0..BLOCK / 8 {
            let codes = matrix.strip_codes::<S>(block, pair, part);
            for (codes, first) in codes.into_iter().zip(columns(pair)) {
                let mut words = [[0_i8; 4]; OUTPUTS];
                S::store_bytes(words.as_mut_ptr().cast(), codes);
                let half = first / (BLOCK / 2);
                for (value, code) in values[first..first + 4].iter_mut().zip(words[lane]) {
                    // The bias may exceed the range of signed bytes, but not that of unsigned ones.
                    let code = match M::raised::<S>() {
                        0 => i32::from(code),
                        raised => i32::from(code.cast_unsigned()) - raised,
                    };
                    // Quant times scale is exact, so the offset is added to an exact product.
                    *value = (code + M::QUANT_OFFSET) as f32 * scales[half][lane] + offsets[half][lane];
                }
            }
        }
    }
    values
}

/// Interleaves 16 rows of `N`-byte words: the first word of each row, then the second of each.
fn interleave<const N: usize>(rows: &[u8], to: &mut [u8]) {
    let rows = rows.as_chunks::<N>().0;
    let width = rows.len() / OUTPUTS;
    for (word, to) in to.as_chunks_mut::<N>().0.chunks_exact_mut(OUTPUTS).enumerate() {
        for (output, to) in to.iter_mut().enumerate() {
            *to = rows[output * width + word];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::kernel_cost::KernelCost;

    /// The number of matrices found if kernels read a matrix of 1,024 bytes of quants with these shapes, or
    /// unrepacked.
    fn found(reads: &[Option<[usize; 2]>]) -> usize {
        let mut survey = RepackSurvey { experts: &[], repacked: BTreeSet::new(), others: BTreeSet::new() };
        for strips in reads {
            let buffers = &["weight_codes", "weight_scales", "bias", "y"];
            let kernel = Kernel {
                name: "reader",
                buffers,
                threads: 32,
                strips: *strips,
                cost: KernelCost::NONE,
                cpu: |_| (),
            };
            let weight = |offset, bytes| Binding { buffer: Buffer::Weights, offset, bytes, written: false };
            let y = Binding { buffer: Buffer::Scratch, offset: 0, bytes: 64, written: true };
            let bindings = [weight(0, 1024), weight(2048, 128), weight(4096, 64), y];
            survey.dispatch(Box::leak(Box::new(kernel)), &bindings, &[1], [1, 1, 1]);
        }
        survey.found().len()
    }

    #[test]
    fn matrices_are_repacked_if_all_readers_support_it() {
        assert_eq!(found(&[Some([32, 64])]), 1);
        assert_eq!(found(&[Some([32, 64]), Some([32, 63])]), 1, "columns are padded");
        assert_eq!(found(&[None]), 0);
        assert_eq!(found(&[Some([32, 64]), None]), 0, "one reads rows");
        assert_eq!(found(&[Some([32, 64]), Some([16, 128])]), 0, "one reads another shape");
        assert_eq!(found(&[Some([8, 256])]), 0, "no whole strip");
        assert_eq!(found(&[Some([32, 96])]), 0, "not so many bytes");
    }

    #[test]
    fn repacking_interleaves_words_of_16_rows() {
        let rows: Vec<u8> = (0..16).flat_map(|row| [[row, 0, 9, 9], [row, 1, 9, 9]]).flatten().collect();
        let mut strip = vec![0; rows.len()];
        interleave::<4>(&rows, &mut strip);
        let words: Vec<[u8; 2]> = strip.chunks(4).map(|word| [word[0], word[1]]).collect();
        assert_eq!((words[0], words[1], words[15], words[16]), ([0, 0], [1, 0], [15, 0], [0, 1]));
        let (mut place, mut buffer) = (rows.clone(), rows);
        in_place::<4>(&mut place, &mut buffer);
        assert_eq!(place, strip);
    }
}
