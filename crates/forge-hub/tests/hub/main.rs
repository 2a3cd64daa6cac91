//! Downloads from a local hub server that misbehaves.

mod server;

use forge_hub::{Error, Event, Fetched, Request, RetryPolicy, Settings, Token, fetch};
use server::{Act, Ask, COMMIT, Server};
use std::fs;
use std::path::Path;
use std::time::Duration;

const MODEL: &str = "model.safetensors";
const SIZE: usize = 300_000;

/// A checkpoint with additional weight files that are not needed.
fn checkpoint() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{\"model_type\": \"llama\"}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("README.md", b"not needed".to_vec()),
        ("consolidated.safetensors", b"not needed".to_vec()),
        (MODEL, (0..SIZE).map(|index| (index * 7 + index / 251) as u8).collect()),
    ]
}

fn settings(server: &Server, cache: &Path) -> Settings {
    Settings {
        endpoint: server.address.clone(),
        token: None,
        cache: cache.to_owned(),
        offline: false,
        patience: RetryPolicy { tries: 4, first: Duration::from_millis(1), longest: Duration::from_secs(2) },
        silence: Duration::from_millis(300),
    }
}

fn request(text: &str) -> Request {
    Request::parse(text).unwrap()
}

/// Fetches a model and returns the log.
fn fetched(text: &str, settings: &Settings) -> (Result<Fetched, Error>, Vec<String>) {
    let mut notes = Vec::new();
    let outcome = fetch(&request(text), settings, &mut |event| {
        if let Event::Note(note) = event {
            notes.push(note.to_owned());
        }
    });
    (outcome, notes)
}

/// The names below a directory, links to files among them.
fn names(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => names.extend(names_below(&path)),
            false => names.push(entry.file_name().into_string().unwrap()),
        }
    }
    names.sort();
    names
}

fn names_below(path: &Path) -> Vec<String> {
    let folder = path.file_name().unwrap().to_str().unwrap();
    names(path).into_iter().map(|name| format!("{folder}/{name}")).collect()
}

/// A server behaviour, whether the download succeeds nevertheless, and the bytes of weights that are sent.
struct Case {
    name: &'static str,
    script: fn(&Ask) -> Act,
    /// The error message, if there is an error.
    error: Option<&'static str>,
    served: Option<usize>,
}

/// The server's response to the first `times` requests for the weights.
fn first(ask: &Ask, times: usize, act: fn() -> Act) -> Act {
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
    /// Hangs up the first time instead.
    fn or_cut(self, ask: &Ask) -> Act {
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
fn whatever_a_server_does_the_cache_is_right_or_there_is_an_error() {
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

#[test]
fn what_was_fetched_before_an_interruption_is_not_fetched_again() {
    let server = Server::start(&checkpoint(), |ask| first(ask, 1, || Act::Cut(200_000)));
    let home = tempfile::tempdir().unwrap();
    let patient = settings(&server, home.path());
    let impatient =
        Settings { patience: RetryPolicy { tries: 1, ..patient.patience.clone() }, ..patient.clone() };
    assert!(matches!(fetched("owner/name", &impatient).0, Err(Error::GaveUp(_))));
    let blobs = home.path().join("models--owner--name/blobs");
    let left: Vec<String> = names(&blobs).into_iter().filter(|name| name.ends_with(".incomplete")).collect();
    assert_eq!(left.len(), 1);
    assert_eq!(fs::metadata(blobs.join(&left[0])).unwrap().len(), 200_000);

    fetched("owner/name", &patient).0.unwrap();
    assert_eq!(server.served(MODEL), SIZE);
    assert_eq!(server.served("config.json"), 23);

    // Complete files are not requested, and a complete commit is not looked up.
    let asked = server.asked().len();
    fetched("owner/name", &patient).0.unwrap();
    assert_eq!(server.asked().len(), asked + 1);
    fetched(&format!("owner/name@{COMMIT}"), &patient).0.unwrap();
    assert_eq!(server.asked().len(), asked + 1);
}

#[test]
fn a_partial_file_that_is_wrong_is_started_over_once() {
    for left in [vec![7; 1000], vec![7; SIZE], vec![7; SIZE + 1]] {
        let server = Server::start(&checkpoint(), |ask| first(ask, 1, || Act::Cut(1000)));
        let home = tempfile::tempdir().unwrap();
        let patient = settings(&server, home.path());
        let impatient =
            Settings { patience: RetryPolicy { tries: 1, ..patient.patience.clone() }, ..patient.clone() };
        assert!(fetched("owner/name", &impatient).0.is_err());
        let blobs = home.path().join("models--owner--name/blobs");
        let partial = names(&blobs).into_iter().find(|name| name.ends_with(".incomplete")).unwrap();
        fs::write(blobs.join(partial), &left).unwrap();
        let done = fetched("owner/name", &patient).0.unwrap();
        assert_eq!(fs::read(done.snapshot.join(MODEL)).unwrap(), checkpoint()[4].1, "{}", left.len());
    }
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let other = Server::start(&checkpoint(), |_| Act::Serve);
    let elsewhere = format!("{}/", other.address);
    let hub = Server::start(&checkpoint(), move |ask| match &*ask.file {
        "list" => Act::Serve,
        // To another host, and once around within the hub.
        MODEL => Act::Redirect(elsewhere.clone()),
        "config.json" if ask.before == 0 => Act::Redirect(format!("/moved/resolve/{COMMIT}/config.json")),
        _ => Act::Serve,
    });
    let home = tempfile::tempdir().unwrap();
    let token = Some(Token { text: "hf_secret".to_owned(), from: "HF_TOKEN".to_owned() });
    let done = fetched("owner/name", &Settings { token, ..settings(&hub, home.path()) }).0.unwrap();
    assert_eq!(fs::read(done.snapshot.join(MODEL)).unwrap(), checkpoint()[4].1);
    assert!(
        hub.asked().iter().all(|ask| ask.token.as_deref() == Some("Bearer hf_secret")),
        "{:?}",
        hub.asked()
    );
    assert!(
        other.served(MODEL) == SIZE && other.asked().iter().all(|ask| ask.token.is_none()),
        "{:?}",
        other.asked()
    );
    assert!(other.asked().iter().all(|ask| !ask.head));
}

#[test]
fn concurrent_fetches_of_one_file_download_it_once() {
    let server = Server::start(&checkpoint(), |ask| if ask.file == MODEL { Act::Drip } else { Act::Serve });
    let home = tempfile::tempdir().unwrap();
    let settings = settings(&server, home.path());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| fetched("owner/name", &settings).0.unwrap());
        }
    });
    for (file, content) in checkpoint() {
        if ["config.json", "tokenizer.json", MODEL].contains(&file) {
            assert_eq!(server.served(file), content.len(), "{file}");
        }
    }
}

