//! Weights as the checkpoint stores them: plain little-endian values, row by row without padding, or
//! quantized values with scales in other tensors or in blocks.
//!
//! Readers need not know the storage: 1 is added to gains stored minus 1, slices are extracted and
//! transposed, and a stack is one matrix wherever its parts are stored.

use crate::checkpoint::encoded::matrix::EncodedMatrix;
use crate::checkpoint::encoded::tensor_cache::TensorCache;
use crate::checkpoint::ggml::{dequantize, planes};
use crate::checkpoint::mlx;
use crate::codec::mxfp4;
use crate::codec::row::decode_row;
use forge_ir::{
    Blocks, Diagnostic, Encoding, Format, Graph, Stack, Weight, WeightId, WeightRows, WeightSlice,
};
use std::io;
use std::ops::Range;

/// The weights of a graph, decoded from the checkpoint.
pub struct CheckpointWeights<'a, Read> {
    graph: &'a Graph,
    read: Read,
    cache: TensorCache,
}

impl<'a, Read> CheckpointWeights<'a, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    /// `read` fills its last argument with bytes of a tensor from an offset on.
    pub fn new(graph: &'a Graph, read: Read) -> Self {
        CheckpointWeights { graph, read, cache: TensorCache::default() }
    }

    /// Quantized rows of one matrix of a weight.
    fn codes(&self, piece: &Piece<'_>, out: &mut [u8]) -> Result<(), Diagnostic> {
        let Piece { weight, rows, .. } = piece;
        if weight.cut.is_some_and(WeightSlice::transposes) {
            let message = format!("{}: column slices of quantized tensors are unsupported", weight.tensor);
            return Err(Diagnostic::new("F0108", message));
        }
        let of_row = out.len() / rows.len().max(1);
        let mut rest = out;
        for run in runs(weight.cut, rows.clone()) {
            let (part, after) = rest.split_at_mut(run.len() * of_row);
            self.adjacent_codes(piece, run, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Contiguous rows of a quantized matrix.
    fn adjacent_codes(
        &self,
        piece: &Piece<'_>,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), Diagnostic> {
        let weight = piece.weight;
        let before = piece.before / weight.columns();
        let rows = before + rows.start..before + rows.end;
        if let Some(blocks) = weight.blocks {
            return self.blocks(piece, blocks, rows, out);
        }
        if let Some(encoding) = weight.encoding {
            return self
                .encoded(piece, encoding)
                .repack(rows, weight.format, out)
                .map_err(|error| unreadable(&piece.tensor, &error));
        }
        let columns = weight.columns();
        let read = match weight.format {
            Format::Affine(affine) => mlx::rows(&self.read, &piece.tensor, (affine, columns), rows, out),
            Format::Mxfp4 => mxfp4::rows(&self.read, &piece.tensor, columns, rows, out),
            _ => {
                let message = format!("tensor {} is not quantized", weight.tensor);
                return Err(Diagnostic::new("F0108", message));
            }
        };
        read.map_err(|error| unreadable(&piece.tensor, &error))
    }

    /// The matrix of several tensors that contains a piece.
    fn encoded<'s>(&'s self, piece: &'s Piece<'_>, encoding: Encoding) -> EncodedMatrix<'s> {
        let shape = piece.weight.tensor_shape();
        let rows = shape[..shape.len().max(1) - 1].iter().product();
        let (read, cache, columns) = (&self.read, &self.cache, piece.weight.columns());
        EncodedMatrix { read, cache, encoding, tensor: &piece.tensor, rows, columns }
    }

    /// Dequantized rows of one matrix of a weight.
    fn dequantized(&self, piece: &Piece<'_>, encoding: Encoding, out: &mut [f32]) -> Result<(), Diagnostic> {
        let columns = piece.weight.columns();
        let before = piece.before / columns.max(1);
        let matrix = self.encoded(piece, encoding);
        let mut rest = out;
        for run in runs(piece.weight.cut, piece.rows.clone()) {
            let (now, later) = rest.split_at_mut(run.len() * columns);
            matrix
                .dequantize(before + run.start..before + run.end, now)
                .map_err(|error| unreadable(&piece.tensor, &error))?;
            rest = later;
        }
        Ok(())
    }

    /// Rows of a tensor in ggml blocks.
    fn blocks(
        &self,
        piece: &Piece<'_>,
        blocks: Blocks,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), Diagnostic> {
        let weight = piece.weight;
        let [codes, scales] = weight.format.plane_bytes(weight.columns());
        let (bytes, of_row) = self.bytes_of_blocks(piece, blocks, rows)?;
        for (bytes, out) in bytes.chunks_exact(of_row).zip(out.chunks_exact_mut(codes + scales)) {
            planes::planes(blocks, bytes, out.split_at_mut(codes).into());
        }
        Ok(())
    }

    /// Dequantized rows of one matrix of a weight in ggml blocks.
    fn values_of_blocks(&self, piece: &Piece<'_>, blocks: Blocks, out: &mut [f32]) -> Result<(), Diagnostic> {
        let columns = piece.weight.columns();
        let before = piece.before / columns.max(1);
        let mut rest = out;
        for run in runs(piece.weight.cut, piece.rows.clone()) {
            let (now, later) = rest.split_at_mut(run.len() * columns);
            let (bytes, _) = self.bytes_of_blocks(piece, blocks, before + run.start..before + run.end)?;
            dequantize::values(blocks, &bytes, now);
            rest = later;
        }
        Ok(())
    }

    /// Bytes of rows of a tensor in ggml blocks, and the bytes of a row.
    fn bytes_of_blocks(
        &self,
        piece: &Piece<'_>,
        blocks: Blocks,
        rows: Range<usize>,
    ) -> Result<(Vec<u8>, usize), Diagnostic> {
        let of_row = blocks.row_bytes(piece.weight.columns());
        let mut bytes = vec![0; rows.len() * of_row];
        (self.read)(&piece.tensor, (rows.start * of_row) as u64, &mut bytes)
            .map_err(|error| unreadable(&piece.tensor, &error))?;
        Ok((bytes, of_row))
    }
}

