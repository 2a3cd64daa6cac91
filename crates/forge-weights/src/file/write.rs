//! Writes the weight file in file order with bounded memory.
//!
//! In memory are a few chunks of rows for each core, and the scales of the current matrix: they follow its quantized
//! values in the file and take at most a quarter of their size.

use crate::codec::range_error::RangeError;
use crate::file::gather;
use crate::file::in_order::in_order;
use crate::file::layout::{FileLayout, Place};
use crate::file::matrix::{Matrix, unrepresentable_value};
use crate::quantization_error::{Stat, Summary, Sums};
use forge_ir::{Diagnostic, Graph, ImportanceMatrix, Packed, WeightRows};
use std::io::Write;
use std::ops::Range;

/// Progress of the write.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The current weight.
    pub weight: &'a str,
    /// Bytes written.
    pub written: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// Writes the file of a plan.
///
/// # Errors
/// If the plan does not fit the graph, a value does not fit its format, or reading or writing fails. The
/// sink's contents are then incomplete.
pub fn write(
    graph: &Graph,
    plan: &[Packed],
    weights: &dyn WeightRows,
    sink: &mut dyn Write,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary, Diagnostic> {
    write_calibrated(graph, plan, weights, None, sink, progress)
}

/// As [`write()`], where quantization minimizes the error of the outputs for these activation statistics.
///
/// # Errors
/// As [`write()`].
pub fn write_calibrated(
    graph: &Graph,
    plan: &[Packed],
    weights: &dyn WeightRows,
    statistics: Option<&ImportanceMatrix>,
    sink: &mut dyn Write,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary, Diagnostic> {
    let layout = FileLayout::new(graph, plan)?;
    let mut out = Output { sink, hasher: crc32fast::Hasher::new(), written: 0 };
    out.put(&layout.header)?;
    let mut sums = vec![Sums::default(); plan.len()];
    let matrices = plan.iter().map(|packed| Matrix::of(graph, packed, weights, statistics));
    let matrices = matrices.collect::<Result<Vec<_>, Diagnostic>>()?;
    let chunks = chunks(&layout, &matrices);
    let encode = |chunk: &Chunk| {
        let matrix = matrices[chunk.weight].as_ref();
        matrix.map(|matrix| matrix.encode(chunk.rows.clone())).transpose()
    };
    // The scales of the current matrix, or of the expert's part of a stack.
    let mut scales = Vec::new();
    in_order(&chunks, encode, |chunk, encoded| {
        let (packed, place) = (&plan[chunk.weight], &layout.weights[chunk.weight]);
        match encoded {
            Some(encoded) => {
                let sums = &mut sums[chunk.weight];
                *sums = encoded.sums.into_iter().fold(*sums, Sums::plus);
                let [values, more] = encoded.planes;
                if chunk.is_first {
                    out.pad_to(chunk.record + place.planes[0].0)?;
                }
                out.put(&values)?;
                scales.extend(more);
                if chunk.is_last && !scales.is_empty() {
                    out.pad_to(chunk.record + place.planes[1].0)?;
                    out.put(&scales)?;
                    scales.clear();
                }
            }
            None => write_vector((graph, packed, weights), place, &mut out)?,
        }
        progress(Progress { weight: &packed.name, written: out.written, total: layout.bytes });
        Ok(())
    })?;
    out.pad_to(layout.bytes)?;
    out.sink.flush().map_err(|error| unwritable(&error))?;
    let weights = plan.iter().zip(&layout.weights).zip(sums).map(|((packed, place), sums)| Stat {
        name: packed.name.clone(),
        format: packed.format,
        bytes: place.planes.iter().map(|(_, bytes)| bytes * place.experts as u64).sum(),
        error: sums.relative(),
        output_error: sums.relative_output(),
        sums,
    });
    Ok(Summary { bytes: out.written, crc32: out.hasher.finalize(), weights: weights.collect() })
}

fn write_vector(
    (graph, packed, weights): (&Graph, &Packed, &dyn WeightRows),
    place: &Place,
    out: &mut Output<'_>,
) -> Result<(), Diagnostic> {
    let row = gather::vector(weights, graph, packed)?;
    if let Some(column) = row.iter().position(|x| !x.is_finite()) {
        return Err(unrepresentable_value(graph, packed, column, RangeError::NotFinite { column: 0 }));
    }
    out.pad_to(place.planes[0].0)?;
    let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
    out.put(&bytes)
}

/// Part of the file that is encoded at once: rows of a matrix, or a vector.
struct Chunk {
    /// Index of the weight in the plan.
    weight: usize,
    rows: Range<usize>,
    /// Offset of the expert's record in a stack.
    record: u64,
    /// Whether a matrix, or an expert's part of a stack, begins here, and whether it ends.
    is_first: bool,
    is_last: bool,
}

/// All chunks in file order: quantized values of a matrix, then scales. Experts come one after the other, each with all
/// of its matrices.
fn chunks(layout: &FileLayout, matrices: &[Option<Matrix<'_>>]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for run in &layout.runs {
        for expert in 0..run.first().map_or(0, |weight| layout.weights[*weight].experts) {
            for &weight in run {
                let place = &layout.weights[weight];
                let record = expert as u64 * place.record;
                let Some(matrix) = &matrices[weight] else {
                    chunks.push(Chunk { weight, rows: 0..0, record, is_first: true, is_last: true });
                    continue;
                };
                let each = matrix.rows() / place.experts;
                let all = expert * each..(expert + 1) * each;
                chunks.extend(matrix.chunks(all.clone()).map(|rows| Chunk {
                    weight,
                    record,
                    is_first: rows.start == all.start,
                    is_last: rows.end == all.end,
                    rows,
                }));
            }
        }
    }
    chunks
}

/// The sink, with the bytes and the checksum written so far.
struct Output<'a> {
    sink: &'a mut dyn Write,
    hasher: crc32fast::Hasher,
    written: u64,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Diagnostic> {
        self.sink.write_all(bytes).map_err(|error| unwritable(&error))?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to an offset.
    fn pad_to(&mut self, start: u64) -> Result<(), Diagnostic> {
        self.put(&vec![0; (start - self.written) as usize])
    }
}

fn unwritable(error: &std::io::Error) -> Diagnostic {
    Diagnostic::new("F0603", format!("cannot write the weight file: {error}"))
}
