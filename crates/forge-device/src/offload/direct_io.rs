//! Reads of expert records from the weight file, with direct I/O where possible.
//!
//! The page cache would hold a second copy of every expert, in memory that the program was not given. Linux
//! has O_DIRECT for ranges that are aligned to pages in the file and in memory. Records are page-aligned, so
//! it applies to most models. Other ranges are read in whole pages and copied. macOS and iOS have F_NOCACHE.
//! File systems without direct I/O are read normally.

use crate::weights::WeightFile;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Alignment of file offsets and memory for direct I/O.
const PAGE: usize = 4096;

/// A source of expert records.
pub trait Source: Send + Sync {
    /// Fills `to` with the bytes at `from`.
    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), String>;

    /// An error if the source has changed since the program started.
    fn check(&self) -> Result<(), String>;
}

/// The weight file.
pub struct WeightSource {
    path: PathBuf,
    file: File,
    /// The same file, opened for direct I/O.
    direct: Option<File>,
    initial: FileState,
}

/// Metadata that changes when a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl FileState {
    fn of(metadata: &Metadata) -> FileState {
        FileState { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl WeightSource {
    /// The weight file that `weights` maps.
    pub fn new(weights: &WeightFile) -> Result<WeightSource, String> {
        let path = weights.path().to_path_buf();
        let read_error = |error: io::Error| format!("{}: cannot be read: {error}", path.display());
        let file = weights.file().try_clone().map_err(read_error)?;
        let initial = FileState::of(&file.metadata().map_err(read_error)?);
        let direct = open_direct(&path).filter(|direct| is_same(direct, &file));
        Ok(WeightSource { path, file, direct, initial })
    }

    fn error(&self, what: impl std::fmt::Display) -> String {
        format!("{}: {what}", self.path.display())
    }

    /// Reads the whole pages around a range and copies the range.
    fn read_by_pages(direct: &File, from: u64, to: &mut [u8]) -> io::Result<()> {
        let first = from / PAGE as u64 * PAGE as u64;
        let skipped = (from - first) as usize;
        let needed = skipped + to.len();
        let mut pages = vec![Page([0; PAGE]); needed.div_ceil(PAGE)];
        // SAFETY: `Page` is plain bytes, and pages are contiguous.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<u8>(), pages.len() * PAGE) };
        let mut done = 0;
        // The file may end within the last page.
        while done < needed {
            match read_at(direct, first + done as u64, &mut bytes[done..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => done += more,
            }
        }
        to.copy_from_slice(&bytes[skipped..needed]);
        Ok(())
    }
}

impl Source for WeightSource {
    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), String> {
        let whole = from.is_multiple_of(PAGE as u64)
            && to.len().is_multiple_of(PAGE)
            && to.as_ptr().addr().is_multiple_of(PAGE);
        let outcome = match &self.direct {
            Some(direct) if whole => read_whole(direct, from, to),
            Some(direct) => WeightSource::read_by_pages(direct, from, to),
            None => read_whole(&self.file, from, to),
        };
        let count = to.len();
        outcome.map_err(|error| {
            self.error(match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    format!("truncated: bytes {from}..+{count} are missing")
                }
                _ => format!("bytes {from}..+{count} cannot be read: {error}"),
            })
        })
    }

    fn check(&self) -> Result<(), String> {
        match self.file.metadata() {
            Ok(metadata) if FileState::of(&metadata) == self.initial => Ok(()),
            Ok(_) => Err(self.error("changed since the program started: restart it")),
            Err(error) => Err(self.error(format!("cannot be read: {error}"))),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

fn read_whole(file: &File, from: u64, to: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < to.len() {
        match read_at(file, from + done as u64, &mut to[done..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => done += more,
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, from: u64, to: &mut [u8]) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;
    loop {
        match file.read_at(to, from) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

#[cfg(windows)]
fn read_at(file: &File, from: u64, to: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, to, from)
}

/// Opens a file for direct I/O, if the file system supports it.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    let file = File::options().read(true).custom_flags(O_DIRECT).open(path).ok()?;
    // Some file systems accept the flag and fail to read.
    let mut page = [Page([0; PAGE])];
    read_at(&file, 0, &mut page[0].0).ok()?;
    Some(file)
}

/// Opens a file for reads that do not fill the page cache.
#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::fd::AsRawFd;
    const F_NOCACHE: i32 = 48;
    unsafe extern "C" {
        fn fcntl(file: i32, command: i32, ...) -> i32;
    }
    let file = File::open(path).ok()?;
    // SAFETY: the descriptor is open, and F_NOCACHE takes an integer.
    let outcome = unsafe { fcntl(file.as_raw_fd(), F_NOCACHE, 1) };
    (outcome != -1).then_some(file)
}

#[cfg(not(any(
    target_vendor = "apple",
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))
)))]
fn open_direct(_: &Path) -> Option<File> {
    None
}

/// Whether both are the same file; the path may have been replaced.
#[cfg(unix)]
fn is_same(one: &File, other: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
    identity(one).is_some_and(|it| Some(it) == identity(other))
}

#[cfg(not(unix))]
fn is_same(_: &File, _: &File) -> bool {
    false
}
