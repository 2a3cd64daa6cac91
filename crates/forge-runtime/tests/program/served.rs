//! `serve`: startup and shutdown.

use crate::support::http::send;
use crate::{directory, program, run, text};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs `serve`, calls `ask` with its port, and stops it with a signal.
#[cfg(unix)]
#[test]
fn serve_answers_until_it_is_stopped() {
    let folder = directory(0.0);
    for (signal, key) in [("INT", ""), ("TERM", "secret")] {
        let mut command = program(&folder, "serve --port 0 --slots 2");
        if !key.is_empty() {
            command.env("MODEL_API_KEY", key);
        }
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("tiny at http://")
            .and_then(|rest| rest.split_once("/v1 · 2 slots of 64 tokens"));
        let address = address.unwrap_or_else(|| panic!("{line}")).0.parse().unwrap();
        let port = format!("serve --port {}", std::net::SocketAddr::port(&address));
        let question = r#"{"prompt": [1, 5, 6, 7], "max_tokens": 12, "temperature": 0}"#;
        let status = |headers: &[(&str, &str)]| {
            send(address, "POST", "/v1/completions", headers, question).response().status
        };
        assert_eq!(status(&[]), if key.is_empty() { 200 } else { 401 });
        assert_eq!(status(&[("Authorization", "Bearer secret")]), 200);
        let busy = run(&folder, &port);
        assert_eq!(busy.status.code(), Some(2));
        assert!(text(&busy.stderr).contains("is in use: try --port "), "{}", text(&busy.stderr));
        // A response does not end when stderr is closed.
        drop(errors);
        let killed =
            Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn serve_rejects_unsafe_and_invalid_options() {
    let folder = directory(0.0);
    for (line, part) in [
        ("serve --host 0.0.0.0 --port 0", "without an API key: pass --api-key (or set MODEL_API_KEY)"),
        ("serve --host no.such.host.invalid", "cannot listen on no.such.host.invalid port 8080"),
        ("serve --port 0 --slots 9", "--slots 9 is too large: a pass of this model has at most 8 rows"),
        ("serve --port 0 --ctx-size 65", "compiled for contexts up to 64"),
    ] {
        let output = run(&folder, line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{line}: {}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("http://"), "{line}: {}", text(&output.stderr));
    }
    let output = program(&folder, "serve --port 0").env("MODEL_API_KEY", "").output().unwrap();
    assert!(text(&output.stderr).contains("empty API key"), "{}", text(&output.stderr));
}
