//! Weights as the checkpoint stores them: plain numbers, row by row, little end first, without padding; or codes, with scales
//! in tensors beside them or in blocks among them. Those that mean their tensor's numbers and 1 are given so, and those that are a part of their
//! tensor are cut out of it, columns turned to rows: nobody after this has to know.

use crate::codec::{decode_row, plane_bytes};
use crate::{blocks, mlx};
use forge_ir::{Blocks, Cut, Diagnostic, Format, Graph, Numbers, Weight, WeightId};
use std::io;
use std::ops::Range;

/// The numbers of a graph's weights, decoded from their tensors in the checkpoint.
pub struct Stored<'a, Read> {
    graph: &'a Graph,
    read: Read,
}

impl<'a, Read> Stored<'a, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    /// `read` fills its last argument with bytes of the tensor of that name from that offset on.
    pub fn new(graph: &'a Graph, read: Read) -> Self {
        Stored { graph, read }
    }

    /// Rows of a weight that is stored as codes.
    fn codes(&self, weight: &Weight, rows: Range<usize>, out: &mut [u8]) -> Result<(), Diagnostic> {
        if let Some(Cut::Columns { .. }) = weight.cut {
            let message = format!("columns of {} cannot be cut out of codes", weight.tensor);
            return Err(Diagnostic::new("F0108", message));
        }
        let of_row = out.len() / rows.len().max(1);
        let mut rest = out;
        for run in runs(weight.cut, rows) {
            let (part, after) = rest.split_at_mut(run.len() * of_row);
            self.neighbouring_codes(weight, run, part)?;
            rest = after;
        }
        Ok(())
    }

    /// Neighbouring rows of a tensor of codes.
    fn neighbouring_codes(
        &self,
        weight: &Weight,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), Diagnostic> {
        if let Some(blocks) = weight.blocks {
            return self.blocks(weight, blocks, rows, out);
        }
        let Format::Affine(affine) = weight.format else {
            let message = format!("the tensor {} is not one of codes", weight.tensor);
            return Err(Diagnostic::new("F0108", message));
        };
        mlx::rows(&self.read, &weight.tensor, (affine, weight.columns()), rows, out)
            .map_err(|error| unreadable(weight, &error))
    }

    /// Rows of a tensor that is stored in blocks.
    fn blocks(
        &self,
        weight: &Weight,
        blocks: Blocks,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), Diagnostic> {
        let [codes, scales] = plane_bytes(weight.format, weight.columns());
        let of_row = blocks.row_bytes(weight.columns());
        let mut bytes = vec![0; rows.len() * of_row];
        (self.read)(&weight.tensor, (rows.start * of_row) as u64, &mut bytes)
            .map_err(|error| unreadable(weight, &error))?;
        for (row, (bytes, out)) in
            bytes.chunks_exact(of_row).zip(out.chunks_exact_mut(codes + scales)).enumerate()
        {
            blocks::planes(blocks, bytes, out.split_at_mut(codes).into()).map_err(|block| {
                let place = format!("block {block} of row {}", rows.start + row);
                let message = format!("{} has a scale in {place} that is too large", weight.tensor);
                Diagnostic::new("F0602", message)
                    .note("16 times the scale is the offset of the codes, and no half holds that")
                    .note("a matrix of such numbers gives no text worth having: make the file anew")
            })?;
        }
        Ok(())
    }
}

fn unreadable(weight: &Weight, error: &io::Error) -> Diagnostic {
    Diagnostic::new("F0108", format!("the tensor {} cannot be read: {error}", weight.tensor))
}

impl<Read> Stored<'_, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    /// Neighbours in a weight's tensor, from the one at `first` on.
    fn numbers(&self, weight: &Weight, first: usize, out: &mut [f32]) -> Result<(), Diagnostic> {
        let size = weight.format.planes()[0].element.bytes();
        let mut bytes = vec![0; out.len() * size];
        (self.read)(&weight.tensor, (first * size) as u64, &mut bytes)
            .map_err(|error| unreadable(weight, &error))?;
        decode_row(weight.format, [&bytes, &[]], out);
        Ok(())
    }
}

impl<Read> Numbers for Stored<'_, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
        let weight = expect_fit(self.graph, weight, &rows, out.len())?;
        if weight.format.is_quantised() {
            let [codes, scales] = plane_bytes(weight.format, weight.columns());
            let mut bytes = vec![0; rows.len() * (codes + scales)];
            self.codes(weight, rows, &mut bytes)?;
            for (row, out) in bytes.chunks_exact(codes + scales).zip(out.chunks_exact_mut(weight.columns())) {
                decode_row(weight.format, row.split_at(codes).into(), out);
            }
            return Ok(());
        }
        match weight.cut {
            Some(Cut::Columns { first, of }) => {
                let mut across = vec![0.0; rows.len()];
                for column in 0..weight.columns() {
                    self.numbers(weight, column * of + first + rows.start, &mut across)?;
                    let places = out.iter_mut().skip(column).step_by(weight.columns());
                    places.zip(&across).for_each(|(place, x)| *place = *x);
                }
            }
            cut => {
                // A vector is one row; what is cut of it are elements.
                let (all, each) = match weight.shape.len() {
                    1 => (rows.start * weight.columns()..rows.end * weight.columns(), 1),
                    _ => (rows, weight.columns()),
                };
                let mut rest = &mut *out;
                for run in runs(cut, all) {
                    let (part, after) = rest.split_at_mut(run.len() * each);
                    self.numbers(weight, run.start * each, part)?;
                    rest = after;
                }
            }
        }
        if weight.plus_one {
            out.iter_mut().for_each(|x| *x += 1.0);
        }
        Ok(())
    }

    fn stored(&self, weight: WeightId, rows: Range<usize>, out: &mut [u8]) -> Result<(), Diagnostic> {
        let columns = self.graph.weights.get(weight.0).map_or(0, Weight::columns);
        let weight = expect_fit(self.graph, weight, &rows, rows.len() * columns)?;
        self.codes(weight, rows, out)
    }
}

/// Where the rows of a weight lie in its tensor, those that are neighbours there together.
fn runs(cut: Option<Cut>, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let most = match cut {
        Some(Cut::Groups { rows, .. }) => rows,
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

/// The weight, if it is there and has these rows.
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
            Diagnostic::new("F0108", format!("rows {rows:?} of {name} do not make {length} numbers"))
        })
}
