//! Rows of a pass.

use crate::random::Random;

/// Rows by slot and position.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The slot of each row.
    pub slots: Vec<u32>,
    /// The position of each row.
    pub positions: Vec<u32>,
}

impl Batch {
    /// Rows given as (slot, position).
    pub fn of(rows: &[(u32, u32)]) -> Batch {
        let (slots, positions) = rows.iter().copied().unzip();
        Batch { slots, positions }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Each row as (slot, position).
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.slots.iter().copied().zip(self.positions.iter().copied())
    }

    /// A row by itself.
    pub fn row(&self, row: usize) -> Batch {
        Batch { slots: vec![self.slots[row]], positions: vec![self.positions[row]] }
    }

    /// Positions of a slot that are in use once the rows are appended.
    pub fn reach(&self, slot: u32) -> usize {
        self.iter().filter(|row| row.0 == slot).map(|row| row.1 as usize + 1).max().unwrap_or(0)
    }

    /// Rows of two slots, those of a slot adjacent and at consecutive positions; one row alone is the last of
    /// its context.
    pub fn of_two_slots(rows: usize, context: usize, random: &mut Random) -> Batch {
        if rows == 1 {
            return Batch::of(&[(1, context as u32 - 1)]);
        }
        let first = rows.div_ceil(2);
        let start = random.below(context - first + 1);
        let slots = (0..rows).map(|row| u32::from(row < first)).collect();
        let positions = (0..rows).map(|row| if row < first { start + row } else { row - first } as u32);
        Batch { slots, positions: positions.collect() }
    }
}
