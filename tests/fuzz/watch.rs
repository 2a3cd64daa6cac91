//! Whether something takes too long or too much memory.
//!
//! Memory is counted by the allocator of this program, thread by thread, and what would go beyond the limit is not given: who asks
//! for it politely is told, and for all others the process ends, the file that was being tried lying where [`watched`] was told.
//! Time is looked at by a thread of its own, because a hang can be seen by others only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// What a file may make us take beyond its own size.
const MEMORY: usize = 500_000_000;

/// How long it may take: a hundred times what the slowest does in a build without optimisation.
const TIME: Duration = Duration::from_secs(30);

struct Counting;

thread_local! {
    /// Bytes that a thread may still allocate.
    static LEFT: Cell<isize> = const { Cell::new(isize::MAX) };
}

/// Takes bytes of what a thread may allocate, or gives them back if they are less than none; false if there are not as many.
fn take(bytes: isize) -> bool {
    let left = LEFT.get();
    let is_there = bytes <= left;
    if is_there {
        LEFT.set(left.saturating_sub(bytes));
    }
    is_there
}

// SAFETY: everything is the system's, but for what is refused, which an allocator may do.
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

/// What is being watched, by the thread that does it: since when, and the file that it is about.
static NOW: LazyLock<Mutex<HashMap<ThreadId, (Instant, PathBuf)>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something with a file of so many bytes. Says what it panicked with.
pub(crate) fn watched(file: &Path, bytes: usize, work: impl FnOnce()) -> Result<(), String> {
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
