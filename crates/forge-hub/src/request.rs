//! The model argument: a hub repository, optionally with a revision and a file.

use std::path::Path;

/// `owner/name` or `owner/name@revision`, optionally followed by `:file.gguf` or `:Q4_K_M`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `owner/name`.
    pub repository: String,
    /// A branch, tag or commit; `main` by default.
    pub revision: String,
    /// A GGUF file name or quantization.
    pub pick: Option<String>,
}

impl Request {
    /// Parses the argument; `None` if it cannot be a repository.
    pub fn parse(text: &str) -> Option<Request> {
        let (text, pick) = match text.split_once(':') {
            Some((text, pick)) => (text, Some(pick.to_owned())),
            None => (text, None),
        };
        let (repository, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = repository.split_once('/')?;
        let sound = is_valid_name(owner)
            && is_valid_name(name)
            && is_inside(revision)
            && pick.as_deref().is_none_or(is_inside);
        sound.then(|| Request { repository: repository.to_owned(), revision: revision.to_owned(), pick })
    }

    /// The model's name: that of the selected file if it is one, else the repository's without the owner.
    pub fn name(&self) -> &str {
        let picked = self.pick.as_deref().filter(|pick| pick.ends_with(".gguf"));
        let file = picked.and_then(|pick| Path::new(pick).file_stem()?.to_str());
        file.or(self.repository.split('/').next_back()).unwrap_or(&self.repository)
    }
}

/// Whether the hub allows the text as an owner or a name.
fn is_valid_name(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphanumeric())
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether a path or revision stays inside the directory that it is joined to.
pub(crate) fn is_inside(path: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(plain) && !path.contains(|c: char| c == '\\' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_repository_names() {
        let cases = [
            ("a/b", Some(("a/b", "main", None, "b"))),
            ("meta-llama/Llama-3.2-1B@v1", Some(("meta-llama/Llama-3.2-1B", "v1", None, "Llama-3.2-1B"))),
            ("a/b@refs/pr/1", Some(("a/b", "refs/pr/1", None, "b"))),
            ("a/b:Q4_K_M", Some(("a/b", "main", Some("Q4_K_M"), "b"))),
            ("a/b@v1:deep/c.Q8_0.gguf", Some(("a/b", "v1", Some("deep/c.Q8_0.gguf"), "c.Q8_0"))),
            ("llama", None),
            ("./llama", None),
            ("a/b/c", None),
            ("/tmp/x", None),
            ("a/", None),
            ("../a", None),
            ("a/b@../c", None),
            ("a/b@", None),
            ("a/b:", None),
            ("a/b:../c.gguf", None),
        ];
        for (text, expected) in cases {
            let found = Request::parse(text);
            let found = found.as_ref();
            let found = found.map(|it| (&*it.repository, &*it.revision, it.pick.as_deref(), it.name()));
            assert_eq!(found, expected, "{text}");
        }
    }
}
