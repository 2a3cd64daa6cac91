//! Rows of a packed matrix: gathered from its parts, multiplied by a folded gain, and encoded or copied in
//! the checkpoint's format. Also measures the quantization error of several formats before one is chosen.

use crate::codec::range_error::RangeError;
use crate::column_importance::ColumnImportance;
use crate::file::encoded_row::encode_row_with_sums;
use crate::file::gather;
use crate::file::in_order::in_order;
use crate::quantization_error::{QuantizationError, Sums};
use forge_ir::{Diagnostic, Format, Graph, ImportanceMatrix, Packed, WeightId, WeightRows};
use std::ops::Range;

/// Number of values that a thread encodes at once: few enough to stay in its cache.
const CHUNK_NUMBERS: usize = 1 << 17;

/// A matrix being packed.
pub(crate) struct Matrix<'a> {
    graph: &'a Graph,
    packed: &'a Packed,
    weights: &'a dyn WeightRows,
    rows: usize,
    columns: usize,
    /// Column multipliers of a folded gain.
    gain: Option<Vec<f32>>,
    importance: Option<ColumnImportance<'a>>,
}

/// Encoded rows.
pub(crate) struct Encoded {
    pub(crate) planes: [Vec<u8>; 2],
    /// One per row, so that the totals do not depend on the number of threads.
    pub(crate) sums: Vec<Sums>,
}

impl<'a> Matrix<'a> {
    /// `None` for a vector.
    pub(crate) fn of(
        graph: &'a Graph,
        packed: &'a Packed,
        weights: &'a dyn WeightRows,
        statistics: Option<&ImportanceMatrix>,
    ) -> Result<Option<Matrix<'a>>, Diagnostic> {
        let [rows, columns] = packed.shape[..] else { return Ok(None) };
        let gain = match packed.gain {
            Some(gain) => {
                let mut elements = vec![1.0; columns];
                weights.rows(gain, 0..1, &mut elements)?;
                Some(elements)
            }
            None => None,
        };
        let of = |statistics| ColumnImportance::new(graph, packed, statistics, gain.as_deref());
        let importance = statistics.map(of);
        Ok(Some(Matrix { graph, packed, weights, rows, columns, gain, importance }))
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Ranges of rows that are encoded at once. With interleaved parts, these are whole pairs.
    pub(crate) fn chunks(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let turn = gather::turn(self.packed.layout);
        let chunk = (CHUNK_NUMBERS / self.columns).max(1).next_multiple_of(turn);
        rows.clone().step_by(chunk).map(move |start| start..rows.end.min(start + chunk))
    }

    /// The values of some rows.
    fn gathered(&self, rows: Range<usize>) -> Result<Vec<f32>, Diagnostic> {
        let mut values = vec![0.0; rows.len() * self.columns];
        let read = |part, rows, out: &mut [f32]| self.weights.rows(part, rows, out);
        gather::matrix(read, self.graph, self.packed, rows, ([self.columns, 0], &mut values))?;
        if let Some(gain) = &self.gain {
            for row in values.chunks_exact_mut(self.columns) {
                row.iter_mut().zip(gain).for_each(|(x, gain)| *x *= gain);
            }
        }
        Ok(values)
    }

    /// Whether the checkpoint stores the matrix in exactly the planned quantized format, so that it is
    /// copied.
    fn is_kept(&self) -> bool {
        let Packed { format, parts, gain, .. } = self.packed;
        let same = |part: &WeightId| self.graph.weights[part.0].format == *format;
        format.is_quantized() && gain.is_none() && parts.iter().all(same)
    }

    /// The checkpoint's quantized values and scales of some rows.
    fn stored(&self, rows: Range<usize>) -> Result<[Vec<u8>; 2], Diagnostic> {
        let [codes, scales] = self.packed.format.plane_bytes(self.columns);
        let mut stored = vec![0; rows.len() * (codes + scales)];
        let read = |part, rows, out: &mut [u8]| self.weights.stored(part, rows, out);
        gather::matrix(read, self.graph, self.packed, rows, ([codes, scales], &mut stored[..]))?;
        let mut planes = [Vec::new(), Vec::new()];
        for row in stored.chunks_exact(codes + scales) {
            let (codes, scales) = row.split_at(codes);
            planes[0].extend_from_slice(codes);
            planes[1].extend_from_slice(scales);
        }
        Ok(planes)
    }

    /// Encodes rows in the planned format.
    pub(crate) fn encode(&self, rows: Range<usize>) -> Result<Encoded, Diagnostic> {
        let encoded = if self.is_kept() {
            self.encode_rows(self.packed.format, rows.start, None, self.stored(rows.clone())?)
        } else {
            self.encode_values(self.packed.format, rows.start, &self.gathered(rows.clone())?)
        };
        encoded.map_err(|(row, why)| unrepresentable_value(self.graph, self.packed, rows.start + row, why))
    }

