//! Checkpoints from the Hugging Face hub.
//!
//! A [`Request`] names a repository, [`Settings`] say where the hub and its cache are, and [`fetch`] sees to it that the
//! cache has what a compilation needs of it. The cache is the one that all of the hub's tools share, so what one of them
//! has fetched is not fetched again.
//!
//! What the hub is asked and what its answers mean (`request`, `listing`, `choose`, `checksum`, `error`) knows neither
//! network nor disk; `transport` alone speaks HTTP, and `cache` and `download` alone write.

mod cache;
mod checksum;
mod download;
mod error;
mod listing;
mod request;
mod retry;
mod select_files;
mod settings;
mod transport;

pub use crate::error::Error;
pub use crate::request::Request;
pub use crate::retry::RetryPolicy;
pub use crate::select_files::part_of;
pub use crate::settings::{Settings, Token};

use crate::cache::Cache;
use crate::checksum::Digest;
use crate::download::{Wanted, download, missing, trouble};
use crate::listing::{Listed, Listing, is_commit};
use crate::retry::TransferError;
use crate::select_files::Choice;
use crate::transport::{HttpResponse, Transport};
use std::path::PathBuf;

/// What happens meanwhile, for whoever watches.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something worth a line.
    Note(&'a str),
    /// So much is going to be fetched.
    Total {
        /// Files that the cache does not have.
        files: usize,
        /// Bytes of them that it does not have.
        bytes: u64,
    },
    /// A file is being fetched.
    Begin {
        /// Its name in the repository.
        file: &'a str,
        /// Bytes that an earlier process has fetched.
        done: u64,
        /// All of its bytes.
        size: u64,
    },
    /// So many bytes of it are there.
    Progress(u64),
    /// It is there, and right.
    End,
}

/// Whoever watches.
pub type Watch<'a> = dyn FnMut(Event<'_>) + 'a;

/// What lies in the cache now.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The directory of the repository's files, as they are at the commit.
    pub snapshot: PathBuf,
    /// The commit.
    pub commit: String,
    /// The one file in it that was picked, where one was; of a file that is split, its first part.
    pub file: Option<String>,
}

/// Sees to it that the cache has a checkpoint. What it lacks is fetched; a commit that it has whole is not even asked for,
/// and where the hub cannot be asked, what it said last holds.
///
/// # Errors
/// Everything that [`Error`] tells of. Nothing that was in the cache before is lost.
pub fn fetch(request: &Request, settings: &Settings, watch: &mut Watch<'_>) -> Result<Fetched, Error> {
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
            "the cache in {} does not have all of {repository} at {revision}, and HF_HUB_OFFLINE forbids to ask the \
             hub{near}",
            settings.cache.display()
        )));
    }
    let hub = Hub { request, settings, cache: &cache, transport: Transport::new(settings)? };
    let listing = match (hub.list(found.is_some(), watch), found) {
        (Ok(listing), _) => listing,
        (Err(error), Some(found)) => {
            let commit = &found.0[..found.0.len().min(8)];
            watch(Event::Note(&format!("{error}\nusing what the cache has of it, from commit {commit}")));
            return Ok(of_cache(found));
        }
        (Err(Error::Repository(message)), None) => {
            return Err(Error::Repository(message + &nearest(request, &cache)));
        }
        (Err(error), None) => return Err(error),
    };
    let file = hub.take(&listing, watch)?;
    cache.point(&request.revision, &listing.commit)?;
    Ok(of_cache((listing.commit, file)))
}

/// What the user may have meant: the repository of the cache whose name is most like the one asked for.
fn nearest(request: &Request, cache: &Cache) -> String {
    let likeness = |name: &String| strsim::jaro_winkler(name, &request.repository);
    let names = cache.repositories().into_iter().filter(|name| *name != request.repository);
    match names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
        Some(name) if likeness(&name) > 0.8 => format!("; the cache has {name}"),
        _ => String::new(),
    }
}

/// A repository that is being fetched.
struct Hub<'a> {
    request: &'a Request,
    settings: &'a Settings,
    cache: &'a Cache,
    transport: Transport,
}

