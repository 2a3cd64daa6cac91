//! Writes the weight file in file order with bounded memory.
//!
//! In memory are one block of rows, and the scales of the current matrix: they follow its quantized values in
//! the file and take at most a quarter of their size.

use crate::codec::range_error::RangeError;
use crate::file::gather;
use crate::file::layout::{FileLayout, Place};
use crate::file::matrix::{Encoded, Matrix, unrepresentable_value};
use crate::quantization_error::{Stat, Summary, Sums};
use forge_ir::{Diagnostic, Graph, ImportanceMatrix, Packed, WeightRows};
use std::io::Write;

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
    for run in &layout.runs {
        let members = run.iter().map(|index| (*index, &plan[*index], &layout.weights[*index]));
        let members = members.map(|(index, packed, place)| {
            Ok((index, packed, place, Matrix::of(graph, packed, weights, statistics)?))
        });
        let members = members.collect::<Result<Vec<_>, Diagnostic>>()?;
        // Expert by expert, all matrices of each.
        for expert in 0..members.first().map_or(0, |(_, _, place, _)| place.experts) {
            for (index, packed, place, matrix) in &members {
                let mut report =
                    |written| progress(Progress { weight: &packed.name, written, total: layout.bytes });
                match matrix {
                    Some(matrix) => {
                        let sums = &mut sums[*index];
                        write_matrix(matrix, (place, expert), &mut out, sums, &mut report)?;
                    }
                    None => write_vector((graph, packed, weights), place, &mut out)?,
                }
                report(out.written);
            }
        }
    }
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

/// Streams a matrix, or an expert's part of a stack: quantized values first, then scales. Adds the errors to
/// `sums`.
fn write_matrix(
    matrix: &Matrix<'_>,
    (place, expert): (&Place, usize),
    out: &mut Output<'_>,
    sums: &mut Sums,
    report: &mut dyn FnMut(u64),
) -> Result<(), Diagnostic> {
    let mut scales = Vec::new();
    let record = expert as u64 * place.record;
    out.pad_to(record + place.planes[0].0)?;
    let take = |block: Encoded| {
        let [values, more] = block.planes;
        out.put(&values)?;
        scales.extend(more);
        *sums = block.sums.into_iter().fold(*sums, Sums::plus);
        report(out.written);
        Ok(())
    };
    let rows = matrix.rows() / place.experts;
    matrix.in_parallel(expert * rows..(expert + 1) * rows, |rows| matrix.encode(rows), take)?;
    if !scales.is_empty() {
        out.pad_to(record + place.planes[1].0)?;
        out.put(&scales)?;
    }
    Ok(())
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
