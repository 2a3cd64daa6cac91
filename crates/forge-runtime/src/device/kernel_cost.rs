//! What a dispatch does at least: bytes that it reads and writes, and operations. Its kernel knows it as sums, which the
//! compiler made: so much once, and so much for each of what a pass has more or less of.
//!
//! Each byte of memory counts once a dispatch, whether one thread loads it or all do. Rows are taken to be neighbours in one
//! conversation, to choose experts as differently as they can, and to have their cache to themselves.

/// So much once, for each row, for each position whose keys are read, for each position that a row attends to (one that
/// three rows attend to is three of them), and for each expert that is chosen by any row.
pub type LinearCost = [i64; 5];

/// What a kernel's dispatches do.
#[derive(Clone, Copy, Debug)]
pub struct KernelCost {
    /// Bytes read.
    pub read: LinearCost,
    /// Bytes written.
    pub written: LinearCost,
    /// Additions and multiplications.
    pub operations: LinearCost,
    /// Positions that a row sees, its own included; none: all so far.
    pub window: Option<u32>,
    /// Experts that there are to choose from, and those that a row chooses.
    pub experts: [u32; 2],
}

/// What one dispatch does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchCost {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Additions and multiplications.
    pub operations: u64,
}

impl KernelCost {
    /// Nothing that is known.
    pub const NONE: KernelCost =
        KernelCost { read: [0; 5], written: [0; 5], operations: [0; 5], window: None, experts: [0; 2] };

    /// What a dispatch of so many rows does, the last of which attends to `length` positions.
    pub fn of(&self, rows: u32, length: u32) -> DispatchCost {
        let window = u64::from(self.window.unwrap_or(u32::MAX));
        let (rows, length) = (u64::from(rows), u64::from(length));
        let [free, chosen] = self.experts.map(u64::from);
        let attended: u64 = (0..rows.min(length)).map(|row| (length - row).min(window)).sum();
        let reached = length.min(window + rows - rows.min(1));
        let amounts = [1, rows, reached, attended, free.min(rows * chosen)];
        let sum = |sum: &LinearCost| {
            let terms = sum.iter().zip(amounts).map(|(each, amount)| each * amount as i64);
            terms.sum::<i64>().max(0) as u64
        };
        DispatchCost { read: sum(&self.read), written: sum(&self.written), operations: sum(&self.operations) }
    }
}

impl DispatchCost {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_what_a_pass_has() {
        let work = KernelCost { read: [1000, 10, 0, 0, 0], written: [0, 0, 1, 0, 0], ..KernelCost::NONE };
        assert_eq!(work.of(3, 8), DispatchCost { read: 1030, written: 8, operations: 0 });
        let work = KernelCost { operations: [0, 0, 0, 1, 0], ..KernelCost::NONE };
        // Rows at positions 5, 6 and 7, which see 6, 7 and 8.
        assert_eq!(work.of(3, 8).operations, 21);
        let work = KernelCost { window: Some(4), written: [0, 0, 1, 0, 0], ..work };
        assert_eq!(work.of(3, 8), DispatchCost { read: 0, written: 6, operations: 12 });
        let work = KernelCost { read: [100, 0, 0, 0, 10], experts: [6, 2], ..KernelCost::NONE };
        assert_eq!([1, 2, 3, 4].map(|rows| work.of(rows, 9).read), [120, 140, 160, 160]);
    }
}
