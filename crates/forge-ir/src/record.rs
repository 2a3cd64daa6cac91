//! Records: what an expert has of all matrices of a layer's experts, side by side in the weight file.
//!
//! Who needs an expert needs all of it, so all of it is one range of bytes, of whole pages, and one read brings it. The records of a
//! layer are one tensor of bytes, `[experts, bytes]`. In a record lies matrix after matrix, and of each plane after plane.

use crate::format::Format;
use std::ops::Range;

/// What expert after expert has of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where the planes of each matrix lie. A second plane of no bytes is none.
    pub matrices: Vec<[Range<usize>; 2]>,
    /// From one record to the next.
    pub bytes: usize,
}

impl Record {
    /// What records begin at multiples of: what disks read at once.
    pub const PAGE: usize = 4096;

    /// What planes begin at multiples of.
    pub const ALIGNMENT: usize = 64;

    /// That of an expert with these matrices: formats, rows and columns.
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
    fn planes_lie_one_after_the_other_and_records_fill_pages() {
        let record = Record::of(&[(Format::Q8_0, [3, 40]), (Format::F16, [5, 32])]);
        assert_eq!(record.matrices, [[0..192, 192..204], [256..576, 576..576]]);
        assert_eq!(record.bytes, 4096);
        assert_eq!(Record::of(&[(Format::F32, [33, 32])]).bytes, 8192);
    }
}
