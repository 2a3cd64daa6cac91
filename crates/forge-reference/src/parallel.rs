//! Divides work among threads if there is enough of it.

use std::ops::Range;

/// Operations that take about as long as starting a thread.
const MIN_PARALLEL_OPERATIONS: usize = 1 << 20;

/// Calls `work` on ranges that cover `0..items`, in parallel if worthwhile, and returns the results in order.
/// `each` is the number of operations per item. Results must not depend on the number of ranges.
pub(crate) fn parallel_ranges<T: Send>(
    items: usize,
    each: usize,
    work: impl Fn(Range<usize>) -> T + Sync,
) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(items.saturating_mul(each) / MIN_PARALLEL_OPERATIONS).max(1);
    let size = items.div_ceil(threads).max(1);
    let ranges = (0..items).step_by(size).map(|start| start..items.min(start + size));
    if threads == 1 {
        return ranges.map(work).collect();
    }
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = ranges.map(|range| scope.spawn(move || work(range))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join();
        running
            .into_iter()
            .map(|thread| join(thread).unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    })
}
