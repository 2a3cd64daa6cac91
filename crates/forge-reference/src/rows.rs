//! The rows of a batch and the values computed for them.

/// One token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Token id.
    pub(crate) id: u32,
    /// Slot.
    pub(crate) slot: usize,
    /// Position in the slot.
    pub(crate) position: usize,
}

/// The rows of a sequence from position 0 on.
pub(crate) fn of_slot(slot: usize, ids: &[u32]) -> impl Iterator<Item = Row> {
    ids.iter().enumerate().map(move |(position, id)| Row { id: *id, slot, position })
}

/// One vector per row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    /// Width of a vector.
    pub(crate) width: usize,
    /// Elements, row by row.
    pub(crate) data: Vec<f32>,
}

impl Values {
    /// An iterator over the rows' vectors.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.width.max(1))
    }

    /// One row's vector.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }

    /// Applies a function to each element.
    pub(crate) fn map(&self, function: impl Fn(f32) -> f32) -> Values {
        Values { width: self.width, data: self.data.iter().map(|x| function(*x)).collect() }
    }

    /// Applies a function to each pair of elements.
    pub(crate) fn zip(&self, other: &Values, function: impl Fn(f32, f32) -> f32) -> Values {
        let data = self.data.iter().zip(&other.data).map(|(a, b)| function(*a, *b)).collect();
        Values { width: self.width, data }
    }

    /// Multiplies each row by the single element of the other's row.
    pub(crate) fn times(&self, factors: &Values) -> Values {
        let product = |(row, factor): (&[f32], &f32)| row.iter().map(|x| x * factor).collect::<Vec<f32>>();
        let data = self.rows().zip(&factors.data).flat_map(product).collect();
        Values { width: self.width, data }
    }
}
