//! A disk that a test can break: one file in a FUSE file system, whose reads can fail from a given read on.
//!
//! Every direct read of a program reaches the file system. Mapped pages stay in the page cache, as for any
//! file.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, Request,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The name of the file.
const NAME: &str = "file";
const FILE: INodeNo = INodeNo(2);
/// Time for which the kernel caches attributes: longer than any test. The file's length is known even if the
/// disk is dead.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(3600);

/// The disk. Dropping it unmounts it; no process may have the file open then.
pub(crate) struct Disk {
    path: PathBuf,
    state: Arc<State>,
    _session: BackgroundSession,
}

struct State {
    reads: AtomicU64,
    /// The first read that fails.
    fails_at: AtomicU64,
}

impl Disk {
    /// Mounts the bytes of a file in an empty directory, or returns why that is impossible here.
    pub(crate) fn mount(folder: &Path, bytes: Vec<u8>) -> Result<Disk, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".to_owned());
        }
        let state = Arc::new(State { reads: AtomicU64::new(0), fails_at: AtomicU64::new(u64::MAX) });
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::RO, MountOption::NoAtime, MountOption::FSName("failing".to_owned())];
        let session = fuser::spawn_mount(OneFile { bytes, state: state.clone() }, folder, &config).map_err(
            |error| format!("nothing can be mounted, for which root or fusermount3 is needed: {error}"),
        )?;
        Ok(Disk { path: folder.join(NAME), state, _session: session })
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of reads so far.
    pub(crate) fn reads(&self) -> u64 {
        self.state.reads.load(Ordering::SeqCst)
    }

    /// Makes reads fail after `more` reads.
    pub(crate) fn fail_after(&self, more: u64) {
        self.state.fails_at.store(self.reads() + more, Ordering::SeqCst);
    }

    /// Makes reads succeed again.
    pub(crate) fn recover(&self) {
        self.state.fails_at.store(u64::MAX, Ordering::SeqCst);
    }
}

/// The file system behind the disk.
struct OneFile {
    bytes: Vec<u8>,
    state: Arc<State>,
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE;
        let modified: SystemTime = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        FileAttr {
            ino: inode,
            size: if is_file { self.bytes.len() as u64 } else { 0 },
            blocks: 0,
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o444 } else { 0o555 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&ATTRIBUTES_TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_TTL, &self.attributes(inode));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let number = self.state.reads.fetch_add(1, Ordering::SeqCst);
        if number >= self.state.fails_at.load(Ordering::SeqCst) {
            return reply.error(Errno::EIO);
        }
        let first = (offset as usize).min(self.bytes.len());
        let end = (first + size as usize).min(self.bytes.len());
        reply.data(&self.bytes[first..end]);
    }
}