impl Hub<'_> {
    /// Asks what the repository holds: once, where there is another way to go on.
    fn list(&self, once: bool, watch: &mut Watch<'_>) -> Result<Listing, Error> {
        let Settings { endpoint, patience, .. } = self.settings;
        let Request { repository, revision, .. } = self.request;
        let url =
            format!("{endpoint}/api/models/{repository}/revision/{}?blobs=true", escaped(revision, false));
        // Who is not on line is not kept waiting.
        let patience =
            RetryPolicy { tries: patience.tries.min(if once { 1 } else { 3 }), ..patience.clone() };
        let bytes = patience.persist(watch, |_, _| self.get(&url, 0)?.bytes(&url))?;
        Listing::parse(&bytes)
    }

    /// Fetches what is chosen of a list. Gives the file that was picked, where one was.
    fn take(&self, listing: &Listing, watch: &mut Watch<'_>) -> Result<Option<String>, Error> {
        let names = listing.names();
        let choice = Choice::of(self.request, &names)?;
        self.cache.prepare()?;
        match choice {
            Choice::Files(files) => self.take_files(listing, &files, watch).map(|()| None),
            Choice::Gguf(files) => {
                self.take_files(listing, &files, watch)?;
                Ok(files.into_iter().next())
            }
            Choice::Sharded(files) => {
                self.take_files(listing, &files, watch)?;
                let path = self.cache.snapshot(&listing.commit).join(crate::select_files::INDEX);
                let index = std::fs::read(&path).map_err(|error| Error::cache(&path, error))?;
                self.take_files(listing, &crate::select_files::shards(&index, &names)?, watch).map(|()| None)
            }
        }
    }

    fn take_files(&self, listing: &Listing, files: &[String], watch: &mut Watch<'_>) -> Result<(), Error> {
        let listed = listing.files.iter().filter(|file| files.contains(&file.path));
        let wanted: Vec<Wanted> =
            listed.map(|file| self.identify(listing, file, watch)).collect::<Result<_, _>>()?;
        let sizes: Vec<u64> = wanted.iter().map(|wanted| missing(wanted, self.cache)).collect();
        let bytes = sizes.iter().sum();
        self.cache.reserve(bytes)?;
        if bytes > 0 {
            watch(Event::Total { files: sizes.iter().filter(|size| **size > 0).count(), bytes });
        }
        for wanted in &wanted {
            let url = self.address(listing, &wanted.path);
            download(wanted, self.cache, &self.settings.patience, &|from| self.get(&url, from), watch)?;
            self.cache.link(&listing.commit, &wanted.path, &wanted.digest)?;
        }
        Ok(())
    }

    /// What a file's content is called: as the list says, or, of a mirror whose list does not, as the file's own headers do.
    fn identify(&self, listing: &Listing, file: &Listed, watch: &mut Watch<'_>) -> Result<Wanted, Error> {
        let path = file.path.clone();
        if let Some((digest, size)) = file.content.clone() {
            return Ok(Wanted { path, digest, size });
        }
        let url = self.address(listing, &path);
        let answer = self.settings.patience.persist(watch, |_, _| {
            self.transport
                .head(&url)
                .map_err(|unanswered| trouble(unanswered, |refusal| self.explain(refusal)))
        })?;
        let either = |first, second| answer.header(first).or_else(|| answer.header(second));
        let digest = either("x-linked-etag", "etag").and_then(Digest::parse);
        let size = either("x-linked-size", "content-length").and_then(|size| size.parse().ok());
        let (Some(digest), Some(size)) = (digest, size) else {
            let message =
                format!("{url}: the server does not tell its checksum and size, so it cannot be checked");
            return Err(Error::Answer(message));
        };
        Ok(Wanted { path, digest, size })
    }

    fn get(&self, url: &str, from: u64) -> Result<HttpResponse, TransferError> {
        self.transport
            .get(url, from)
            .map_err(|unanswered| trouble(unanswered, |refusal| self.explain(refusal)))
    }

    fn explain(&self, refusal: crate::error::Refusal) -> Error {
        refusal.explain(self.request, self.settings)
    }

    fn address(&self, listing: &Listing, path: &str) -> String {
        let (endpoint, repository) = (&self.settings.endpoint, &self.request.repository);
        format!("{endpoint}/{repository}/resolve/{}/{}", listing.commit, escaped(path, true))
    }
}

/// As an address holds it; whether slashes are kept.
fn escaped(text: &str, is_path: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || is_path && byte == b'/';
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
