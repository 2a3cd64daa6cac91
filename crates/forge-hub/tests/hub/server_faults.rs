//! Servers that fail, send wrong data or stop: the cache is correct, or there is an error.

use crate::server::{Act, Ask, COMMIT, Server};
use crate::{MODEL, SIZE, checkpoint, fetched, names, settings};
use std::fs;

/// A server behaviour, whether the download succeeds nevertheless, and the bytes of weights that are sent.
struct Case {
    name: &'static str,
    script: fn(&Ask) -> Act,
    /// The error message, if there is an error.
    error: Option<&'static str>,
    served: Option<usize>,
}

/// The server's response to the first `times` requests for the weights.
pub(crate) fn first(ask: &Ask, times: usize, act: fn() -> Act) -> Act {
    if ask.file == MODEL && ask.before < times { act() } else { Act::Serve }
}

const CASES: &[Case] = &[
    Case { name: "a sound server", script: |_| Act::Serve, error: None, served: Some(SIZE) },
    Case {
        name: "hangs up in the middle, twice",
        script: |ask| first(ask, 2, || Act::Cut(100_000)),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "hangs up in the middle, and knows no ranges",
        script: |ask| first(ask, 2, || Act::Whole).or_cut(ask),
        error: None,
        served: Some(100_000 + SIZE),
    },
    Case {
        name: "hangs up and then sends another part than it was asked for",
        script: |ask| match (&*ask.file, ask.before) {
            (MODEL, 0) => Act::Cut(100_000),
            (MODEL, 1) => Act::From(50_000),
            _ => Act::Serve,
        },
        error: None,
        served: None,
    },
    Case {
        name: "hangs up always",
        script: |ask| first(ask, 99, || Act::Cut(10)),
        error: Some("the connection was lost"),
        served: Some(40),
    },
    Case {
        name: "a file that is not there",
        script: |ask| first(ask, 99, || Act::Status(404, &[("x-error-code", "EntryNotFound")])),
        error: Some("file not found"),
        served: Some(0),
    },
    Case {
        name: "too many requests, come back at once",
        script: |ask| first(ask, 2, || Act::Status(429, &[("retry-after", "0")])),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "too many requests, come back in an hour",
        script: |ask| first(ask, 1, || Act::Status(429, &[("retry-after", "3600")])),
        error: Some("the server requested a wait of 3600 s"),
        served: Some(0),
    },
    Case {
        name: "an error, then none",
        script: |ask| if ask.before == 0 { Act::Status(500, &[]) } else { Act::Serve },
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "errors for ever",
        script: |ask| first(ask, 99, || Act::Status(503, &[])),
        error: Some("status 503, 4 times in a row"),
        served: Some(0),
    },
    Case {
        name: "a length that is too small",
        script: |ask| first(ask, 1, || Act::Length(-100_000)),
        error: None,
        served: None,
    },
    Case {
        name: "a length that is too large",
        script: |ask| first(ask, 1, || Act::Length(100_000)),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "other bytes",
        script: |ask| first(ask, 99, || Act::Instead(vec![7; SIZE])),
        error: Some("the download was discarded"),
        served: Some(SIZE),
    },
    Case {
        name: "more bytes than there are",
        script: |ask| first(ask, 99, || Act::Instead(vec![7; SIZE + 1])),
        error: Some("the download was discarded"),
        served: None,
    },
    Case {
        name: "fewer bytes than there are",
        script: |ask| first(ask, 99, || Act::Instead(vec![7; SIZE - 1])),
        error: Some("times in a row"),
        served: None,
    },
    Case {
        name: "other bytes of a small file",
        script: |ask| {
            if ask.file == "config.json" {
                Act::Instead(b"{\"model_type\": \"gpt-2\"}".to_vec())
            } else {
                Act::Serve
            }
        },
        error: Some("config.json: expected checksum"),
        served: Some(0),
    },
    Case {
        name: "falls silent",
        script: |ask| first(ask, 1, || Act::Silence(100_000)),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "is slow, but never silent",
        script: |ask| first(ask, 99, || Act::Drip),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "redirects in a circle",
        script: |ask| first(ask, 99, || Act::Redirect(format!("/owner/name/resolve/x/{MODEL}"))),
        error: Some("too many redirections"),
        served: Some(0),
    },
    Case {
        name: "a list that is none",
        script: |ask| if ask.file == "list" { Act::Instead(b"<html>".to_vec()) } else { Act::Serve },
        error: Some("cannot parse"),
        served: Some(0),
    },
    Case {
        name: "a file that is not inside the repository",
        script: |ask| listed(ask, r#"{"rfilename": "config.json"}, {"rfilename": "../../../outside"}"#),
        error: Some("outside its directory"),
        served: Some(0),
    },
    Case {
        name: "a file at the root of the disk",
        script: |ask| listed(ask, r#"{"rfilename": "/tmp/model.safetensors"}"#),
        error: Some("outside its directory"),
        served: Some(0),
    },
    Case {
        name: "more than the disk holds",
        script: |ask| {
            listed(
                ask,
                r#"{"rfilename": "config.json", "size": 2, "blobId": "0123456789abcdef0123456789abcdef01234567"},
                   {"rfilename": "model.safetensors", "size": 9000000000000000, "blobId": "1123456789abcdef0123456789abcdef01234567"}"#,
            )
        },
        error: Some("the download takes 9000000001 MB"),
        served: Some(0),
    },
    Case {
        name: "a list that names no contents, as of a mirror",
        script: |ask| {
            listed(
                ask,
                r#"{"rfilename": "config.json"}, {"rfilename": "tokenizer.json"}, {"rfilename": "model.safetensors"}"#,
            )
        },
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "private, or not there",
        script: |_| Act::Status(401, &[("x-error-code", "RepoNotFound")]),
        error: Some("does not exist, is private or is gated; to authenticate, create a token at"),
        served: Some(0),
    },
    Case {
        name: "gated",
        script: |_| Act::Status(403, &[("x-error-code", "GatedRepo")]),
        error: Some("owner/name is gated: accept its conditions at"),
        served: Some(0),
    },
    Case {
        name: "no such revision",
        script: |_| Act::Status(404, &[("x-error-code", "RevisionNotFound")]),
        error: Some("owner/name has no branch, tag or commit main"),
        served: Some(0),
    },
];

impl Act {
    /// Closes the first connection for the weights early, and responds so to later ones.
    pub(crate) fn or_cut(self, ask: &Ask) -> Act {
        if ask.file == MODEL && ask.before == 0 { Act::Cut(100_000) } else { self }
    }
}

/// A list with these files.
fn listed(ask: &Ask, files: &str) -> Act {
    match &*ask.file {
        "list" => Act::Instead(format!(r#"{{"sha": "{COMMIT}", "siblings": [{files}]}}"#).into_bytes()),
        _ => Act::Serve,
    }
}

#[test]
fn server_faults_give_a_correct_cache_or_an_error() {
    for Case { name, script, error, served } in CASES {
        let server = Server::start(&checkpoint(), script);
        let home = tempfile::tempdir().unwrap();
        let cache = home.path().join("deep/hub");
        let (outcome, notes) = fetched("owner/name", &settings(&server, &cache));
        let root = cache.join("models--owner--name");
        match (&outcome, error) {
            (Ok(fetched), None) => {
                assert_eq!(fetched.snapshot, root.join("snapshots").join(COMMIT), "{name}");
                assert_eq!(names(&fetched.snapshot), ["config.json", MODEL, "tokenizer.json"], "{name}");
                for (file, content) in checkpoint() {
                    let needed = ["config.json", "tokenizer.json", MODEL].contains(&file);
                    let found = fs::read(fetched.snapshot.join(file));
                    assert_eq!(found.ok(), needed.then_some(content), "{name}: {file}");
                }
                assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT, "{name}");
                let blobs = names(&root.join("blobs"));
                assert!(
                    blobs.len() == 3 && blobs.iter().all(|blob| !blob.contains('.')),
                    "{name}: {blobs:?}"
                );
            }
            (Err(found), Some(error)) => {
                let found = found.to_string();
                assert!(found.contains(error), "{name}: {found}");
                assert!(!root.join("snapshots").join(COMMIT).join(MODEL).exists(), "{name}");
                assert!(!root.join("refs/main").exists(), "{name}");
            }
            _ => panic!("{name}: {outcome:?}, {notes:?}"),
        }
        if let Some(served) = served {
            assert_eq!(server.served(MODEL), *served, "{name}: bytes served of the weights");
        }
        assert_eq!(names(home.path()).iter().filter(|name| !name.starts_with("deep/")).count(), 0, "{name}");
        let outside = names(&cache).into_iter().filter(|name| name.contains("outside")).count();
        assert_eq!(outside, 0, "{name}");
    }
}
