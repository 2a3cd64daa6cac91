//! Activation statistics of matrices: which input columns matter, and by how much.
//!
//! A matrix multiplies inputs x. An error e in one of its columns changes the output by e · x, so the expected
//! squared error of the output is the sum of e² · E\[x²\] over columns. E\[x²\] is the *importance* of a column,
//! as in llama.cpp's importance matrices (imatrix).

use crate::weights::weight::{Weight, WeightSlice};
use std::collections::BTreeMap;

/// Squared inputs of a matrix's columns, summed over tokens.
///
/// A matrix has one or more *parts* of equal row counts with inputs of their own: the experts of a stack, or
/// the heads of a per-head matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSquares {
    columns: usize,
    /// Part by part.
    sums: Vec<f64>,
    /// Input rows of each part.
    counts: Vec<u64>,
}

impl ColumnSquares {
    /// Statistics without any inputs yet.
    pub fn new(columns: usize, parts: usize) -> ColumnSquares {
        ColumnSquares { columns, sums: vec![0.0; columns * parts], counts: vec![0; parts] }
    }

    /// Statistics of given sums, part by part, and of the number of inputs of each part. `None` if there are
    /// no parts, if their sizes differ, or if a sum is negative or not finite.
    pub fn from_sums(sums: Vec<f64>, counts: Vec<u64>) -> Option<ColumnSquares> {
        let columns = sums.len().checked_div(counts.len())?;
        let is_valid =
            columns * counts.len() == sums.len() && sums.iter().all(|x| x.is_finite() && *x >= 0.0);
        is_valid.then_some(ColumnSquares { columns, sums, counts })
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.counts.len()
    }

    /// Number of inputs of all parts.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds inputs of a part.
    pub fn add<'a>(&mut self, part: usize, inputs: impl Iterator<Item = &'a [f32]>) {
        let sums = &mut self.sums[part * self.columns..(part + 1) * self.columns];
        for input in inputs {
            sums.iter_mut().zip(input).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            self.counts[part] += 1;
        }
    }

    /// The mean squares of a part's columns. A part without inputs, such as an expert that no token selected,
    /// has those of all parts together. `None` if there are no nonzero inputs.
    pub fn means(&self, part: usize) -> Option<Vec<f64>> {
        let of = |parts: std::ops::Range<usize>| {
            let count = self.counts[parts.clone()].iter().sum::<u64>().max(1) as f64;
            let column = |column: usize| {
                parts.clone().map(|part| self.sums[part * self.columns + column]).sum::<f64>() / count
            };
            (0..self.columns).map(column).collect::<Vec<f64>>()
        };
        let has_inputs = |means: &Vec<f64>| means.iter().any(|x| *x > 0.0);
        Some(of(part..part + 1)).filter(has_inputs).or_else(|| Some(of(0..self.parts())).filter(has_inputs))
    }
}

/// Activation statistics of the matrices of a model.
///
/// They belong to a slice of a tensor, not to a weight of a graph, because a tied output head may become a
/// weight of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    matrices: BTreeMap<(String, Option<WeightSlice>), ColumnSquares>,
}

impl ImportanceMatrix {
    /// The statistics of a matrix.
    pub fn get(&self, weight: &Weight) -> Option<&ColumnSquares> {
        self.matrices.get(&(weight.tensor.clone(), weight.cut))
    }

    /// Sets the statistics of a matrix.
    pub fn insert(&mut self, weight: &Weight, squares: ColumnSquares) {
        self.matrices.insert((weight.tensor.clone(), weight.cut), squares);
    }

    /// Adds inputs of part `part` of `parts` of a matrix.
    pub fn add<'a>(
        &mut self,
        weight: &Weight,
        (part, parts): (usize, usize),
        inputs: impl Iterator<Item = &'a [f32]>,
    ) {
        let key = (weight.tensor.clone(), weight.cut);
        let new = || ColumnSquares::new(weight.columns(), parts);
        self.matrices.entry(key).or_insert_with(new).add(part, inputs);
    }

    /// Number of matrices with statistics.
    pub fn len(&self) -> usize {
        self.matrices.len()
    }

    /// Whether no matrix has statistics.
    pub fn is_empty(&self) -> bool {
        self.matrices.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_a_part_or_of_all_parts() {
        let mut squares = ColumnSquares::new(2, 3);
        assert_eq!(squares.means(0), None);
        squares.add(0, [[1.0, 2.0], [3.0, 0.0]].iter().map(|row| &row[..]));
        squares.add(2, [[5.0, 1.0]].iter().map(|row| &row[..]));
        assert_eq!(squares.means(0), Some(vec![5.0, 2.0]));
        assert_eq!(squares.means(2), Some(vec![25.0, 1.0]));
        assert_eq!(squares.means(1), Some(vec![35.0 / 3.0, 5.0 / 3.0]), "a part without inputs");
    }

    #[test]
    fn rejects_sums_that_are_no_sums_of_squares() {
        assert!(ColumnSquares::from_sums(vec![1.0; 6], vec![4, 4]).is_some_and(|it| it.columns() == 3));
        assert_eq!(ColumnSquares::from_sums(vec![1.0; 5], vec![4, 4]), None);
        assert_eq!(ColumnSquares::from_sums(vec![1.0, -1.0], vec![4]), None);
        assert_eq!(ColumnSquares::from_sums(vec![1.0, f64::NAN], vec![4]), None);
        assert_eq!(ColumnSquares::from_sums(vec![1.0], vec![]), None);
    }
}