    /// The weights of the squared errors of a row's columns, and their unit; `None` without statistics.
    fn column_weights(&self, row: usize) -> Option<(&[f32], f64)> {
        self.importance.as_ref()?.row(row)
    }

    /// Encodes rows from `first` on, or returns the first that cannot be encoded.
    fn encode_values(
        &self,
        format: Format,
        first: usize,
        values: &[f32],
    ) -> Result<Encoded, (usize, RangeError)> {
        let planes =
            format.plane_bytes(self.columns).map(|bytes| vec![0; values.len() / self.columns * bytes]);
        self.encode_rows(format, first, Some(values), planes)
    }

    /// Encodes rows from `first` on into planes. Without values, the planes have the rows already.
    fn encode_rows(
        &self,
        format: Format,
        first: usize,
        values: Option<&[f32]>,
        mut planes: [Vec<u8>; 2],
    ) -> Result<Encoded, (usize, RangeError)> {
        let [codes, scales] = format.plane_bytes(self.columns);
        let rows = planes[0].len() / codes;
        let mut sums = Vec::with_capacity(rows);
        let mut decoded = vec![0.0; self.columns];
        for index in 0..rows {
            let [plane, second] = &mut planes;
            let planes = [&mut plane[index * codes..][..codes], &mut second[index * scales..][..scales]];
            let row = values.map(|values| &values[index * self.columns..][..self.columns]);
            let weights = self.column_weights(first + index);
            let of_row = encode_row_with_sums(format, row, weights, planes, &mut decoded);
            sums.push(of_row.map_err(|why| (index, why))?);
        }
        Ok(Encoded { planes, sums })
    }

    /// The errors of some rows in each format; `None` for a format that cannot represent them.
    fn measure(&self, formats: &[Format], rows: Range<usize>) -> Result<Vec<Option<Vec<Sums>>>, Diagnostic> {
        let values = self.gathered(rows.clone())?;
        let sums = |format: &Format| match self.encode_values(*format, rows.start, &values) {
            Ok(encoded) => Ok(Some(encoded.sums)),
            Err((_, RangeError::TooLarge { .. })) => Ok(None),
            Err((row, why)) => Err(unrepresentable_value(self.graph, self.packed, rows.start + row, why)),
        };
        formats.iter().map(sums).collect()
    }
}

/// The quantization error of a packed matrix in each of these formats, whatever its planned format; `None`
/// for a format that cannot represent its values. With activation statistics, quantization minimizes the
/// error of the outputs.
///
/// # Errors
/// If reading fails or a value is not finite.
pub fn measure(
    graph: &Graph,
    packed: &Packed,
    weights: &dyn WeightRows,
    statistics: Option<&ImportanceMatrix>,
    formats: &[Format],
) -> Result<Vec<Option<QuantizationError>>, Diagnostic> {
    let mut totals = vec![Some(Sums::default()); formats.len()];
    let Some(matrix) = Matrix::of(graph, packed, weights, statistics)? else {
        return Ok(vec![None; formats.len()]);
    };
    let chunks: Vec<Range<usize>> = matrix.chunks(0..matrix.rows).collect();
    let work = |rows: &Range<usize>| matrix.measure(formats, rows.clone());
    in_order(&chunks, work, |_, measured| {
        for (total, sums) in totals.iter_mut().zip(measured) {
            *total = total.zip(sums).map(|(total, sums)| sums.into_iter().fold(total, Sums::plus));
        }
        Ok(())
    })?;
    Ok(totals.into_iter().map(|sums| sums.map(Sums::error)).collect())
}

/// The error for a value that a format cannot represent, with the tensor it comes from.
pub(crate) fn unrepresentable_value(
    graph: &Graph,
    packed: &Packed,
    row: usize,
    why: RangeError,
) -> Diagnostic {
    let found = gather::source(graph, packed, row);
    let (tensor, row, first) = found.map_or((packed.name.as_str(), row, 0), |(part, row, first)| {
        (&graph.weights[part.0].tensor, row, first)
    });
    let format = packed.format;
    let gain = packed.gain.and_then(|gain| graph.weights.get(gain.0));
    let times = gain.map_or_else(String::new, |gain| format!(" times {}", gain.tensor));
    match why {
        RangeError::NotFinite { column } => {
            let place = if packed.shape.len() == 1 {
                format!("[{row}]")
            } else {
                format!("[{row}, {}]", first + column)
            };
            Diagnostic::new("F0602", format!("{tensor}{place}{times} is infinite or NaN"))
                .note("the checkpoint is damaged: download it again")
        }
        RangeError::TooLarge { value } => Diagnostic::new(
            "F0602",
            format!("{tensor}{times} has {value:e} in row {row}, too large for {format}"),
        )
        .note("use bf16 or f32 for this tensor"),
    }
}
