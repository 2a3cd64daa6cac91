//! Ctrl-C handling. The first Ctrl-C sets a flag, so that a command can end cleanly; the second ends the
//! program.

use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code after an interrupt, as shells report it for SIGINT.
pub(crate) const EXIT: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed since [`watch`].
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

    pub(crate) extern "C" fn on_signal(number: c_int) {
        super::INTERRUPTED.store(true, super::Ordering::Relaxed);
        // SAFETY: `signal` is async-signal-safe; it restores the default handler.
        unsafe { signal(number, DEFAULT) };
    }
}

/// Installs the handler and clears the flag.
pub(crate) fn watch() {
    INTERRUPTED.store(false, Ordering::Relaxed);
    #[cfg(unix)]
    // SAFETY: the handler stores one atomic and calls `signal`, both of which are async-signal-safe.
    unsafe {
        signals::signal(signals::SIGINT, signals::on_signal as extern "C" fn(std::ffi::c_int) as usize)
    };
}

/// Restores the default handler, so that Ctrl-C ends the program.
pub(crate) fn unwatch() {
    #[cfg(unix)]
    // SAFETY: restores the default handler; no handler remains.
    unsafe {
        signals::signal(signals::SIGINT, signals::DEFAULT)
    };
}
