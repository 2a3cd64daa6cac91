//! Errors of downloads, with fixes.

use crate::request::Request;
use crate::settings::Settings;
use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint is not available. Partial downloads stay in the cache and are resumed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The repository does not exist or is not visible.
    #[error("{0}")]
    Repository(String),
    /// The repository requires authentication or accepted terms.
    #[error("{0}")]
    Denied(String),
    /// The repository has no such branch, tag or commit.
    #[error("{0}")]
    Revision(String),
    /// The repository contains no supported weights, or several and none was selected.
    #[error("{0}")]
    Choice(String),
    /// A file name points outside the repository directory.
    #[error("the repository lists the file {0:?}, which is outside its directory; nothing was downloaded")]
    UnsafeName(String),
    /// The checksum is wrong.
    #[error("{file}: expected checksum {expected}, found {found}; the download was discarded")]
    Checksum {
        /// Name of the file.
        file: String,
        /// Expected checksum.
        expected: String,
        /// Checksum of the received content.
        found: String,
    },
    /// The retry limit was reached.
    #[error("{0}")]
    RetriesExhausted(String),
    /// The server sent an invalid response.
    #[error("{0}")]
    InvalidResponse(String),
    /// The network is disabled and the cache does not contain the file.
    #[error("{0}")]
    Offline(String),
    /// Not enough disk space.
    #[error("{0}")]
    Space(String),
    /// The cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Cache {
        /// File or directory.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn cache(path: &Path, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Space(format!(
                "{}: disk full; free space and run again to resume the download, or move the \
                 cache with HF_HUB_CACHE",
                path.display()
            )),
            _ => Error::Cache { path: path.to_owned(), source },
        }
    }
}

/// An error response of the hub.
pub(crate) struct HttpError {
    /// HTTP status.
    pub(crate) status: u16,
    /// `X-Error-Code`, if present.
    pub(crate) code: String,
    /// `X-Error-Message`.
    pub(crate) message: String,
    /// The requested URL.
    pub(crate) url: String,
}

impl HttpError {
    /// The error that it means for a request.
    pub(crate) fn explain(self, request: &Request, settings: &Settings) -> Error {
        let Request { repository, revision, .. } = request;
        let endpoint = &settings.endpoint;
        let log_in = match &settings.token {
            Some(token) => format!("the token in {} does not grant access", token.from),
            None => format!(
                "to authenticate, create a token at {endpoint}/settings/tokens and set HF_TOKEN, or run \
                 hf auth login"
            ),
        };
        let invalid =
            self.message.contains("Invalid credentials") || self.message.contains("Invalid username");
        match (&*self.code, self.status) {
            (_, 401) if settings.token.is_some() && invalid => {
                Error::Denied(format!("{endpoint} rejected the token: {log_in}; it may have expired"))
            }
            ("RevisionNotFound", _) => {
                Error::Revision(format!("{repository} has no branch, tag or commit {revision}"))
            }
            ("GatedRepo", _) => Error::Denied(format!(
                "{repository} is gated: accept its conditions at {endpoint}/{repository}; {log_in}"
            )),
            ("RepoNotFound", _) | (_, 401) if settings.token.is_none() => Error::Repository(format!(
                "repository {repository} not found on {endpoint}: it does not exist, is private or is gated; {log_in}"
            )),
            ("RepoNotFound", _) => Error::Repository(format!(
                "repository {repository} not found on {endpoint}: it does not exist, or is private and {log_in}"
            )),
            (_, 401 | 403) => Error::Denied(format!(
                "access to {repository} denied: accept its conditions at {endpoint}/{repository}, if \
                 it has any; {log_in}"
            )),
            ("EntryNotFound", _) => Error::InvalidResponse(format!("{}: file not found", self.url)),
            (_, 404) => Error::Repository(format!(
                "repository {repository} or its revision {revision} not found on {endpoint}"
            )),
            (_, status) => {
                let message =
                    if self.message.is_empty() { String::new() } else { format!(" ({})", self.message) };
                Error::InvalidResponse(format!("{}: the server returned status {status}{message}", self.url))
            }
        }
    }
}
