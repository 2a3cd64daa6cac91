//! Reads a packed weight file as the graph's weights.
//!
//! A gain that was folded into matrices is not in the file. It reads as ones, and the matrices read as
//! stored, which is an equivalent model.

use crate::codec::row::decode_row;
use crate::file::gather;
use crate::file::layout::FileLayout;
use forge_ir::{Diagnostic, Graph, Packed, WeightId, WeightRows};
use std::io;
use std::ops::Range;

/// The weights of a graph, read from a packed weight file.
pub struct PackedFile<'a, Read> {
    graph: &'a Graph,
    plan: &'a [Packed],
    layout: FileLayout,
    read: Read,
}

impl<'a, Read> PackedFile<'a, Read>
where
    Read: Fn(u64, &mut [u8]) -> io::Result<()> + Sync,
{
    /// Opens a file written for this plan. `read` fills its last argument with bytes from an offset on.
    ///
    /// # Errors
    /// If the file cannot be read, or its header does not match the plan.
    pub fn open(graph: &'a Graph, plan: &'a [Packed], read: Read) -> Result<Self, Diagnostic> {
        let layout = FileLayout::new(graph, plan)?;
        let mut header = vec![0; layout.header.len()];
        read(0, &mut header).map_err(|error| unreadable(&error))?;
        if header != layout.header {
            return Err(Diagnostic::new(
                "F0604",
                "the weight file does not match the plan; compile the model again",
            ));
        }
        // Reading the last byte detects a truncated file.
        read(layout.bytes - 1, &mut [0]).map_err(|error| unreadable(&error))?;
        Ok(PackedFile { graph, plan, layout, read })
    }

    /// The bytes of rows of a plane.
    fn plane(&self, packed: usize, plane: usize, rows: &Range<usize>) -> Result<Vec<u8>, Diagnostic> {
        let place = &self.layout.weights[packed];
        let (start, length) = place.planes[plane];
        let (row, of_expert) = match self.plan[packed].shape[..] {
            [all, columns] => (self.plan[packed].format.plane_bytes(columns)[plane], all / place.experts),
            _ => (length as usize, 1),
        };
        let mut bytes = Vec::with_capacity(rows.len() * row);
        let mut next = rows.start;
        while next < rows.end {
            let (expert, first) = (next / of_expert, next % of_expert);
            let count = (rows.end - next).min(of_expert - first);
            let begin = bytes.len();
            bytes.resize(begin + count * row, 0);
            let from = start + expert as u64 * place.record + (first * row) as u64;
            (self.read)(from, &mut bytes[begin..]).map_err(|error| unreadable(&error))?;
            next += count;
        }
        Ok(bytes)
    }

    /// Whether a gain was folded into matrices.
    fn is_folded(&self, weight: WeightId) -> bool {
        self.plan.iter().any(|packed| packed.gain == Some(weight))
    }

    /// The packed weight that contains a weight, and the index of the part.
    fn find(&self, weight: WeightId) -> Option<(usize, usize)> {
        self.plan.iter().enumerate().find_map(|(packed, it)| {
            let index = it.parts.iter().position(|part| *part == weight)?;
            Some((packed, index))
        })
    }
}

impl<Read> WeightRows for PackedFile<'_, Read>
where
    Read: Fn(u64, &mut [u8]) -> io::Result<()> + Sync,
{
    fn rows(&self, weight: WeightId, rows: Range<usize>, out: &mut [f32]) -> Result<(), Diagnostic> {
        let part = crate::checkpoint::checkpoint_weights::expect_fit(self.graph, weight, &rows, out.len())?;
        if self.is_folded(weight) {
            out.fill(1.0);
            return Ok(());
        }
        let Some((index, part_index)) = self.find(weight) else {
            let message = format!("the weight file does not contain {}", part.tensor);
            return Err(Diagnostic::new("F0604", message));
        };
        let packed = &self.plan[index];
        let (from, step) = gather::place(self.graph, packed, part_index);
        if packed.shape.len() == 1 {
            let bytes = self.plane(index, 0, &(0..1))?;
            let mut whole = vec![0.0; packed.shape[0]];
            decode_row(packed.format, [&bytes, &[]], &mut whole);
            for (out, x) in out.iter_mut().zip(whole.iter().skip(from).step_by(step)) {
                *out = *x;
            }
            return Ok(());
        }
        if rows.is_empty() {
            return Ok(());
        }
        let columns = packed.shape[1];
        let sizes = packed.format.plane_bytes(columns);
        for block in 0..gather::blocks(packed, part) {
            let from = from + block * gather::length(part);
            let read_rows = from + rows.start * step..from + (rows.end - 1) * step + 1;
            let values = self.plane(index, 0, &read_rows)?;
            let scales = self.plane(index, 1, &read_rows)?;
            for (row, out) in out.chunks_exact_mut(part.columns()).enumerate() {
                let slice = |plane: usize, bytes: &'_ [u8]| -> Range<usize> {
                    let start = row * step * sizes[plane];
                    start..(start + sizes[plane]).min(bytes.len())
                };
                let planes = [&values[slice(0, &values)], &scales[slice(1, &scales)]];
                decode_row(packed.format, planes, &mut out[block * columns..][..columns]);
            }
        }
        Ok(())
    }
}

fn unreadable(error: &io::Error) -> Diagnostic {
    Diagnostic::new("F0604", format!("cannot read the weight file: {error}"))
}
