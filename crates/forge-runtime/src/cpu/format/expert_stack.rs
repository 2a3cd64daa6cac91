//! Matrices of experts, one after the other.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::Matrix;

/// Matrices of experts: a matrix for each seat, or where there are none for each expert.
#[derive(Clone, Copy)]
pub(crate) struct ExpertStack<M> {
    first: M,
    /// Bytes from one to the next.
    record: usize,
}

impl<M: Matrix> ExpertStack<M> {
    /// The matrices of so many rows and blocks that are bound where there are `experts`.
    pub(crate) fn find(
        call: &KernelArgs<'_>,
        (experts, record): (usize, usize),
        rows: usize,
        blocks: usize,
    ) -> Self {
        let others = (call.matrices(experts) - 1) * record;
        ExpertStack { first: M::find(&call.reaching(others), "weight", rows, blocks), record }
    }

    /// That of a seat, which there has to be.
    pub(crate) fn of(self, seat: usize) -> M {
        self.first.after(seat * self.record)
    }
}
