//! The weight file as experts are read from it: past the system's cache of files where that can be had.
//!
//! The cache would keep a second copy of every expert, in memory that the program was not given. Linux reads past it (O_DIRECT)
//! what begins and ends on a page of the file and of memory; the compiler begins large planes on pages, so that most
//! models' experts do. What does not is read by whole pages and copied. Apple's systems are asked to keep nothing of what is read
//! (F_NOCACHE). A file system that knows no such reading is read as any file.

use crate::weights::WeightFile;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What disks read, and memory has to begin at, for reads past the cache.
const PAGE: usize = 4096;

/// Something that experts are read from.
pub trait Source: Send + Sync {
    /// Fills `to` with what lies at `from`.
    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), String>;

    /// Whether it still is what it was when the program began.
    fn check(&self) -> Result<(), String>;
}

/// The weight file.
pub struct WeightSource {
    path: PathBuf,
    file: File,
    /// The same file, read past the cache.
    direct: Option<File>,
    was: State,
}

/// What changes if somebody writes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl State {
    fn of(metadata: &Metadata) -> State {
        State { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl WeightSource {
    /// The file that `weights` maps.
    pub fn new(weights: &WeightFile) -> Result<WeightSource, String> {
        let path = weights.path().to_path_buf();
        let trouble = |error: io::Error| format!("{}: cannot be read: {error}", path.display());
        let file = weights.file().try_clone().map_err(trouble)?;
        let was = State::of(&file.metadata().map_err(trouble)?);
        let direct = open_direct(&path).filter(|direct| is_same(direct, &file));
        Ok(WeightSource { path, file, direct, was })
    }

    fn trouble(&self, what: impl std::fmt::Display) -> String {
        format!("{}: {what}", self.path.display())
    }

    /// Reads whole pages that have what is wanted, and copies that.
    fn read_by_pages(direct: &File, from: u64, to: &mut [u8]) -> io::Result<()> {
        let first = from / PAGE as u64 * PAGE as u64;
        let skipped = (from - first) as usize;
        let needed = skipped + to.len();
        let mut pages = vec![Page([0; PAGE]); needed.div_ceil(PAGE)];
        // SAFETY: pages are bytes, one after the other.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<u8>(), pages.len() * PAGE) };
        let mut done = 0;
        // The file's last page may be none: then what is there of it is enough.
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
            self.trouble(match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    format!("has been cut short: bytes {from}..+{count} are missing")
                }
                _ => format!("bytes {from}..+{count} cannot be read: {error}"),
            })
        })
    }

    fn check(&self) -> Result<(), String> {
        match self.file.metadata() {
            Ok(metadata) if State::of(&metadata) == self.was => Ok(()),
            Ok(_) => Err(self.trouble("has been changed since the program began: start it again")),
            Err(error) => Err(self.trouble(format!("cannot be read: {error}"))),
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

/// Opens a file for reads past the cache, if its file system has them.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200_000 } else { 0o40_000 };
    let file = File::options().read(true).custom_flags(O_DIRECT).open(path).ok()?;
    // Some accept the flag and refuse to read.
    let mut page = [Page([0; PAGE])];
    read_at(&file, 0, &mut page[0].0).ok()?;
    Some(file)
}

/// Opens a file for reads that the cache keeps nothing of.
#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::fd::AsRawFd;
    const F_NOCACHE: i32 = 48;
    unsafe extern "C" {
        fn fcntl(file: i32, command: i32, ...) -> i32;
    }
    let file = File::open(path).ok()?;
    // SAFETY: the file is open, and the command takes a number.
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

/// Whether both are one file: its name may have been given to another.
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
