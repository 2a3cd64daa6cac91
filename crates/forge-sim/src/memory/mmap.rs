//! Memory mappings.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// A memory mapping that is unmapped on drop.
pub(crate) struct Mapping {
    pub(crate) start: usize,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the range was mapped by `map` and nothing refers to it any more.
            unsafe { libc::munmap(self.start as *mut libc::c_void, self.bytes) };
        }
    }
}

/// An anonymous in-memory file.
pub(crate) fn anonymous() -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a C string; the descriptor is new and ours.
        let descriptor = unsafe { libc::memfd_create(c"forge-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor >= 0 {
            // SAFETY: as above.
            return Ok(unsafe { File::from_raw_fd(descriptor) });
        }
    }
    tempfile::tempfile()
}

pub(crate) fn map(
    at: Option<usize>,
    bytes: usize,
    sharing: i32,
    file: Option<&File>,
    offset: usize,
) -> io::Result<Mapping> {
    let place = at.map_or(null_mut(), |at| at as *mut libc::c_void);
    let flags = sharing
        | if at.is_some() { libc::MAP_FIXED } else { 0 }
        | if file.is_none() { libc::MAP_ANON | libc::MAP_NORESERVE } else { 0 };
    let descriptor = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: a fixed address is inside a mapping of this process; otherwise the system chooses.
    let start = unsafe {
        libc::mmap(place, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, descriptor, offset as libc::off_t)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Mapping { start: start as usize, bytes })
}

pub(crate) fn page() -> usize {
    // SAFETY: has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

pub(crate) fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(page())
}
