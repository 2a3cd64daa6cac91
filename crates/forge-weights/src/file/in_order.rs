//! Parallel work whose results are used in order.

use forge_ir::Diagnostic;
use std::sync::mpsc;

/// Results that a thread may have waiting. They bridge pauses of the disk, on either side.
const WAITING: usize = 4;

/// Applies `work` to items on all cores, and `take` to each item and its result on this thread, in order. Ends at the
/// first error in that order.
pub(crate) fn in_order<I: Sync, T: Send>(
    items: &[I],
    work: impl Fn(&I) -> Result<T, Diagnostic> + Sync,
    mut take: impl FnMut(&I, T) -> Result<(), Diagnostic>,
) -> Result<(), Diagnostic> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    std::thread::scope(|scope| {
        let results: Vec<_> = (0..threads)
            .map(|thread| {
                let (sender, results) = mpsc::sync_channel(WAITING);
                let work = &work;
                // After an error nothing receives, and the thread ends.
                scope.spawn(move || {
                    items.iter().skip(thread).step_by(threads).all(|item| sender.send(work(item)).is_ok())
                });
                results
            })
            .collect();
        for (index, item) in items.iter().enumerate() {
            // A thread that sends nothing has panicked, and so does the scope.
            let Ok(result) = results[index % threads].recv() else { break };
            take(item, result?)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(item: u32) -> Diagnostic {
        Diagnostic::new("F0603", item.to_string())
    }

    #[test]
    fn results_are_in_order() {
        let items: Vec<u32> = (0..1000).collect();
        let mut taken = Vec::new();
        let take = |item: &u32, double| {
            taken.push((*item, double));
            Ok(())
        };
        in_order(&items, |item| Ok(item * 2), take).expect("nothing fails");
        assert_eq!(taken, items.iter().map(|item| (*item, item * 2)).collect::<Vec<_>>());
        in_order(&[], |item: &u32| Ok(*item), |_, _| Err(error(0))).expect("nothing is taken");
    }

    #[test]
    fn the_first_error_ends_it() {
        let items: Vec<u32> = (0..1000).collect();
        let work = |item: &u32| if *item >= 600 { Err(error(*item)) } else { Ok(()) };
        let mut taken = 0;
        let take = |_: &u32, ()| {
            taken += 1;
            Ok(())
        };
        assert_eq!(in_order(&items, work, take).map_err(|error| error.message), Err("600".to_owned()));
        assert_eq!(taken, 600);
        let take = |item: &u32, ()| if *item == 17 { Err(error(17)) } else { Ok(()) };
        assert_eq!(in_order(&items, work, take).map_err(|error| error.message), Err("17".to_owned()));
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_is_passed_on() {
        let items: Vec<u32> = (0..1000).collect();
        let work = |item: &u32| if *item == 300 { panic!("at 300") } else { Ok(()) };
        let _ = in_order(&items, work, |_, ()| Ok(()));
    }
}