#[test]
fn without_the_hub_the_cache_holds() {
    let server = Server::start(&checkpoint(), |_| Act::Serve);
    let home = tempfile::tempdir().unwrap();
    let on_line = settings(&server, home.path());
    let off_line = Settings { offline: true, ..on_line.clone() };
    let unfetched = fetched("owner/name", &off_line).0.unwrap_err().to_string();
    assert!(unfetched.contains("HF_HUB_OFFLINE disables"), "{unfetched}");

    let done = fetched("owner/name", &on_line).0.unwrap();
    let asked = server.asked().len();
    assert_eq!(fetched("owner/name", &off_line).0.unwrap(), done);
    assert_eq!(server.asked().len(), asked, "nothing is asked off line");

    // A server that is not there, and one that no longer shows the repository.
    let gone = Server::start(&checkpoint(), |_| Act::Status(401, &[("x-error-code", "RepoNotFound")]));
    for endpoint in ["http://127.0.0.1:9", &gone.address] {
        let settings = Settings { endpoint: endpoint.to_owned(), ..on_line.clone() };
        let (outcome, notes) = fetched("owner/name", &settings);
        assert_eq!(outcome.unwrap(), done);
        assert!(notes.last().unwrap().contains("using the cached commit 01234567"), "{notes:?}");
        let mistyped = fetched("owner/nam", &settings).0.unwrap_err().to_string();
        assert_eq!(mistyped.contains("the cache has owner/name"), endpoint == gone.address, "{mistyped}");
    }

    // Weights that are gone are not a checkpoint.
    fs::remove_file(done.snapshot.join(MODEL)).unwrap();
    assert!(fetched("owner/name", &off_line).0.is_err());
    assert_eq!(fetched("owner/name", &on_line).0.unwrap(), done);
}

#[test]
fn shards_and_gguf_files_are_fetched_by_name() {
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let files = vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-1.safetensors", b"one".to_vec()),
        ("model-2.safetensors", b"two".to_vec()),
        ("model-3.safetensors", b"unlisted".to_vec()),
        ("deep/m-Q8_0.gguf", b"GGUF".to_vec()),
        ("m-F16-00001-of-00002.gguf", b"one".to_vec()),
        ("m-F16-00002-of-00002.gguf", b"more".to_vec()),
    ];
    let server = Server::start(&files, |_| Act::Serve);
    let home = tempfile::tempdir().unwrap();
    let settings = settings(&server, home.path());
    let picked = fetched("owner/name:Q8_0", &settings).0.unwrap();
    assert_eq!(picked.file.as_deref(), Some("deep/m-Q8_0.gguf"));
    assert_eq!(fs::read(picked.snapshot.join("deep/m-Q8_0.gguf")).unwrap(), b"GGUF");
    assert!(!picked.snapshot.join("config.json").exists());

    let split = fetched("owner/name:F16", &settings).0.unwrap();
    assert_eq!(split.file.as_deref(), Some("m-F16-00001-of-00002.gguf"));
    assert_eq!(fs::read(split.snapshot.join("m-F16-00002-of-00002.gguf")).unwrap(), b"more");
    let off_line = Settings { offline: true, ..settings.clone() };
    assert_eq!(fetched("owner/name:F16", &off_line).0.unwrap(), split);
    fs::remove_file(split.snapshot.join("m-F16-00002-of-00002.gguf")).unwrap();
    assert!(fetched("owner/name:F16", &off_line).0.is_err(), "a part of it is not the model");

    let whole = fetched("owner/name@v1.0", &settings).0.unwrap();
    let expected = [
        "config.json",
        "deep/m-Q8_0.gguf",
        "m-F16-00001-of-00002.gguf",
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
    ];
    assert_eq!(names(&whole.snapshot), expected);
    let refs = home.path().join("models--owner--name/refs");
    assert_eq!(names(&refs), ["main", "v1.0"]);
}
