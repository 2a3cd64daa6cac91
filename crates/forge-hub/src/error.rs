//! Why a checkpoint could not be fetched, and what to do about it.

use crate::request::Request;
use crate::settings::Settings;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no checkpoint. What was fetched so far stays in the cache, and is not fetched again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The hub has no such repository, or does not show it.
    #[error("{0}")]
    Repository(String),
    /// The hub has the repository, and wants to know who asks.
    #[error("{0}")]
    Denied(String),
    /// The repository has no such branch, tag or commit.
    #[error("{0}")]
    Revision(String),
    /// The repository holds no weights that forge reads, or several and it was not said which.
    #[error("{0}")]
    Choice(String),
    /// A file's name leads out of the folder that it is to be put into.
    #[error(
        "the repository lists a file by the name {0:?}, which leads out of its folder; nothing was fetched from it"
    )]
    UnsafeName(String),
    /// The bytes are not those that the repository holds.
    #[error(
        "{file}: what was fetched has the checksum {found}, and the repository's has {expected}; it was thrown away"
    )]
    Checksum {
        /// The file's name.
        file: String,
        /// What its content should be called.
        expected: String,
        /// What it is called.
        found: String,
    },
    /// The server was tried often enough.
    #[error("{0}")]
    GaveUp(String),
    /// The server answered what makes no sense.
    #[error("{0}")]
    Answer(String),
    /// Nothing may be asked of the network, and the cache does not have it.
    #[error("{0}")]
    Offline(String),
    /// The disk has no room for it.
    #[error("{0}")]
    Space(String),
    /// The cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Cache {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn cache(path: &Path, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Space(format!(
                "{}: the disk is full; what was fetched so far stays and is not fetched again. Make room, or put the \
                 cache elsewhere with HF_HUB_CACHE",
                path.display()
            )),
            _ => Error::Cache { path: path.to_owned(), source },
        }
    }
}

/// An answer of the hub that says no.
pub(crate) struct Refusal {
    /// The status.
    pub(crate) status: u16,
    /// `X-Error-Code`, where the hub says more.
    pub(crate) code: String,
    /// `X-Error-Message`.
    pub(crate) message: String,
    /// What was asked for.
    pub(crate) url: String,
}

impl Refusal {
    /// What it means for who asked for a repository.
    pub(crate) fn explain(self, request: &Request, settings: &Settings) -> Error {
        let Request { repository, revision, .. } = request;
        let endpoint = &settings.endpoint;
        let log_in = match &settings.token {
            Some(token) => format!("the token in {} does not open it", token.from),
            None => format!(
                "to show who you are, make a token at {endpoint}/settings/tokens and put it into HF_TOKEN, or type: \
                 hf auth login"
            ),
        };
        let invalid =
            self.message.contains("Invalid credentials") || self.message.contains("Invalid username");
        match (&*self.code, self.status) {
            (_, 401) if settings.token.is_some() && invalid => {
                Error::Denied(format!("{endpoint} does not accept the token: {log_in}; is it still valid?"))
            }
            ("RevisionNotFound", _) => {
                Error::Revision(format!("{repository} has no branch, tag or commit {revision}"))
            }
            ("GatedRepo", _) => Error::Denied(format!(
                "{repository} is gated: accept its conditions at {endpoint}/{repository}; {log_in}"
            )),
            ("RepoNotFound", _) | (_, 401) if settings.token.is_none() => Error::Repository(format!(
                "{endpoint} shows nobody a repository {repository}: it does not exist, is private or is gated; {log_in}"
            )),
            ("RepoNotFound", _) => Error::Repository(format!(
                "{endpoint} has no repository {repository}, or it is private and {log_in}"
            )),
            (_, 401 | 403) => Error::Denied(format!(
                "{endpoint} does not let you have {repository}: accept its conditions at {endpoint}/{repository}, if \
                 it has any; {log_in}"
            )),
            ("EntryNotFound", _) => Error::Answer(format!("{}: the file is not there", self.url)),
            (_, 404) => Error::Repository(format!(
                "{endpoint} has no repository {repository}, or no {revision} in it"
            )),
            (_, status) => {
                let message =
                    if self.message.is_empty() { String::new() } else { format!(" ({})", self.message) };
                Error::Answer(format!("{} was answered by the status {status}{message}", self.url))
            }
        }
    }
}
