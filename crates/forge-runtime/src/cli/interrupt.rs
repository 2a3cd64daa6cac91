//! Ctrl-C, noticed rather than obeyed, so that a command can end cleanly. A second one ends the program at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of what was interrupted: that which shells give a program that the signal has ended.
pub(crate) const EXIT: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C has been pressed since [`watch`].
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

#[cfg(unix)]
mod signals {
    use std::ffi::c_int;

    pub(crate) const SIGINT: c_int = 2;
    pub(crate) const DEFAULT: usize = 0;

    unsafe extern "C" {
        pub(crate) fn signal(number: c_int, handler: usize) -> usize;
    }

    pub(crate) extern "C" fn noticed(number: c_int) {
        super::INTERRUPTED.store(true, super::Ordering::Relaxed);
        // SAFETY: `signal` may be called from a handler; it takes this one's place away.
        unsafe { signal(number, DEFAULT) };
    }
}

/// Begins to notice Ctrl-C, as if it had not been pressed before.
pub(crate) fn watch() {
    INTERRUPTED.store(false, Ordering::Relaxed);
    #[cfg(unix)]
    // SAFETY: the handler stores one atomic and calls `signal`, both of which handlers may do.
    unsafe {
        signals::signal(signals::SIGINT, signals::noticed as extern "C" fn(std::ffi::c_int) as usize)
    };
}

/// Lets Ctrl-C end the program again, as it always does.
pub(crate) fn leave() {
    #[cfg(unix)]
    // SAFETY: no handler is left that could be called.
    unsafe {
        signals::signal(signals::SIGINT, signals::DEFAULT)
    };
}
