//! Limits of time and memory.
//!
//! The allocator of this program counts memory per thread and fails allocations beyond the limit. Fallible
//! allocations get an error. All others abort the process, and the file under test remains at the path given
//! to [`run_limited`]. A separate thread checks the time, because a hanging thread cannot.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Maximum memory in bytes, in addition to the size of the file.
const MEMORY: usize = 500_000_000;

/// Maximum time: a hundred times that of the slowest file in a build without optimization.
const TIME: Duration = Duration::from_secs(30);

struct Counting;

thread_local! {
    /// Bytes that a thread may still allocate.
    static LEFT: Cell<isize> = const { Cell::new(isize::MAX) };
}

/// Subtracts from the bytes that this thread may still allocate; a negative number adds. False if too few are
/// left.
fn take(bytes: isize) -> bool {
    let left = LEFT.get();
    let is_there = bytes <= left;
    if is_there {
        LEFT.set(left.saturating_sub(bytes));
    }
    is_there
}

// SAFETY: all calls go to the system allocator, except those that return null, which an allocator may do.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size() as isize) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        take(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !take(bytes as isize - layout.size() as isize) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The work in progress on each thread: its start, and the file.
static NOW: LazyLock<Mutex<HashMap<ThreadId, (Instant, PathBuf)>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a file of this size, with limits. Returns the message of a panic.
pub(crate) fn run_limited(file: &Path, bytes: usize, work: impl FnOnce()) -> Result<(), String> {
    static CLOCK: Once = Once::new();
    CLOCK.call_once(|| {
        std::thread::spawn(watch_the_clock);
    });
    let own = std::thread::current().id();
    lock(&NOW).insert(own, (Instant::now(), file.to_owned()));
    LEFT.set((bytes + MEMORY) as isize);
    let done = catch_unwind(AssertUnwindSafe(work));
    LEFT.set(isize::MAX);
    lock(&NOW).remove(&own);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

fn watch_the_clock() {
    loop {
        std::thread::sleep(TIME / 10);
        let now = lock(&NOW);
        if let Some((_, file)) = now.values().find(|(since, _)| since.elapsed() > TIME) {
            let _ = writeln!(std::io::stderr(), "this takes more than {TIME:?}: {}", file.display());
            std::process::abort();
        }
    }
}
