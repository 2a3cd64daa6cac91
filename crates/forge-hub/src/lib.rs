//! Downloads checkpoints from the Hugging Face hub.
//!
//! A [`Request`] names a repository, [`Settings`] configure hub and cache, and [`fetch`] downloads the files
//! that a compilation needs. The cache is shared with all other hub tools.
//!
//! `request`, `listing`, `select_files`, `checksum`, `event` and `error` do no I/O. Only `transport` uses the
//! network, and only `cache` and `download` write to disk.

mod cache;
mod checksum;
mod download;
mod error;
mod event;
mod listing;
mod request;
mod retry;
mod select_files;
mod settings;
mod transport;

pub use crate::error::Error;
pub use crate::event::{Event, ProgressFn};
pub use crate::request::Request;
pub use crate::retry::RetryPolicy;
pub use crate::select_files::part_of;
pub use crate::settings::{Settings, Token};

use crate::cache::Cache;
use crate::checksum::Digest;
use crate::download::{RemoteFile, download, missing, transport_failure};
use crate::listing::{ListedFile, Listing, is_commit};
use crate::retry::TransferError;
use crate::select_files::Choice;
use crate::transport::{HttpResponse, Transport};
use std::path::PathBuf;

/// A checkpoint in the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Directory of the repository's files at the commit.
    pub snapshot: PathBuf,
    /// The commit.
    pub commit: String,
    /// The selected file, if any; for a split file, its first part.
    pub file: Option<String>,
}

/// Ensures that the cache has a checkpoint and downloads missing files. A complete commit in the cache needs
/// no network access. If the hub cannot be reached, the last known commit of the revision is used.
///
/// # Errors
/// See [`Error`]. Existing contents of the cache are never lost.
pub fn fetch(
    request: &Request,
    settings: &Settings,
    progress: &mut ProgressFn<'_>,
) -> Result<Fetched, Error> {
    let cache = Cache::of(&settings.cache, &request.repository);
    let found = cache.find(request);
    let of_cache = |(commit, file): (String, _)| Fetched { snapshot: cache.snapshot(&commit), commit, file };
    if let (Some(found), true) = (&found, settings.offline || is_commit(&request.revision)) {
        return Ok(of_cache(found.clone()));
    }
    if settings.offline {
        let near = nearest(request, &cache);
        let Request { repository, revision, .. } = request;
        return Err(Error::Offline(format!(
            "{repository} at {revision} is not complete in the cache {}, and HF_HUB_OFFLINE disables the \
             network{near}",
            settings.cache.display()
        )));
    }
    let hub = Hub { request, settings, cache: &cache, transport: Transport::new(settings)? };
    let listing = match (hub.list(found.is_some(), progress), found) {
        (Ok(listing), _) => listing,
        (Err(error), Some(found)) => {
            let commit = &found.0[..found.0.len().min(8)];
            progress(Event::Note(&format!("{error}\nusing the cached commit {commit}")));
            return Ok(of_cache(found));
        }
        (Err(Error::Repository(message)), None) => {
            return Err(Error::Repository(message + &nearest(request, &cache)));
        }
        (Err(error), None) => return Err(error),
    };
    let file = hub.download_selection(&listing, progress)?;
    cache.point(&request.revision, &listing.commit)?;
    Ok(of_cache((listing.commit, file)))
}

/// A suggestion: the repository in the cache with the most similar name.
fn nearest(request: &Request, cache: &Cache) -> String {
    let likeness = |name: &String| strsim::jaro_winkler(name, &request.repository);
    let names = cache.repositories().into_iter().filter(|name| *name != request.repository);
    match names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
        Some(name) if likeness(&name) > 0.8 => format!("; the cache has {name}"),
        _ => String::new(),
    }
}

/// A repository being downloaded.
struct Hub<'a> {
    request: &'a Request,
    settings: &'a Settings,
    cache: &'a Cache,
    transport: Transport,
}

