//! Work on many crates, shared among as many threads as the machine has at once: each takes the next item when it is done with one.

use std::sync::Mutex;

/// What `work` gives for each item, in the order of the items. What is told of a panic is the panic's own.
pub fn shared_out<T: Send, R: Send>(
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let (items, results) = (Mutex::new(items.enumerate()), Mutex::new(Vec::new()));
    let next = || items.lock().expect("nobody panics with it").next();
    let take = || {
        while let Some((index, item)) = next() {
            let result = work(item);
            results.lock().expect("nobody panics with it").push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(take);
        }
    });
    let mut results = results.into_inner().expect("nobody panicked with it");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