fn unreadable(tensor: &str, error: &io::Error) -> Diagnostic {
    Diagnostic::new("F0108", format!("cannot read tensor {tensor}: {error}"))
}

/// Rows of one matrix of a weight.
struct Piece<'a> {
    weight: &'a Weight,
    /// Tensor that contains the matrix.
    tensor: String,
    /// Elements of the tensor before the matrix.
    before: usize,
    /// Rows of the weight's slice of the matrix.
    rows: Range<usize>,
}

/// The matrices that contain these rows of a weight, in order.
fn pieces(weight: &Weight, rows: Range<usize>) -> impl Iterator<Item = Piece<'_>> {
    let each = (weight.rows() / weight.matrices()).max(1);
    let matrices = rows.start / each..rows.end.div_ceil(each);
    let whole: usize = weight.tensor_shape().iter().product();
    let before = if weight.stack == Some(Stack::Whole) { whole / weight.matrices() } else { 0 };
    let one = move |matrix: usize| {
        let first = matrix * each;
        let rows = rows.start.max(first) - first..rows.end.min(first + each) - first;
        Piece { weight, tensor: weight.tensor_of(matrix), before: before * matrix, rows }
    };
    matrices.map(one)
}

impl<Read> CheckpointWeights<'_, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    /// Contiguous values of a matrix's tensor, from element `first` of the matrix on.
    fn read_values(&self, piece: &Piece<'_>, first: usize, out: &mut [f32]) -> Result<(), Diagnostic> {
        let format = piece.weight.format;
        let size = format.planes()[0].element.bytes();
        let mut bytes = vec![0; out.len() * size];
        (self.read)(&piece.tensor, ((piece.before + first) * size) as u64, &mut bytes)
            .map_err(|error| unreadable(&piece.tensor, &error))?;
        decode_row(format, [&bytes, &[]], out);
        Ok(())
    }

    /// The values of rows of one matrix.
    fn plain(&self, piece: &Piece<'_>, out: &mut [f32]) -> Result<(), Diagnostic> {
        let Piece { weight, rows, .. } = piece;
        if let Some(cut) = weight.cut.filter(|cut| cut.transposes() && !rows.is_empty()) {
            // Reads all requested columns and those between them.
            let (first, last) = (cut.place(rows.start), cut.place(rows.end - 1));
            let width = weight.tensor_shape().last().copied().unwrap_or(0);
            let mut across = vec![0.0; last + 1 - first];
            for column in 0..weight.columns() {
                self.read_values(piece, column * width + first, &mut across)?;
                for (row, place) in rows.clone().zip(out.iter_mut().skip(column).step_by(weight.columns())) {
                    *place = across[cut.place(row) - first];
                }
            }
            return Ok(());
        }
        // Groups of a vector are close together, so the elements between them are read too.
        if let (Some(cut @ WeightSlice::Groups { .. }), false, false) =
            (weight.cut, weight.is_matrix(), rows.is_empty())
        {
            let mut all = vec![0.0; cut.place(weight.columns().saturating_sub(1)) + 1];
            self.read_values(piece, 0, &mut all)?;
            out.iter_mut().enumerate().for_each(|(place, x)| *x = all[cut.place(place)]);
            return Ok(());
        }
        // A vector is one row; its slices are ranges of elements.
        let (all, each) = match weight.is_matrix() {
            false => (rows.start * weight.columns()..rows.end * weight.columns(), 1),
            true => (rows.clone(), weight.columns()),
        };
        let mut rest = out;
        for run in runs(weight.cut, all) {
            let (part, after) = rest.split_at_mut(run.len() * each);
            self.read_values(piece, run.start * each, part)?;
            rest = after;
        }
        Ok(())
    }
}

