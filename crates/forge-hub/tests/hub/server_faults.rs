//! Servers that fail, send wrong data or stop: the cache is correct, or there is an error.

use crate::server::{COMMIT, HttpRequest, Response, Server};
use crate::{MODEL, SIZE, checkpoint, fetched, names, settings};
use std::fs;

/// A server behavior, whether the download succeeds nevertheless, and the bytes of weights that are sent.
struct Case {
    name: &'static str,
    script: fn(&HttpRequest) -> Response,
    /// The error message, if there is an error.
    error: Option<&'static str>,
    served: Option<usize>,
}

/// The server's response to the first `times` requests for the weights.
pub(crate) fn first(request: &HttpRequest, times: usize, response: fn() -> Response) -> Response {
    if request.file == MODEL && request.before < times { response() } else { Response::Serve }
}

const CASES: &[Case] = &[
    Case { name: "correct responses", script: |_| Response::Serve, error: None, served: Some(SIZE) },
    Case {
        name: "closes the connection twice",
        script: |request| first(request, 2, || Response::Truncate(100_000)),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "closes the connection and ignores ranges",
        script: |request| first(request, 2, || Response::Whole).or_cut(request),
        error: None,
        served: Some(100_000 + SIZE),
    },
    Case {
        name: "closes the connection and then sends another range than requested",
        script: |request| match (&*request.file, request.before) {
            (MODEL, 0) => Response::Truncate(100_000),
            (MODEL, 1) => Response::Offset(50_000),
            _ => Response::Serve,
        },
        error: None,
        served: None,
    },
    Case {
        name: "closes every connection early",
        script: |request| first(request, 99, || Response::Truncate(10)),
        error: Some("the connection was lost"),
        served: Some(40),
    },
    Case {
        name: "file not found",
        script: |request| first(request, 99, || Response::Status(404, &[("x-error-code", "EntryNotFound")])),
        error: Some("file not found"),
        served: Some(0),
    },
    Case {
        name: "status 429, retry after 0 s",
        script: |request| first(request, 2, || Response::Status(429, &[("retry-after", "0")])),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "status 429, retry after an hour",
        script: |request| first(request, 1, || Response::Status(429, &[("retry-after", "3600")])),
        error: Some("the server requested a wait of 3600 s"),
        served: Some(0),
    },
    Case {
        name: "one error",
        script: |request| if request.before == 0 { Response::Status(500, &[]) } else { Response::Serve },
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "only errors",
        script: |request| first(request, 99, || Response::Status(503, &[])),
        error: Some("status 503, 4 times in a row"),
        served: Some(0),
    },
    Case {
        name: "content length too small",
        script: |request| first(request, 1, || Response::Length(-100_000)),
        error: None,
        served: None,
    },
    Case {
        name: "content length too large",
        script: |request| first(request, 1, || Response::Length(100_000)),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "wrong content",
        script: |request| first(request, 99, || Response::Replaced(vec![7; SIZE])),
        error: Some("the download was discarded"),
        served: Some(SIZE),
    },
    Case {
        name: "content too long",
        script: |request| first(request, 99, || Response::Replaced(vec![7; SIZE + 1])),
        error: Some("the download was discarded"),
        served: None,
    },
    Case {
        name: "content too short",
        script: |request| first(request, 99, || Response::Replaced(vec![7; SIZE - 1])),
        error: Some("times in a row"),
        served: None,
    },
    Case {
        name: "wrong content of a small file",
        script: |request| {
            if request.file == "config.json" {
                Response::Replaced(b"{\"model_type\": \"gpt-2\"}".to_vec())
            } else {
                Response::Serve
            }
        },
        error: Some("config.json: expected checksum"),
        served: Some(0),
    },
    Case {
        name: "stops sending",
        script: |request| first(request, 1, || Response::Stall(100_000)),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "sends slowly",
        script: |request| first(request, 99, || Response::Slow),
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "redirect loop",
        script: |request| first(request, 99, || Response::Redirect(format!("/owner/name/resolve/x/{MODEL}"))),
        error: Some("too many redirections"),
        served: Some(0),
    },
    Case {
        name: "invalid file list",
        script: |request| {
            if request.file == "list" { Response::Replaced(b"<html>".to_vec()) } else { Response::Serve }
        },
        error: Some("cannot parse"),
        served: Some(0),
    },
    Case {
        name: "path outside the repository",
        script: |request| {
            listed(request, r#"{"rfilename": "config.json"}, {"rfilename": "../../../outside"}"#)
        },
        error: Some("outside its directory"),
        served: Some(0),
    },
    Case {
        name: "absolute path",
        script: |request| listed(request, r#"{"rfilename": "/tmp/model.safetensors"}"#),
        error: Some("outside its directory"),
        served: Some(0),
    },
    Case {
        name: "insufficient disk space",
        script: |request| {
            listed(
                request,
                r#"{"rfilename": "config.json", "size": 2, "blobId": "0123456789abcdef0123456789abcdef01234567"},
                   {"rfilename": "model.safetensors", "size": 9000000000000000, "blobId": "1123456789abcdef0123456789abcdef01234567"}"#,
            )
        },
        error: Some("the download takes 9000000001 MB"),
        served: Some(0),
    },
    Case {
        name: "file list without checksums, as of a mirror",
        script: |request| {
            listed(
                request,
                r#"{"rfilename": "config.json"}, {"rfilename": "tokenizer.json"}, {"rfilename": "model.safetensors"}"#,
            )
        },
        error: None,
        served: Some(SIZE),
    },
    Case {
        name: "private or missing repository",
        script: |_| Response::Status(401, &[("x-error-code", "RepoNotFound")]),
        error: Some("does not exist, is private or is gated; to authenticate, create a token at"),
        served: Some(0),
    },
    Case {
        name: "gated repository",
        script: |_| Response::Status(403, &[("x-error-code", "GatedRepo")]),
        error: Some("owner/name is gated: accept its conditions at"),
        served: Some(0),
    },
    Case {
        name: "unknown revision",
        script: |_| Response::Status(404, &[("x-error-code", "RevisionNotFound")]),
        error: Some("owner/name has no branch, tag or commit main"),
        served: Some(0),
    },
];

impl Response {
    /// Closes the first connection for the weights early, and responds so to later ones.
    pub(crate) fn or_cut(self, request: &HttpRequest) -> Response {
        if request.file == MODEL && request.before == 0 { Response::Truncate(100_000) } else { self }
    }
}

/// A list with these files.
fn listed(request: &HttpRequest, files: &str) -> Response {
    match &*request.file {
        "list" => Response::Replaced(format!(r#"{{"sha": "{COMMIT}", "siblings": [{files}]}}"#).into_bytes()),
        _ => Response::Serve,
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
