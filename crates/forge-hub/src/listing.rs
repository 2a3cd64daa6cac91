//! The hub's list of a repository's files at a revision.

use crate::checksum::Digest;
use crate::error::Error;
use crate::request::is_inside;
use serde::Deserialize;

/// A repository's files at a commit.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The commit of the revision.
    pub(crate) commit: String,
    /// Its files.
    pub(crate) files: Vec<ListedFile>,
}

/// A file of the listing. Mirrors may provide only its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedFile {
    pub(crate) path: String,
    pub(crate) content: Option<(Digest, u64)>,
}

#[derive(Deserialize)]
struct ListResponse {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LfsInfo>,
}

#[derive(Deserialize)]
struct LfsInfo {
    sha256: String,
    size: Option<u64>,
}

impl Listing {
    /// Parses the hub's response. Rejects it if any name points outside the repository.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Listing, Error> {
        let response: ListResponse = serde_json::from_slice(bytes).map_err(|error| {
            Error::InvalidResponse(format!("cannot parse the hub's list of files: {error}"))
        })?;
        if !is_commit(&response.sha) {
            return Err(Error::InvalidResponse(format!(
                "the hub returned the invalid commit {:?}",
                response.sha
            )));
        }
        if let Some(file) = response.siblings.iter().find(|file| !is_inside(&file.rfilename)) {
            return Err(Error::UnsafeName(file.rfilename.clone()));
        }
        let files = response.siblings.into_iter().map(|file| {
            let (name, size) = match &file.lfs {
                Some(stored) => (Some(&stored.sha256), stored.size.or(file.size)),
                None => (file.blob_id.as_ref(), file.size),
            };
            ListedFile { content: name.and_then(|name| Digest::parse(name)).zip(size), path: file.rfilename }
        });
        Ok(Listing { commit: response.sha, files: files.collect() })
    }

    /// Names of all files.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.path.as_str()).collect()
    }
}

/// Whether a revision is a commit hash, whose files never change.
pub(crate) fn is_commit(revision: &str) -> bool {
    matches!(Digest::parse(revision), Some(Digest::GitBlob(digits)) if digits == revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_has_checksums() {
        let (git, large) = ("a".repeat(40), "b".repeat(64));
        let text = format!(
            r#"{{"sha": "{git}", "private": false, "siblings": [
                {{"rfilename": "config.json", "size": 3, "blobId": "{git}"}},
                {{"rfilename": "model.safetensors", "size": 9, "blobId": "{git}",
                  "lfs": {{"sha256": "{large}", "size": 9, "pointerSize": 135}}}},
                {{"rfilename": "deep/file"}}]}}"#
        );
        let listing = Listing::parse(text.as_bytes()).unwrap();
        let content = |name: &str, size| Some((Digest::parse(name).unwrap(), size));
        assert_eq!(listing.commit, git);
        assert_eq!(listing.names(), ["config.json", "model.safetensors", "deep/file"]);
        let contents: Vec<_> = listing.files.into_iter().map(|file| file.content).collect();
        assert_eq!(contents, [content(&git, 3), content(&large, 9), None]);
    }

    #[test]
    fn rejects_paths_outside_the_repository() {
        let commit = "a".repeat(40);
        for name in ["../x", "/etc/passwd", "a/../../x", "a//b", "..", "", "a\\b", "a\nb"] {
            let text = serde_json::json!({"sha": commit, "siblings": [{"rfilename": name}]}).to_string();
            let found = Listing::parse(text.as_bytes());
            assert!(matches!(found, Err(Error::UnsafeName(_))), "{name}: {found:?}");
        }
        for commit in ["../../x", "main", ""] {
            let text = serde_json::json!({"sha": commit, "siblings": []}).to_string();
            assert!(matches!(Listing::parse(text.as_bytes()), Err(Error::InvalidResponse(_))), "{commit}");
        }
    }
}
