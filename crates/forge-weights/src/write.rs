//! Writes the weight file: rows come in, bytes go out in the order of the file, and little is held between.
//!
//! Held are a block of rows of about [`BLOCK_NUMBERS`] numbers, and the scales of the weight at hand, which come after
//! its codes in the file and are a quarter of them or less.

use crate::codec::{Unfit, decode_row, encode_row, plane_bytes};
use crate::errors::{Stat, Summary, Sums};
use crate::gather;
use crate::layout::FileLayout;
use forge_ir::{Diagnostic, Graph, Layout, Numbers, Packed};
use std::io::Write;
use std::ops::Range;

/// Numbers of the rows that are encoded at once.
const BLOCK_NUMBERS: usize = 1 << 20;

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
        let sums = match packed.shape[..] {
            [rows, columns] => {
                let gain = match packed.gain {
                    Some(gain) => {
                        let mut elements = vec![1.0; columns];
                        numbers.rows(gain, 0..1, &mut elements)?;
                        Some(elements)
                    }
                    None => None,
                };
                let job = Matrix { graph, packed, numbers, columns, gain };
                job.write(rows, place.padding, &mut out, &mut report)?
            }
            _ => {
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

/// A matrix on its way.
struct Matrix<'a> {
    graph: &'a Graph,
    packed: &'a Packed,
    numbers: &'a dyn Numbers,
    columns: usize,
    /// What the columns are multiplied by.
    gain: Option<Vec<f32>>,
}

/// Rows, encoded.
struct Encoded {
    planes: [Vec<u8>; 2],
    /// One for every row, so that sums do not depend on how rows are shared among threads.
    sums: Vec<Sums>,
}

impl Matrix<'_> {
    fn write(
        &self,
        rows: usize,
        padding: [u64; 2],
        out: &mut Output<'_>,
        report: &mut dyn FnMut(u64),
    ) -> Result<Sums, Diagnostic> {
        let turn = match self.packed.layout {
            Layout::Rows => 1,
            Layout::Alternate => self.packed.parts.len(),
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = (BLOCK_NUMBERS / self.columns / threads).max(1).next_multiple_of(turn);
        let mut scales = Vec::new();
        let mut sums = Sums::default();
        out.pad(padding[0])?;
        for start in (0..rows).step_by(share * threads) {
            let shares = (start..rows.min(start + share * threads)).step_by(share);
            let blocks = std::thread::scope(|scope| {
                let encode = |start: usize| self.encode(start..rows.min(start + share));
                let running: Vec<_> = shares.map(|start| scope.spawn(move || encode(start))).collect();
                running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
            });
            for block in blocks {
                let block = block.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                let [values, more] = block.planes;
                out.put(&values)?;
                scales.extend(more);
                sums = block.sums.into_iter().fold(sums, Sums::plus);
            }
            report(out.written);
        }
        if !scales.is_empty() {
            out.pad(padding[1])?;
            out.put(&scales)?;
        }
        Ok(sums)
    }

    fn encode(&self, rows: Range<usize>) -> Result<Encoded, Diagnostic> {
        let format = self.packed.format;
        let mut numbers = vec![0.0; rows.len() * self.columns];
        gather::matrix(self.numbers, self.graph, self.packed, rows.clone(), &mut numbers)?;
        if let Some(gain) = &self.gain {
            for row in numbers.chunks_exact_mut(self.columns) {
                row.iter_mut().zip(gain).for_each(|(x, gain)| *x *= gain);
            }
        }
        let [values, scales] = plane_bytes(format, self.columns);
        let mut planes = [vec![0; rows.len() * values], vec![0; rows.len() * scales]];
        let mut sums = Vec::with_capacity(rows.len());
        let mut stored = vec![0.0; self.columns];
        for (index, row) in numbers.chunks_exact(self.columns).enumerate() {
            let [first, second] = &mut planes;
            let first = &mut first[index * values..(index + 1) * values];
            let second = &mut second[index * scales..(index + 1) * scales];
            encode_row(format, row, [&mut *first, &mut *second])
                .map_err(|why| unfit(self.graph, self.packed, rows.start + index, why))?;
            decode_row(format, [first, second], &mut stored);
            sums.push(Sums::of(row, &stored));
        }
        Ok(Encoded { planes, sums })
    }
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

/// The fault of a number that a format cannot hold, named by the tensor it comes from. A vector's row is its element.
fn unfit(graph: &Graph, packed: &Packed, row: usize, why: Unfit) -> Diagnostic {
    let mut before = 0;
    let mut found = (packed.name.as_str(), row);
    for (index, part) in packed.parts.iter().enumerate() {
        let weight = &graph.weights[part.0];
        let (from, step) = gather::place(packed, index, before);
        if row >= from && (row - from).is_multiple_of(step) && (row - from) / step < weight.shape[0] {
            found = (&weight.tensor, (row - from) / step);
        }
        before += weight.shape[0];
    }
    let (tensor, row) = found;
    let format = packed.format;
    let gain = packed.gain.and_then(|gain| graph.weights.get(gain.0));
    let times = gain.map_or_else(String::new, |gain| format!(" times {}", gain.tensor));
    match why {
        Unfit::NotFinite { column } => {
            let place =
                if packed.shape.len() == 1 { format!("[{row}]") } else { format!("[{row}, {column}]") };
            Diagnostic::new("F0602", format!("{tensor}{place}{times} is not a finite number"))
                .note("a checkpoint with infinities or NaNs gives no text worth having")
        }
        Unfit::TooLarge { value } => Diagnostic::new(
            "F0602",
            format!("{tensor}{times} holds {value:e} in row {row}, too large for {format}"),
        )
        .note("bf16 and f32 hold numbers of this size"),
    }
}
