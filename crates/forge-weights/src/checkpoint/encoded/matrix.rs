//! A matrix that a checkpoint stores as codes and scales in several tensors.

use crate::checkpoint::encoded::coded_rows::{CodedRows, Offsets};
use crate::checkpoint::encoded::codes::word;
use crate::checkpoint::encoded::repack;
use crate::checkpoint::encoded::tensor_cache::TensorCache;
use crate::codec::nvfp4;
use forge_ir::{Element, Encoding, Format, ScaleFactor, factor_of_divisor};
use std::io;
use std::ops::Range;

/// Fills its last argument with bytes of a tensor from an offset on.
pub(crate) type ReadTensor<'a> = &'a (dyn Fn(&str, u64, &mut [u8]) -> io::Result<()> + Sync);

/// A matrix of the checkpoint, with the function that reads its tensors.
pub(crate) struct EncodedMatrix<'a> {
    pub(crate) read: ReadTensor<'a>,
    /// Whole tensors that were read before.
    pub(crate) cache: &'a TensorCache,
    /// How it is stored.
    pub(crate) encoding: Encoding,
    /// Name of its tensor in the graph.
    pub(crate) tensor: &'a str,
    /// Rows of the tensor.
    pub(crate) rows: usize,
    /// Columns of the tensor.
    pub(crate) columns: usize,
}

/// Largest factor of nvfp4: kernels multiply it by 2^22 and a scale.
const LARGEST_FACTOR: f32 = 1e30;

impl EncodedMatrix<'_> {
    /// Name of one of its tensors.
    pub(super) fn part(&self, name: &str) -> String {
        let module = self.tensor.strip_suffix(".weight").unwrap_or(self.tensor);
        format!("{module}.{name}")
    }

    /// Bytes of one of its tensors.
    pub(super) fn bytes(&self, name: &str, offset: usize, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        (self.read)(&self.part(name), offset as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// All bytes of one of its tensors, which may be kept for the next rows.
    pub(super) fn whole(&self, name: &str, length: usize) -> io::Result<std::sync::Arc<Vec<u8>>> {
        self.cache.get(&self.part(name), || self.bytes(name, 0, length))
    }

    fn coded(&self, rows: Range<usize>) -> io::Result<CodedRows> {
        let scales = self.scales(rows.clone())?;
        let offsets = self.offsets(rows.clone())?;
        Ok(CodedRows { codes: self.codes(rows)?, scales, offsets })
    }

    /// The group of every column, if columns are not grouped in order.
    fn column_order(&self) -> io::Result<Option<Vec<usize>>> {
        let Some(name) = self.encoding.groups else { return Ok(None) };
        let bytes = self.whole(name, 4 * self.columns)?;
        let groups = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let groups: Vec<usize> = groups.collect();
        let count = self.encoding.groups_of(self.columns);
        match groups.iter().find(|group| **group >= count) {
            Some(beyond) => Err(invalid(format!("{} has group {beyond} of {count}", self.part(name)))),
            None => Ok(Some(groups)),
        }
    }

    /// Fills `out` with the values of rows.
    pub(crate) fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) -> io::Result<()> {
        let columns = self.columns.max(1);
        let CodedRows { codes, scales, offsets } = self.coded(rows)?;
        let count = self.encoding.groups_of(columns);
        let group = self.encoding.group(columns);
        let order = self.column_order()?;
        let element = self.element_values()?;
        for (row, (codes, out)) in codes.chunks_exact(columns).zip(out.chunks_exact_mut(columns)).enumerate()
        {
            let first = row * count;
            let value = |code: u8, group: usize| {
                let (element, scale) = (element[usize::from(code)], scales[first + group]);
                match &offsets {
                    Offsets::Zeros(zeros) => (element - zeros[first + group]) * scale,
                    Offsets::Biases(biases) => element * scale + biases[first + group],
                }
            };
            if let Some(order) = &order {
                let columns = out.iter_mut().zip(codes).zip(order);
                columns.for_each(|((out, code), group)| *out = value(*code, *group));
                continue;
            }
            for (group, (out, codes)) in out.chunks_mut(group).zip(codes.chunks(group)).enumerate() {
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = value(*code, group));
            }
        }
        Ok(())
    }

    /// Fills `out` with rows in one of forge's quantized formats, each quantized values first and then scales.
    pub(crate) fn repack(&self, rows: Range<usize>, format: Format, out: &mut [u8]) -> io::Result<()> {
        if self.encoding.groups.is_some() {
            return Err(invalid(format!("{}: columns are reordered", self.tensor)));
        }
        if format == Format::Nvfp4 {
            return self.nvfp4(rows, out);
        }
        let coded = self.coded(rows)?;
        let group = self.encoding.group(self.columns);
        let values = self.element_values()?;
        let source =
            repack::Source { encoding: &self.encoding, values: &values, columns: self.columns, group };
        repack::rows(&source, &coded, format, out)
            .map_err(|message| invalid(format!("{} cannot be repacked in {format}: {message}", self.tensor)))
    }

    /// Fills `out` with rows in nvfp4, which has the same floats and scales.
    fn nvfp4(&self, rows: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        let scales = self.encoding.scales;
        let factor = match scales.factor {
            ScaleFactor::One => 1.0,
            ScaleFactor::Times(name) => self.scalar(name)?,
            ScaleFactor::Over(name) => factor_of_divisor(self.scalar(name)?).0,
            ScaleFactor::OverConstant(divisor) => factor_of_divisor(divisor as f32).0,
        };
        if factor.abs() > LARGEST_FACTOR {
            return Err(invalid(format!("{}: the factor {factor:e} is too large for nvfp4", self.tensor)));
        }
        let groups = self.encoding.groups_of(self.columns);
        let mut bytes = self.bytes(scales.tensor, rows.start * groups, rows.len() * groups)?;
        for byte in &mut bytes {
            match *byte {
                // Negative zero.
                0x80 => *byte = 0,
                0x7f | 0x81.. => {
                    let part = self.part(scales.tensor);
                    return Err(invalid(format!("{part} has a scale that is negative or NaN")));
                }
                _ => {}
            }
        }
        let codes = self.codes(rows)?;
        let [of_codes, of_scales] = Format::Nvfp4.plane_bytes(self.columns);
        let rows = codes.chunks_exact(self.columns).zip(bytes.chunks_exact(groups));
        for ((codes, scales), out) in rows.zip(out.chunks_exact_mut(of_codes + of_scales)) {
            nvfp4::store(codes, scales, factor, out.split_at_mut(of_codes).into());
        }
        Ok(())
    }

    /// The f32 in the tensor of this name.
    pub(super) fn scalar(&self, name: &str) -> io::Result<f32> {
        self.bytes(name, 0, 4).map(|bytes| f32::from_bits(word(&bytes, 0)))
    }

    /// The value of every code.
    fn element_values(&self) -> io::Result<Vec<f32>> {
        let element = self.encoding.element;
        if let Element::Table(name) = element {
            let bytes = self.whole(name, 4 << element.bits())?;
            return Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect());
        }
        Ok((0..=u8::MAX).map(|code| element.value(code)).collect())
    }
}

/// The error for tensors that contradict each other.
pub(super) fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
