//! A compiled program as a server, and a client.

use crate::http::{OpenResponse, Response, send};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

/// The server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the server on a directory and waits until it is ready.
    pub(crate) fn start(program: &Path, folder: &Path, experts: &str) -> Server {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--slots", "1", "--device", "cpu", "--threads", "2"]);
        command.args(["--experts", experts, "--model-dir"]).arg(folder).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut all = String::new();
        let address = loop {
            let start = all.len();
            let count = stderr.read_line(&mut all).expect("it is text");
            assert!(count > 0, "the server did not start: {all}");
            let address = all[start..].split_once(" at http://").and_then(|(_, rest)| rest.split_once("/v1"));
            if let Some((address, _)) = address {
                break address.parse().expect("it is an address");
            }
        };
        // Drains stderr, so that the server neither blocks nor gets EPIPE.
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| println!("the server: {line}"))
        });
        let server = Server { child, address };
        let start = Instant::now();
        while server.get("/ready").status != 200 {
            assert!(start.elapsed() < Duration::from_secs(60), "the server is not ready after 60 s");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], "").response()
    }

    /// Sends a completion request.
    pub(crate) fn post(&self, request: &Value) -> OpenResponse {
        let headers = [("Content-Type", "application/json")];
        send(self.address, "POST", COMPLETIONS, &headers, &request.to_string())
    }

    /// The generated text.
    pub(crate) fn text(&self, request: &Value) -> String {
        let response = self.post(request).response();
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["choices"][0]["text"].as_str().expect("it is text").to_owned()
    }

    /// Reads a value of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("forge_{name} ")));
        let number = line.and_then(|line| line.rsplit(' ').next()).and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{name}: {text}"))
    }

    /// Stops the server and asserts a clean exit.
    pub(crate) fn stop(mut self) {
        // SAFETY: the child has not been waited for.
        let outcome = unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        assert_eq!(outcome, 0, "kill failed");
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "the server ended with {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
