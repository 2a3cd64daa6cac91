//! Weight matrices of all experts, at a fixed stride.

use crate::cpu::device::kernel_args::KernelArgs;
use crate::cpu::format::matrix::Matrix;

/// A stack of expert matrices: one per cache slot, or one per expert if all are resident.
#[derive(Clone, Copy)]
pub(crate) struct ExpertStack<M> {
    first: M,
    /// Stride in bytes.
    record: usize,
}

impl<M: Matrix> ExpertStack<M> {
    /// Looks up the bound matrices of `rows` rows and `blocks` blocks; `experts` is the number of experts.
    pub(crate) fn find(
        call: &KernelArgs<'_>,
        (experts, record): (usize, usize),
        rows: usize,
        blocks: usize,
    ) -> Self {
        let others = (call.matrices(experts) - 1) * record;
        ExpertStack { first: M::find(&call.with_padding(others), "weight", rows, blocks), record }
    }

    /// The matrix at index `index`.
    pub(crate) fn of(self, index: usize) -> M {
        self.first.after(index * self.record)
    }
}
