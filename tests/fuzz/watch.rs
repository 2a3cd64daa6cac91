//! Whether something takes too long or too much memory.
//!
//! Memory is counted by the allocator of this program, and what would go beyond the limit is not given: who asks for it
//! politely is told, and for all others the process ends, the file that was being tried lying where [`watched`] was told.
//! Time is looked at by a thread of its own, because a hang can be seen by others only. Both are of the whole process, so
//! one thing is watched at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// What a file may make us take beyond its own size.
const MEMORY: usize = 500_000_000;

/// How long it may take: a hundred times what the slowest does in a build without optimisation.
const TIME: Duration = Duration::from_secs(30);

struct Counting;

/// Bytes that are allocated.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Bytes that may be.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: everything is the system's, but for what is refused, which an allocator may do.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HELD.fetch_add(layout.size(), Relaxed) + layout.size() > LIMIT.load(Relaxed) {
            HELD.fetch_sub(layout.size(), Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What is being watched: since when, and the file that it is about.
static NOW: Mutex<Option<(Instant, PathBuf)>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing else is watched while this is held.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}

/// Does something with a file of so many bytes. Says what it panicked with.
pub(crate) fn watched(file: &Path, bytes: usize, work: impl FnOnce()) -> Result<(), String> {
    static CLOCK: Once = Once::new();
    CLOCK.call_once(|| {
        std::thread::spawn(watch_the_clock);
    });
    *lock(&NOW) = Some((Instant::now(), file.to_owned()));
    LIMIT.store(HELD.load(Relaxed) + bytes + MEMORY, Relaxed);
    let done = catch_unwind(AssertUnwindSafe(work));
    LIMIT.store(usize::MAX, Relaxed);
    *lock(&NOW) = None;
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

fn watch_the_clock() {
    loop {
        std::thread::sleep(TIME / 10);
        if let Some((since, file)) = &*lock(&NOW)
            && since.elapsed() > TIME
        {
            let _ = writeln!(std::io::stderr(), "this takes more than {TIME:?}: {}", file.display());
            std::process::abort();
        }
    }
}
