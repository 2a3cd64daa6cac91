//! Expert records: all matrices of one expert, contiguous in the weight file.
//!
//! An expert is needed as a whole, so it is one page-aligned byte range and one read loads it. A layer's
//! records are one tensor of bytes, `[experts, bytes]`. A record holds matrix after matrix, and each matrix
//! plane after plane.

use forge_ops::Format;
use std::ops::Range;

/// Layout of an expert record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Byte ranges of each matrix's planes. The second is empty for formats with one plane.
    pub matrices: Vec<[Range<usize>; 2]>,
    /// Stride between records in bytes.
    pub bytes: usize,
}

impl Record {
    /// Alignment of records: the block size of disks.
    pub const PAGE: usize = 4096;

    /// Alignment of planes.
    pub const ALIGNMENT: usize = 64;

    /// The layout for an expert with these matrices, given as format, rows and columns.
    pub fn of(matrices: &[(Format, [usize; 2])]) -> Record {
        let mut end = 0_usize;
        let mut lay = |bytes: usize| {
            let start = if bytes == 0 { end } else { end.next_multiple_of(Record::ALIGNMENT) };
            end = start + bytes;
            start..end
        };
        let matrices = matrices
            .iter()
            .map(|(format, [rows, columns])| format.plane_bytes(*columns).map(|bytes| lay(rows * bytes)))
            .collect();
        Record { matrices, bytes: end.next_multiple_of(Record::PAGE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_contiguous_and_records_are_whole_pages() {
        let record = Record::of(&[(Format::Q8_0, [3, 40]), (Format::F16, [5, 32])]);
        assert_eq!(record.matrices, [[0..192, 192..204], [256..576, 576..576]]);
        assert_eq!(record.bytes, 4096);
        assert_eq!(Record::of(&[(Format::F32, [33, 32])]).bytes, 8192);
    }
}
