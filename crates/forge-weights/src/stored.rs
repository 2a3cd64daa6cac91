//! Weights as the checkpoint stores them: plain numbers, row by row, little end first, without padding. Those that mean
//! their tensor's numbers and 1 are given so, and those that are a part of their tensor are cut out of it, columns turned
//! to rows: nobody after this has to know.

use crate::codec::decode_row;
use forge_ir::{Cut, Diagnostic, Graph, Numbers, Weight, WeightId};
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
}

impl<Read> Stored<'_, Read>
where
    Read: Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync,
{
    /// Neighbours in a weight's tensor, from the one at `first` on.
    fn numbers(&self, weight: &Weight, first: usize, out: &mut [f32]) -> Result<(), Diagnostic> {
        let size = weight.format.planes()[0].element.bytes();
        let mut bytes = vec![0; out.len() * size];
        (self.read)(&weight.tensor, (first * size) as u64, &mut bytes).map_err(|error| {
            Diagnostic::new("F0108", format!("the tensor {} cannot be read: {error}", weight.tensor))
        })?;
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
        match weight.cut {
            None => self.numbers(weight, rows.start * weight.columns(), out)?,
            // A vector is one row; what is cut of it are elements.
            Some(Cut::Rows { first, .. }) if weight.shape.len() == 1 => self.numbers(weight, first, out)?,
            Some(Cut::Rows { first, .. }) => {
                self.numbers(weight, (first + rows.start) * weight.columns(), out)?;
            }
            Some(Cut::Columns { first, of }) => {
                let mut across = vec![0.0; rows.len()];
                for column in 0..weight.columns() {
                    self.numbers(weight, column * of + first + rows.start, &mut across)?;
                    let places = out.iter_mut().skip(column).step_by(weight.columns());
                    places.zip(&across).for_each(|(place, x)| *place = *x);
                }
            }
        }
        if weight.plus_one {
            out.iter_mut().for_each(|x| *x += 1.0);
        }
        Ok(())
    }
}

/// The weight, if it is there, stores plain numbers if it is to be decoded, and has these rows.
pub(crate) fn expect_fit<'a>(
    graph: &'a Graph,
    weight: WeightId,
    rows: &Range<usize>,
    length: usize,
) -> Result<&'a Weight, Diagnostic> {
    let found = graph.weights.get(weight.0);
    found
        .filter(|weight| {
            !weight.format.is_quantised()
                && rows.start <= rows.end
                && rows.end <= weight.rows()
                && length == rows.len() * weight.columns()
        })
        .ok_or_else(|| {
            let name = found.map_or("no weight", |weight| &weight.tensor);
            Diagnostic::new("F0108", format!("rows {rows:?} of {name} do not make {length} numbers"))
        })
}
