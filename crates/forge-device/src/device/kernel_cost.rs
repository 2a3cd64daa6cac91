//! Lower bound of the memory traffic and operations of a dispatch. The compiler generates each amount as a
//! linear function of the pass size.
//!
//! Each byte of memory counts once per dispatch, even if several threads load it. Rows are assumed to be
//! consecutive positions of one sequence, or one of each sequence, and to choose distinct experts where possible.

/// Coefficients of a linear cost: constant, per row, per cached position read, per attended (row, position)
/// pair, and per distinct chosen expert.
pub type LinearCost = [i64; 5];

/// Cost functions of a kernel's dispatches.
#[derive(Clone, Copy, Debug)]
pub struct KernelCost {
    /// Bytes read.
    pub read: LinearCost,
    /// Bytes written.
    pub written: LinearCost,
    /// Additions and multiplications.
    pub operations: LinearCost,
    /// Sliding-window length, the row's own position included; none: full attention.
    pub window: Option<u32>,
    /// Number of experts, and experts per token.
    pub experts: [u32; 2],
}

/// Cost of one dispatch.
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
    /// Unknown cost.
    pub const NONE: KernelCost =
        KernelCost { read: [0; 5], written: [0; 5], operations: [0; 5], window: None, experts: [0; 2] };

    /// The cost of a dispatch of `rows` rows of this number of sequences. The last row of a sequence attends to
    /// `length` positions.
    pub fn of(&self, rows: u32, sequences: u32, length: u32) -> DispatchCost {
        let window = u64::from(self.window.unwrap_or(u32::MAX));
        let (rows, length) = (u64::from(rows), u64::from(length));
        let sequences = u64::from(sequences).min(rows).max(1);
        let each = rows / sequences;
        let [free, chosen] = self.experts.map(u64::from);
        let attended: u64 = (0..each.min(length)).map(|row| (length - row).min(window)).sum();
        let reached = length.min(window + each - each.min(1));
        let amounts = [1, rows, sequences * reached, sequences * attended, free.min(rows * chosen)];
        let sum = |sum: &LinearCost| {
            let terms = sum.iter().zip(amounts).map(|(each, amount)| each * amount as i64);
            terms.sum::<i64>().max(0) as u64
        };
        DispatchCost { read: sum(&self.read), written: sum(&self.written), operations: sum(&self.operations) }
    }
}

impl DispatchCost {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_costs_follow_rows_and_context() {
        let work = KernelCost { read: [1000, 10, 0, 0, 0], written: [0, 0, 1, 0, 0], ..KernelCost::NONE };
        assert_eq!(work.of(3, 1, 8), DispatchCost { read: 1030, written: 8, operations: 0 });
        let work = KernelCost { operations: [0, 0, 0, 1, 0], ..KernelCost::NONE };
        // Rows at positions 5, 6 and 7 attend to 6, 7 and 8 positions.
        assert_eq!(work.of(3, 1, 8).operations, 21);
        assert_eq!(work.of(3, 3, 8).operations, 24);
        let work = KernelCost { window: Some(4), written: [0, 0, 1, 0, 0], ..work };
        assert_eq!(work.of(3, 1, 8), DispatchCost { read: 0, written: 6, operations: 12 });
        let work = KernelCost { read: [100, 0, 0, 0, 10], experts: [6, 2], ..KernelCost::NONE };
        assert_eq!([1, 2, 3, 4].map(|rows| work.of(rows, 1, 9).read), [120, 140, 160, 160]);
    }
}
