//! Rows of a packed matrix: gathered from its parts, multiplied by a folded gain, and encoded or copied in
//! the checkpoint's format. Also measures the quantization error of several formats before one is chosen.

use crate::codec::range_error::RangeError;
use crate::codec::row::{decode_row, encode_row, encode_row_weighted};
use crate::column_importance::ColumnImportance;
use crate::file::gather;
use crate::quantization_error::{QuantizationError, Sums};
use forge_ir::{Diagnostic, Format, Graph, ImportanceMatrix, Packed, WeightId, WeightRows};
use std::ops::Range;
use std::sync::mpsc;

/// Largest finite f16.
const LARGEST_HALF: f32 = 65504.0;

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

    /// Applies `work` to ranges of rows in parallel and gives the results to `take` in row order. With interleaved
    /// parts, ranges are whole pairs.
    ///
    /// Threads take ranges in turn. Each works one range ahead of `take`.
    pub(crate) fn in_parallel<T: Send>(
        &self,
        rows: Range<usize>,
        work: impl Fn(Range<usize>) -> Result<T, Diagnostic> + Sync,
        mut take: impl FnMut(T) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let turn = gather::turn(self.packed.layout);
        let chunk = (CHUNK_NUMBERS / self.columns).max(1).next_multiple_of(turn);
        let chunks = rows.len().div_ceil(chunk);
        let range = |index: usize| rows.start + index * chunk..rows.end.min(rows.start + (index + 1) * chunk);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chunks);
        std::thread::scope(|scope| {
            let results: Vec<_> = (0..threads)
                .map(|thread| {
                    let (sender, results) = mpsc::sync_channel(1);
                    let (work, range) = (&work, &range);
                    scope.spawn(move || {
                        // Sending fails after an error in `take`.
                        (thread..chunks).step_by(threads).all(|index| sender.send(work(range(index))).is_ok())
                    });
                    results
                })
                .collect();
            // A thread that ends early has panicked, which the scope reports.
            let results = (0..chunks).map_while(|index| results[index % threads].recv().ok());
            results.into_iter().try_for_each(|result| take(result?))
        })
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

    /// Copies rows of the checkpoint's quantized values and scales.
    fn keep(&self, rows: Range<usize>) -> Result<Encoded, Diagnostic> {
        let format = self.packed.format;
        let [codes, scales] = format.plane_bytes(self.columns);
        let mut stored = vec![0; rows.len() * (codes + scales)];
        let read = |part, rows, out: &mut [u8]| self.weights.stored(part, rows, out);
        let out = ([codes, scales], &mut stored[..]);
        gather::matrix(read, self.graph, self.packed, rows.clone(), out)?;
        let mut encoded = Encoded { planes: [Vec::new(), Vec::new()], sums: Vec::new() };
        let mut values = vec![0.0; self.columns];
        for (index, row) in stored.chunks_exact(codes + scales).enumerate() {
            let planes = row.split_at(codes);
            decode_row(format, planes.into(), &mut values);
            // Kernels multiply in f16, and stored scales may exceed its range.
            let is_f16 = |x: &f32| x.abs() <= LARGEST_HALF;
            if !values.iter().fold(true, |all, x| all & is_f16(x)) {
                let column = values.iter().position(|x| !is_f16(x)).unwrap_or(0);
                let value = values[column];
                let why = match value.is_finite() {
                    true => RangeError::TooLarge { value },
                    false => RangeError::NotFinite { column },
                };
                return Err(unrepresentable_value(self.graph, self.packed, rows.start + index, why));
            }
            for (plane, bytes) in encoded.planes.iter_mut().zip([planes.0, planes.1]) {
                plane.extend_from_slice(bytes);
            }
            encoded.sums.push(Sums::of(&values, &values, self.column_weights(rows.start + index)));
        }
        Ok(encoded)
    }

    /// Encodes rows in the planned format.
    pub(crate) fn encode(&self, rows: Range<usize>) -> Result<Encoded, Diagnostic> {
        if self.is_kept() {
            return self.keep(rows);
        }
        let values = self.gathered(rows.clone())?;
        self.encode_values(self.packed.format, rows.start, &values)
            .map_err(|(row, why)| unrepresentable_value(self.graph, self.packed, rows.start + row, why))
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
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.encode_with_avx2(format, first, values) };
        }
        self.encode_inline(format, first, values)
    }

    /// [`Matrix::encode_inline`], compiled for vectors of 8 values. The results are the same.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn encode_with_avx2(
        &self,
        format: Format,
        first: usize,
        values: &[f32],
    ) -> Result<Encoded, (usize, RangeError)> {
        self.encode_inline(format, first, values)
    }

    /// [`Matrix::encode_values`]. The encoders of simple formats are inlined, too.
    #[inline(always)]
    fn encode_inline(
        &self,
        format: Format,
        first: usize,
        values: &[f32],
    ) -> Result<Encoded, (usize, RangeError)> {
        let rows = values.len() / self.columns;
        let [codes, scales] = format.plane_bytes(self.columns);
        let mut planes = [vec![0; rows * codes], vec![0; rows * scales]];
        let mut sums = Vec::with_capacity(rows);
        let mut stored = vec![0.0; self.columns];
        for (index, row) in values.chunks_exact(self.columns).enumerate() {
            let [plane, second] = &mut planes;
            let plane = &mut plane[index * codes..(index + 1) * codes];
            let second = &mut second[index * scales..(index + 1) * scales];
            let weights = self.column_weights(first + index);
            match weights {
                Some((weights, _)) => encode_row_weighted(format, row, weights, [&mut *plane, &mut *second]),
                None => encode_row(format, row, [&mut *plane, &mut *second]),
            }
            .map_err(|why| (index, why))?;
            decode_row(format, [plane, second], &mut stored);
            sums.push(Sums::of(row, &stored, weights));
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
    let work = |rows| matrix.measure(formats, rows);
    matrix.in_parallel(0..matrix.rows, work, |measured| {
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