impl<Read> WeightRows for CheckpointWeights<'_, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
        let found = expect_fit(self.graph, weight, &rows, out.len())?;
        if found.format.is_quantized() && found.encoding.is_none() {
            let [codes, scales] = found.format.plane_bytes(found.columns());
            let mut bytes = vec![0; rows.len() * (codes + scales)];
            self.stored(weight, rows, &mut bytes)?;
            for (row, out) in bytes.chunks_exact(codes + scales).zip(out.chunks_exact_mut(found.columns())) {
                decode_row(found.format, row.split_at(codes).into(), out);
            }
            return Ok(());
        }
        let mut rest = &mut *out;
        for piece in pieces(found, rows) {
            let (now, later) = rest.split_at_mut(piece.rows.len() * found.columns());
            match (found.encoding, found.blocks) {
                (Some(encoding), _) => self.dequantized(&piece, encoding, now)?,
                (None, Some(blocks)) => self.values_of_blocks(&piece, blocks, now)?,
                (None, None) => self.plain(&piece, now)?,
            }
            rest = later;
        }
        if found.plus_one {
            out.iter_mut().for_each(|x| *x += 1.0);
        }
        Ok(())
    }

    fn stored(&self, weight: WeightId, rows: Range<usize>, out: &mut [u8]) -> Result<(), Diagnostic> {
        let columns = self.graph.weights.get(weight.0).map_or(0, Weight::columns);
        let weight = expect_fit(self.graph, weight, &rows, rows.len() * columns)?;
        let of_row: usize = weight.format.plane_bytes(columns).iter().sum();
        let mut rest = out;
        for piece in pieces(weight, rows) {
            let (now, later) = rest.split_at_mut(piece.rows.len() * of_row);
            self.codes(&piece, now)?;
            rest = later;
        }
        Ok(())
    }
}

/// Runs of a weight's rows that are contiguous in its tensor.
fn runs(cut: Option<WeightSlice>, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let most = match cut {
        Some(WeightSlice::Groups { rows, .. } | WeightSlice::Repeated { rows, .. }) => rows,
        _ => usize::MAX,
    };
    let mut next = rows.start;
    std::iter::from_fn(move || {
        let left = most - next % most;
        let length = left.min(rows.end - next);
        let first = cut.map_or(next, |cut| cut.place(next));
        next += length;
        (length > 0).then_some(first..first + length)
    })
}

/// The weight, if it exists and has these rows.
pub(crate) fn expect_fit<'a>(
    graph: &'a Graph,
    weight: WeightId,
    rows: &Range<usize>,
    length: usize,
) -> Result<&'a Weight, Diagnostic> {
    let found = graph.weights.get(weight.0);
    found
        .filter(|weight| {
            rows.start <= rows.end && rows.end <= weight.rows() && length == rows.len() * weight.columns()
        })
        .ok_or_else(|| {
            let name = found.map_or("no weight", |weight| &weight.tensor);
            Diagnostic::new("F0108", format!("rows {rows:?} of {name} do not have {length} elements"))
        })
}
