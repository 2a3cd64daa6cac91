//! Ctrl-C, noticed rather than obeyed, so that a command can end cleanly. A second one ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C has been pressed since [`watch`].
pub(super) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Begins to notice Ctrl-C.
#[cfg(unix)]
pub(super) fn watch() {
    use std::ffi::c_int;
    const SIGINT: c_int = 2;
    const DEFAULT: usize = 0;
    unsafe extern "C" {
        fn signal(number: c_int, handler: usize) -> usize;
    }
    extern "C" fn noticed(number: c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
        // SAFETY: `signal` may be called from a handler; it takes this one's place away.
        unsafe { signal(number, DEFAULT) };
    }
    // SAFETY: the handler stores one atomic and calls `signal`, both of which handlers may do.
    unsafe { signal(SIGINT, noticed as extern "C" fn(c_int) as usize) };
}

/// Ctrl-C ends the program as it always does.
#[cfg(not(unix))]
pub(super) fn watch() {}