impl Hub<'_> {
    /// Requests the list of files; with only one attempt if there is a cached alternative.
    fn list(&self, once: bool, progress: &mut ProgressFn<'_>) -> Result<Listing, Error> {
        let Settings { endpoint, retry, .. } = self.settings;
        let Request { repository, revision, .. } = self.request;
        let url =
            format!("{endpoint}/api/models/{repository}/revision/{}?blobs=true", escaped(revision, false));
        // Fail quickly when offline.
        let retry = RetryPolicy { tries: retry.tries.min(if once { 1 } else { 3 }), ..retry.clone() };
        let bytes = retry.run(progress, |_, _| self.get(&url, 0)?.bytes(&url))?;
        Listing::parse(&bytes)
    }

    /// Downloads the selected files of a listing. Returns the selected file, if any.
    fn download_selection(
        &self,
        listing: &Listing,
        progress: &mut ProgressFn<'_>,
    ) -> Result<Option<String>, Error> {
        let names = listing.names();
        let choice = Choice::of(self.request, &names)?;
        self.cache.prepare()?;
        match choice {
            Choice::Files(files) => self.download_files(listing, &files, progress).map(|()| None),
            Choice::Gguf(files) => {
                self.download_files(listing, &files, progress)?;
                Ok(files.into_iter().next())
            }
            Choice::Sharded(files) => {
                self.download_files(listing, &files, progress)?;
                let path = self.cache.snapshot(&listing.commit).join(crate::select_files::INDEX);
                let index = std::fs::read(&path).map_err(|error| Error::cache(&path, error))?;
                self.download_files(listing, &crate::select_files::shards(&index, &names)?, progress)
                    .map(|()| None)
            }
        }
    }

    fn download_files(
        &self,
        listing: &Listing,
        files: &[String],
        progress: &mut ProgressFn<'_>,
    ) -> Result<(), Error> {
        let listed = listing.files.iter().filter(|file| files.contains(&file.path));
        let remote: Vec<RemoteFile> =
            listed.map(|file| self.identify(listing, file, progress)).collect::<Result<_, _>>()?;
        let sizes: Vec<u64> = remote.iter().map(|remote| missing(remote, self.cache)).collect();
        let bytes = sizes.iter().sum();
        self.cache.reserve(bytes)?;
        if bytes > 0 {
            progress(Event::Total { files: sizes.iter().filter(|size| **size > 0).count(), bytes });
        }
        for remote in &remote {
            let url = self.address(listing, &remote.path);
            download(remote, self.cache, &self.settings.retry, &|from| self.get(&url, from), progress)?;
            self.cache.link(&listing.commit, &remote.path, &remote.digest)?;
        }
        Ok(())
    }

    /// The checksum and size of a file, from the listing or, for mirrors whose listing lacks them, from a
    /// HEAD request.
    fn identify(
        &self,
        listing: &Listing,
        file: &ListedFile,
        progress: &mut ProgressFn<'_>,
    ) -> Result<RemoteFile, Error> {
        let path = file.path.clone();
        if let Some((digest, size)) = file.content.clone() {
            return Ok(RemoteFile { path, digest, size });
        }
        let url = self.address(listing, &path);
        let response = self.settings.retry.run(progress, |_, _| {
            self.transport.head(&url).map_err(|error| transport_failure(error, |error| self.explain(error)))
        })?;
        let either = |first, second| response.header(first).or_else(|| response.header(second));
        let digest = either("x-linked-etag", "etag").and_then(Digest::parse);
        let size = either("x-linked-size", "content-length").and_then(|size| size.parse().ok());
        let (Some(digest), Some(size)) = (digest, size) else {
            let message =
                format!("{url}: the server sends no checksum or size, so the file cannot be verified");
            return Err(Error::InvalidResponse(message));
        };
        Ok(RemoteFile { path, digest, size })
    }

    fn get(&self, url: &str, from: u64) -> Result<HttpResponse, TransferError> {
        self.transport.get(url, from).map_err(|error| transport_failure(error, |error| self.explain(error)))
    }

    fn explain(&self, error: crate::error::HttpError) -> Error {
        error.explain(self.request, self.settings)
    }

    fn address(&self, listing: &Listing, path: &str) -> String {
        let (endpoint, repository) = (&self.settings.endpoint, &self.request.repository);
        format!("{endpoint}/{repository}/resolve/{}/{}", listing.commit, escaped(path, true))
    }
}

/// Percent-encodes text for a URL; slashes are kept in paths.
fn escaped(text: &str, is_path: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || is_path && byte == b'/';
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
