//! Checksums of file contents: git's blob hash for small files, SHA-256 for large ones. Blobs in the cache
//! are named by checksum, which also verifies them.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fmt;

/// The checksum of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    /// Git blob hash, for a file in the git repository: SHA-1 of a header and the content.
    GitBlob(String),
    /// SHA-256, for a file in large-file storage.
    Sha256(String),
}

impl Digest {
    /// Parses hexadecimal digits, which may be quoted and marked as weak as in an ETag.
    pub(crate) fn parse(text: &str) -> Option<Digest> {
        let text = text.trim().trim_start_matches("W/").trim_matches('"');
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        match text.len() {
            40 if hexadecimal => Some(Digest::GitBlob(text.to_owned())),
            64 if hexadecimal => Some(Digest::Sha256(text.to_owned())),
            _ => None,
        }
    }

    /// The hexadecimal digits.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Digest::GitBlob(digits) | Digest::Sha256(digits) => digits,
        }
    }

    /// A hasher for a content of `size` bytes.
    pub(crate) fn sum(&self, size: u64) -> Hasher {
        match self {
            Digest::GitBlob(_) => Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {size}\0"))),
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
        }
    }
}

/// A hasher for a digest.
#[derive(Clone)]
pub(crate) enum Hasher {
    GitBlob(Sha1),
    Sha256(Sha256),
}

impl Hasher {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Hasher::GitBlob(sum) => sum.update(bytes),
            Hasher::Sha256(sum) => sum.update(bytes),
        }
    }

    /// The hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        match self {
            Hasher::GitBlob(sum) => digits(&sum.finalize()),
            Hasher::Sha256(sum) => digits(&sum.finalize()),
        }
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.digits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_git_and_sha256sum() {
        let cases = [
            // printf 'hello\n' | git hash-object --stdin
            ("ce013625030ba8dba906f756967f9e9ca394464a", "hello\n"),
            // printf 'hello\n' | sha256sum
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", "hello\n"),
            ("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391", ""),
        ];
        for (name, content) in cases {
            let mut sum = Digest::parse(name).unwrap().sum(content.len() as u64);
            sum.add(content.as_bytes());
            assert_eq!(sum.finish(), name);
        }
        for name in [
            "",
            "abc",
            "CE013625030BA8DBA906F756967F9E9CA394464A",
            "../../../../etc/passwd0000000000000000000",
        ] {
            assert_eq!(Digest::parse(name), None, "{name}");
        }
        let quoted = Digest::parse("W/\"ce013625030ba8dba906f756967f9e9ca394464a\"");
        assert_eq!(quoted, Digest::parse("ce013625030ba8dba906f756967f9e9ca394464a"));
    }
}
