//! Downloads one file into the cache.
//!
//! Bytes are appended to a partial file and hashed as they arrive. An interrupted download is resumed, also
//! by a later process. A content with a wrong checksum is discarded.

use crate::cache::Cache;
use crate::checksum::{Digest, Hasher};
use crate::error::Error;
use crate::event::{Event, ProgressFn};
use crate::retry::{RetryPolicy, TransferError};
use crate::transport::{HttpResponse, TransportError};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Bytes read at once.
const PIECE: usize = 256 << 10;

/// Bytes that count as progress between two failures.
const STEP: u64 = 1 << 20;

/// A file of the repository and its checksum.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// Downloads a blob unless it exists. `ask` requests its bytes from an offset on.
pub(crate) fn download(
    remote: &RemoteFile,
    cache: &Cache,
    retry: &RetryPolicy,
    ask: &dyn Fn(u64) -> Result<HttpResponse, TransferError>,
    progress: &mut ProgressFn<'_>,
) -> Result<(), Error> {
    let name = &remote.path;
    let _lock = cache.lock(&remote.digest, || {
        progress(Event::Note(&format!("waiting for another process that is downloading {name}")));
    })?;
    if cache.has(&remote.digest, remote.size) {
        return Ok(());
    }
    let mut partial = Partial::open(remote, cache.partial(&remote.digest))?;
    let mut resumed = partial.length > 0;
    progress(Event::Begin { file: name, done: partial.length, size: remote.size });
    let found = loop {
        let filled = retry.run(progress, |progress, made_progress| {
            let before = partial.length;
            let outcome = partial.fill(ask, progress);
            *made_progress = partial.length >= before + STEP;
            outcome
        });
        filled.map_err(|error| match error {
            Error::RetriesExhausted(what) => {
                Error::RetriesExhausted(format!("{name}: {what}; run again to resume the download"))
            }
            error => error,
        })?;
        let found = partial.sum.clone().finish();
        if found == remote.digest.digits() || !resumed {
            break found;
        }
        // The bytes left by an earlier process may be wrong.
        progress(Event::Note(&format!("{name}: the partial file was corrupt; restarting the download")));
        resumed = false;
        partial.clear()?;
    };
    if found != remote.digest.digits() {
        let _ = fs::remove_file(&partial.path);
        return Err(Error::Checksum { file: name.clone(), expected: remote.digest.to_string(), found });
    }
    partial.finish(cache.blob(&remote.digest))?;
    progress(Event::End);
    Ok(())
}

/// Bytes of a blob that are still missing.
pub(crate) fn missing(remote: &RemoteFile, cache: &Cache) -> u64 {
    if cache.has(&remote.digest, remote.size) {
        return 0;
    }
    let begun = fs::metadata(cache.partial(&remote.digest)).map_or(0, |metadata| metadata.len());
    remote.size.saturating_sub(begun)
}

/// A partial blob. The hasher always covers the file's bytes.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    size: u64,
    sum: Hasher,
    empty: Hasher,
}

impl Partial {
    /// Opens and hashes an existing partial file.
    fn open(remote: &RemoteFile, path: PathBuf) -> Result<Partial, Error> {
        let file = File::options().create(true).read(true).append(true).open(&path);
        let file = file.map_err(|error| Error::cache(&path, error))?;
        let empty = remote.digest.sum(remote.size);
        let mut partial = Partial { path, file, length: 0, size: remote.size, sum: empty.clone(), empty };
        let mut piece = vec![0; PIECE];
        while partial.length <= partial.size {
            match partial.file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    partial.sum.add(&piece[..count]);
                    partial.length += count as u64;
                }
                Err(error) => return Err(Error::cache(&partial.path, error)),
            }
        }
        if partial.length > partial.size {
            partial.clear()?;
        }
        Ok(partial)
    }

    fn clear(&mut self) -> Result<(), Error> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(|error| Error::cache(&self.path, error))?;
        (self.length, self.sum) = (0, self.empty.clone());
        Ok(())
    }

    /// Makes one request for the missing bytes.
    fn fill(
        &mut self,
        ask: &dyn Fn(u64) -> Result<HttpResponse, TransferError>,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(), TransferError> {
        if self.length == self.size {
            return Ok(());
        }
        let mut response = ask(self.length)?;
        let first = match (response.status, response.header("content-range")) {
            (206, Some(range)) => first_of(range),
            // The server does not support ranges and sends the whole file.
            (200, _) => Some(0),
            // The server has no such range, so its file is not the one that was begun.
            (416, _) => None,
            (status, _) => {
                return Err(TransferError::transient(format!("the server returned status {status}")));
            }
        };
        if first != Some(self.length) {
            self.clear()?;
            progress(Event::Progress(0));
        }
        if first != Some(self.length) {
            return Err(TransferError::transient("the server sent a wrong range"));
        }
        self.append(response.body(), progress)
    }

    /// Appends received bytes up to the file's size.
    fn append(&mut self, body: &mut impl Read, progress: &mut ProgressFn<'_>) -> Result<(), TransferError> {
        let mut piece = vec![0; PIECE];
        while self.length < self.size {
            let most = (self.size - self.length).min(PIECE as u64) as usize;
            let count = match body.read(&mut piece[..most]) {
                Ok(0) => return Err(TransferError::transient("the connection ended early")),
                Ok(count) => count,
                Err(error) => {
                    return Err(TransferError::transient(format!("the connection was lost ({error})")));
                }
            };
            self.file.write_all(&piece[..count]).map_err(|error| Error::cache(&self.path, error))?;
            self.sum.add(&piece[..count]);
            self.length += count as u64;
            progress(Event::Progress(self.length));
        }
        Ok(())
    }

    /// Renames the file to its final name after syncing it to disk.
    fn finish(self, blob: PathBuf) -> Result<(), Error> {
        let named = self.file.sync_data().and_then(|()| fs::rename(&self.path, &blob));
        named.map_err(|error| Error::cache(&blob, error))
    }
}

/// The first byte of a `Content-Range` such as `bytes 100-199/200`.
fn first_of(range: &str) -> Option<u64> {
    range.trim().strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// Converts a transport error.
pub(crate) fn transport_failure(
    error: TransportError,
    explain: impl FnOnce(crate::error::HttpError) -> Error,
) -> TransferError {
    match error {
        TransportError::Http(error) => TransferError::Permanent(explain(error)),
        TransportError::Transfer(transport_failure) => transport_failure,
    }
}
