//! Progress of a download.

/// A progress event.
#[derive(Debug)]
pub enum Event<'a> {
    /// A message for the user.
    Note(&'a str),
    /// A download is about to start.
    Total {
        /// Number of files that the cache does not have.
        files: usize,
        /// Missing bytes of these files.
        bytes: u64,
    },
    /// A file's download begins.
    Begin {
        /// Name in the repository.
        file: &'a str,
        /// Bytes downloaded earlier.
        done: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Bytes of the current file downloaded so far.
    Progress(u64),
    /// The current file is complete and verified.
    End,
}

/// A callback for events.
pub type ProgressFn<'a> = dyn FnMut(Event<'_>) + 'a;
