//! Parallel work on many crates, with as many threads as the machine has.

use std::sync::Mutex;

/// The results of `work` in the order of the items. A panic of `work` is propagated.
pub fn parallel_map<T: Send, R: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let (items, results) = (Mutex::new(items.enumerate()), Mutex::new(Vec::new()));
    let next = || items.lock().expect("the lock is not poisoned").next();
    let take = || {
        while let Some((index, item)) = next() {
            let result = work(item);
            results.lock().expect("the lock is not poisoned").push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(take);
        }
    });
    let mut results = results.into_inner().expect("the lock is not poisoned");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
