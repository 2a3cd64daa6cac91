//! The rows of a batch, and the values that a body computes for them.

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Which token.
    pub(crate) id: u32,
    /// Of which conversation.
    pub(crate) slot: usize,
    /// At which place there.
    pub(crate) position: usize,
}

/// The rows of a text from its beginning.
pub(crate) fn of_slot(slot: usize, ids: &[u32]) -> impl Iterator<Item = Row> {
    ids.iter().enumerate().map(move |(position, id)| Row { id: *id, slot, position })
}

/// One vector for each row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    /// Width of a vector.
    pub(crate) width: usize,
    /// Row by row.
    pub(crate) numbers: Vec<f32>,
}

impl Values {
    /// A vector for each row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.numbers.chunks_exact(self.width.max(1))
    }

    /// One row's vector.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.width..(row + 1) * self.width]
    }

    /// A function of each number.
    pub(crate) fn map(&self, function: impl Fn(f32) -> f32) -> Values {
        Values { width: self.width, numbers: self.numbers.iter().map(|x| function(*x)).collect() }
    }

    /// A function of each two numbers.
    pub(crate) fn zip(&self, other: &Values, function: impl Fn(f32, f32) -> f32) -> Values {
        let numbers = self.numbers.iter().zip(&other.numbers).map(|(a, b)| function(*a, *b)).collect();
        Values { width: self.width, numbers }
    }

    /// Each row times the one number that the other has for it.
    pub(crate) fn times(&self, factors: &Values) -> Values {
        let product = |(row, factor): (&[f32], &f32)| row.iter().map(|x| x * factor).collect::<Vec<f32>>();
        let numbers = self.rows().zip(&factors.numbers).flat_map(product).collect();
        Values { width: self.width, numbers }
    }
}
