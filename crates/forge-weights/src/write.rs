//! Writes the weight file: rows come in, bytes go out in the order of the file, and little is held between.
//!
//! Held are a block of rows, and the scales of the weight at hand, which come after its codes in the file and are a quarter
//! of them or less.

use crate::codec::Unfit;
use crate::errors::{Stat, Summary, Sums};
use crate::gather;
use crate::layout::FileLayout;
use crate::matrix::{Encoded, Matrix, unfit};
use forge_ir::{Diagnostic, Graph, Numbers, Packed};
use std::io::Write;

/// How far the writing is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The weight at hand.
    pub weight: &'a str,
    /// Bytes written.
    pub written: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// Writes the file of a plan.
///
/// # Errors
/// When the plan does not fit the graph, a number does not fit its format, or reading or writing fails. What the sink
/// has received until then is of no use.
pub fn write(
    graph: &Graph,
    plan: &[Packed],
    numbers: &dyn Numbers,
    sink: &mut dyn Write,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary, Diagnostic> {
    let layout = FileLayout::new(graph, plan)?;
    let mut out = Output { sink, hasher: crc32fast::Hasher::new(), written: 0 };
    out.put(&layout.header)?;
    let mut weights = Vec::new();
    for (packed, place) in plan.iter().zip(&layout.weights) {
        let mut report = |written| progress(Progress { weight: &packed.name, written, total: layout.bytes });
        let sums = match Matrix::of(graph, packed, numbers)? {
            Some(matrix) => write_matrix(&matrix, place.padding, &mut out, &mut report)?,
            None => {
                let row = gather::vector(numbers, graph, packed)?;
                let finite = row.iter().position(|x| !x.is_finite());
                if let Some(column) = finite {
                    return Err(unfit(graph, packed, column, Unfit::NotFinite { column: 0 }));
                }
                out.pad(place.padding[0])?;
                let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
                out.put(&bytes)?;
                Sums::default()
            }
        };
        report(out.written);
        weights.push(Stat {
            name: packed.name.clone(),
            format: packed.format,
            bytes: place.planes.iter().map(|(_, bytes)| bytes).sum(),
            error: sums.relative(),
            sums,
        });
    }
    out.sink.flush().map_err(|error| unwritable(&error))?;
    Ok(Summary { bytes: out.written, crc32: out.hasher.finalize(), weights })
}

/// Streams a matrix: its codes as they come, its scales after them. Gives what storing changed.
fn write_matrix(
    matrix: &Matrix<'_>,
    padding: [u64; 2],
    out: &mut Output<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<Sums, Diagnostic> {
    let mut scales = Vec::new();
    let mut sums = Sums::default();
    out.pad(padding[0])?;
    let take = |block: Encoded| {
        let [values, more] = block.planes;
        out.put(&values)?;
        scales.extend(more);
        sums = block.sums.into_iter().fold(sums, Sums::plus);
        report(out.written);
        Ok(())
    };
    matrix.in_shares(|rows| matrix.encode(rows), take)?;
    if !scales.is_empty() {
        out.pad(padding[1])?;
        out.put(&scales)?;
    }
    Ok(sums)
}

/// The sink, and what has gone into it.
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

    fn pad(&mut self, bytes: u64) -> Result<(), Diagnostic> {
        self.put(&vec![0; bytes as usize])
    }
}

fn unwritable(error: &std::io::Error) -> Diagnostic {
    Diagnostic::new("F0603", format!("the weight file cannot be written: {error}"))
}
