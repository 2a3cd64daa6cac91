//! Downloads from a local hub server that misbehaves.

mod server;
mod server_faults;

use crate::server_faults::first;
use forge_hub::{Error, Event, Fetched, Request, RetryPolicy, Settings, Token, fetch};
use server::{COMMIT, Response, Server};
use std::fs;
use std::path::Path;
use std::time::Duration;

pub(crate) const MODEL: &str = "model.safetensors";

pub(crate) const SIZE: usize = 300_000;

/// A checkpoint with additional weight files that are not needed.
pub(crate) fn checkpoint() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{\"model_type\": \"llama\"}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("README.md", b"not needed".to_vec()),
        ("consolidated.safetensors", b"not needed".to_vec()),
        (MODEL, (0..SIZE).map(|index| (index * 7 + index / 251) as u8).collect()),
    ]
}

pub(crate) fn settings(server: &Server, cache: &Path) -> Settings {
    Settings {
        endpoint: server.address.clone(),
        token: None,
        cache: cache.to_owned(),
        offline: false,
        retry: RetryPolicy { tries: 4, first: Duration::from_millis(1), longest: Duration::from_secs(2) },
        silence: Duration::from_millis(300),
    }
}

fn request(text: &str) -> Request {
    Request::parse(text).unwrap()
}

/// Fetches a model and returns the log.
pub(crate) fn fetched(text: &str, settings: &Settings) -> (Result<Fetched, Error>, Vec<String>) {
    let mut notes = Vec::new();
    let outcome = fetch(&request(text), settings, &mut |event| {
        if let Event::Note(note) = event {
            notes.push(note.to_owned());
        }
    });
    (outcome, notes)
}

/// The names below a directory, links to files among them.
pub(crate) fn names(root: &Path) -> Vec<String> {
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

#[test]
fn resumes_interrupted_downloads() {
    let server = Server::start(&checkpoint(), |request| first(request, 1, || Response::Truncate(200_000)));
    let home = tempfile::tempdir().unwrap();
    let patient = settings(&server, home.path());
    let with_one_retry =
        Settings { retry: RetryPolicy { tries: 1, ..patient.retry.clone() }, ..patient.clone() };
    assert!(matches!(fetched("owner/name", &with_one_retry).0, Err(Error::RetriesExhausted(_))));
    let blobs = home.path().join("models--owner--name/blobs");
    let left: Vec<String> = names(&blobs).into_iter().filter(|name| name.ends_with(".incomplete")).collect();
    assert_eq!(left.len(), 1);
    assert_eq!(fs::metadata(blobs.join(&left[0])).unwrap().len(), 200_000);

    fetched("owner/name", &patient).0.unwrap();
    assert_eq!(server.served(MODEL), SIZE);
    assert_eq!(server.served("config.json"), 23);

    // Complete files are not requested, and a complete commit is not looked up.
    let requests = server.requests().len();
    fetched("owner/name", &patient).0.unwrap();
    assert_eq!(server.requests().len(), requests + 1);
    fetched(&format!("owner/name@{COMMIT}"), &patient).0.unwrap();
    assert_eq!(server.requests().len(), requests + 1);
}

#[test]
fn restarts_corrupt_partial_downloads_once() {
    for left in [vec![7; 1000], vec![7; SIZE], vec![7; SIZE + 1]] {
        let server = Server::start(&checkpoint(), |request| first(request, 1, || Response::Truncate(1000)));
        let home = tempfile::tempdir().unwrap();
        let patient = settings(&server, home.path());
        let with_one_retry =
            Settings { retry: RetryPolicy { tries: 1, ..patient.retry.clone() }, ..patient.clone() };
        assert!(fetched("owner/name", &with_one_retry).0.is_err());
        let blobs = home.path().join("models--owner--name/blobs");
        let partial = names(&blobs).into_iter().find(|name| name.ends_with(".incomplete")).unwrap();
        fs::write(blobs.join(partial), &left).unwrap();
        let done = fetched("owner/name", &patient).0.unwrap();
        assert_eq!(fs::read(done.snapshot.join(MODEL)).unwrap(), checkpoint()[4].1, "{}", left.len());
    }
}

#[test]
fn token_is_sent_to_the_hub_only() {
    let other = Server::start(&checkpoint(), |_| Response::Serve);
    let elsewhere = format!("{}/", other.address);
    let hub = Server::start(&checkpoint(), move |request| match &*request.file {
        "list" => Response::Serve,
        // Redirects to another host, and one within the hub.
        MODEL => Response::Redirect(elsewhere.clone()),
        "config.json" if request.before == 0 => {
            Response::Redirect(format!("/moved/resolve/{COMMIT}/config.json"))
        }
        _ => Response::Serve,
    });
    let home = tempfile::tempdir().unwrap();
    let token = Some(Token { text: "hf_secret".to_owned(), from: "HF_TOKEN".to_owned() });
    let done = fetched("owner/name", &Settings { token, ..settings(&hub, home.path()) }).0.unwrap();
    assert_eq!(fs::read(done.snapshot.join(MODEL)).unwrap(), checkpoint()[4].1);
    assert!(
        hub.requests().iter().all(|request| request.token.as_deref() == Some("Bearer hf_secret")),
        "{:?}",
        hub.requests()
    );
    assert!(
        other.served(MODEL) == SIZE && other.requests().iter().all(|request| request.token.is_none()),
        "{:?}",
        other.requests()
    );
    assert!(other.requests().iter().all(|request| !request.head));
}

#[test]
fn concurrent_downloads_of_one_file_transfer_it_once() {
    let server =
        Server::start(
            &checkpoint(),
            |request| if request.file == MODEL { Response::Slow } else { Response::Serve },
        );
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
fn uses_the_cache_if_the_hub_is_unreachable() {
    let server = Server::start(&checkpoint(), |_| Response::Serve);
    let home = tempfile::tempdir().unwrap();
    let on_line = settings(&server, home.path());
    let off_line = Settings { offline: true, ..on_line.clone() };
    let unfetched = fetched("owner/name", &off_line).0.unwrap_err().to_string();
    assert!(unfetched.contains("HF_HUB_OFFLINE disables"), "{unfetched}");

    let done = fetched("owner/name", &on_line).0.unwrap();
    let requests = server.requests().len();
    assert_eq!(fetched("owner/name", &off_line).0.unwrap(), done);
    assert_eq!(server.requests().len(), requests, "nothing is requested offline");

    // A server that is unreachable, and one that no longer has the repository.
    let gone = Server::start(&checkpoint(), |_| Response::Status(401, &[("x-error-code", "RepoNotFound")]));
    for endpoint in ["http://127.0.0.1:9", &gone.address] {
        let settings = Settings { endpoint: endpoint.to_owned(), ..on_line.clone() };
        let (outcome, notes) = fetched("owner/name", &settings);
        assert_eq!(outcome.unwrap(), done);
        assert!(notes.last().unwrap().contains("using the cached commit 01234567"), "{notes:?}");
        let mistyped = fetched("owner/nam", &settings).0.unwrap_err().to_string();
        assert_eq!(mistyped.contains("the cache has owner/name"), endpoint == gone.address, "{mistyped}");
    }

    // A checkpoint without its weights is incomplete.
    fs::remove_file(done.snapshot.join(MODEL)).unwrap();
    assert!(fetched("owner/name", &off_line).0.is_err());
    assert_eq!(fetched("owner/name", &on_line).0.unwrap(), done);
}

#[test]
fn downloads_shards_and_gguf_files_by_name() {
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
    let server = Server::start(&files, |_| Response::Serve);
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
