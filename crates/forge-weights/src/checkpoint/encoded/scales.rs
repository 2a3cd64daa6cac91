//! Scales, zero points and biases of rows.

use crate::checkpoint::encoded::coded_rows::Offsets;
use crate::checkpoint::encoded::codes::{field, interleaved, word};
use crate::checkpoint::encoded::matrix::{EncodedMatrix, invalid};
use forge_ir::{NESTED_SCALES, NESTED_TABLE, ScaleElement, ScaleFactor, ZeroPacking, Zeros};
use std::io;
use std::ops::Range;

/// Codes of a word.
const WORD: usize = 32;

/// Parameters of scales that are quantized themselves.
#[derive(serde::Deserialize)]
struct NestedState {
    /// Scales per nested scale.
    nested_blocksize: usize,
    /// Added to every scale.
    nested_offset: f32,
}

impl EncodedMatrix<'_> {
    /// Groups of columns of a row.
    fn groups(&self) -> usize {
        self.encoding.groups_of(self.columns)
    }

    /// The scales of every row's groups.
    pub(super) fn scales(&self, rows: Range<usize>) -> io::Result<Vec<f32>> {
        let scales = self.encoding.scales;
        let mut values = match scales.element {
            ScaleElement::Nested(state) => self.nested(rows, state)?,
            _ => self.grid(scales.tensor, rows)?,
        };
        match scales.factor {
            ScaleFactor::One => {}
            ScaleFactor::Times(name) => {
                let factor = self.scalar(name)?;
                values.iter_mut().for_each(|scale| *scale *= factor);
            }
            ScaleFactor::Over(name) => {
                let divisor = self.scalar(name)?;
                values.iter_mut().for_each(|scale| *scale /= divisor);
            }
            ScaleFactor::OverConstant(divisor) => {
                values.iter_mut().for_each(|scale| *scale /= divisor as f32);
            }
        }
        Ok(values)
    }

    /// Values of a tensor that has the type and order of the scales.
    fn grid(&self, name: &str, rows: Range<usize>) -> io::Result<Vec<f32>> {
        let (scales, groups) = (self.encoding.scales, self.groups());
        let size = scales.element.bytes();
        let value = |bytes: &[u8]| scales.element.value(bytes);
        let each = scales.rows.unwrap_or(self.rows).max(1);
        if scales.transposed {
            let across = self.rows.div_ceil(each);
            let bytes = self.whole(name, groups * across * size)?;
            let at = |row: usize, group: usize| &bytes[(group * across + row / each) * size..][..size];
            return Ok(rows.flat_map(|row| (0..groups).map(move |group| value(at(row, group)))).collect());
        }
        let blocks = rows.start / each..rows.end.div_ceil(each);
        let bytes = self.bytes(name, blocks.start * groups * size, blocks.len() * groups * size)?;
        let values: Vec<f32> = bytes.chunks_exact(size).map(value).collect();
        let row = |row: usize| &values[(row / each - blocks.start) * groups..][..groups];
        Ok(rows.flat_map(|index| row(index).iter().copied()).collect())
    }

    /// Scales that are quantized themselves: `table[code] * nested scale + offset`.
    fn nested(&self, rows: Range<usize>, state: &str) -> io::Result<Vec<f32>> {
        let text = self.cache.get(&self.part(state), || self.text(state))?;
        let state: NestedState = serde_json::from_slice(&text)
            .map_err(|error| invalid(format!("{}: {error}", self.part(state))))?;
        let groups = self.groups();
        let codes = rows.start * groups..rows.end * groups;
        let bytes = self.bytes(self.encoding.scales.tensor, codes.start, codes.len())?;
        let floats = |name: &str, range: Range<usize>| {
            let bytes = self.bytes(name, 4 * range.start, 4 * range.len())?;
            Ok::<_, io::Error>(
                (0..range.len()).map(|place| f32::from_bits(word(&bytes, place))).collect::<Vec<_>>(),
            )
        };
        let size = state.nested_blocksize.max(1);
        let blocks = codes.start / size..codes.end.div_ceil(size);
        let table = floats(NESTED_TABLE, 0..256)?;
        let scales = floats(NESTED_SCALES, blocks.clone())?;
        let place = |code: usize| scales[code / size - blocks.start];
        let value = |(at, byte): (usize, &u8)| table[usize::from(*byte)] * place(at) + state.nested_offset;
        Ok(codes.zip(&bytes).map(value).collect())
    }

    /// The bytes of a tensor of text, whose length is not known: the longest range that can be read.
    fn text(&self, name: &str) -> io::Result<Vec<u8>> {
        let is_readable = |length: usize| self.bytes(name, 0, length).is_ok();
        let mut beyond = 64;
        while is_readable(beyond) && beyond < 1 << 20 {
            beyond *= 2;
        }
        let mut length = 0;
        while beyond - length > 1 {
            let middle = usize::midpoint(length, beyond);
            if is_readable(middle) { length = middle } else { beyond = middle }
        }
        self.bytes(name, 0, length)
    }

    /// The zero points or biases of every row's groups.
    pub(super) fn offsets(&self, rows: Range<usize>) -> io::Result<Offsets> {
        let (groups, bits) = (self.groups(), self.encoding.element.bits());
        let (tensor, packing, plus) = match self.encoding.zeros {
            Zeros::Constant(zero) => return Ok(Offsets::Zeros(vec![zero as f32; rows.len() * groups])),
            Zeros::Biases(name) => return Ok(Offsets::Biases(self.grid(name, rows)?)),
            Zeros::Tensor { tensor, packing, plus } => (tensor, packing, plus),
        };
        if packing == ZeroPacking::SignedBytes {
            let bytes = self.bytes(tensor, rows.start * groups, rows.len() * groups)?;
            return Ok(Offsets::Zeros(bytes.iter().map(|zero| f32::from(zero.cast_signed())).collect()));
        }
        let each = WORD / bits;
        let words = self.whole(tensor, self.rows.div_ceil(each) * groups * 4)?;
        let zero = |row: usize, group: usize| match packing {
            ZeroPacking::RowWords => {
                field(word(&words, group * self.rows.div_ceil(each) + row / each), row % each, bits)
            }
            ZeroPacking::InterleavedRowWords => interleaved(&words, group * self.rows / each, row),
            ZeroPacking::TransposedRowWords => {
                field(word(&words, row / each * groups + group), row % each, bits)
            }
            ZeroPacking::SignedBytes => 0,
        };
        let zero = |row, group| f32::from(zero(row, group)) + plus as f32;
        Ok(Offsets::Zeros(rows.flat_map(|row| (0..groups).map(move |group| zero(row, group))).collect()))
    }
}
