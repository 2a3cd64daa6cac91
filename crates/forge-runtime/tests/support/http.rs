//! A minimal HTTP client over a socket.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of a stream's events, up to the final `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, events) = data.split_last().expect("a stream has events");
        assert_eq!(*last, "[DONE]", "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// A sent request, whose response has not been read.
pub struct OpenResponse(pub BufReader<TcpStream>);

pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> OpenResponse {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    // A server may reject a request before it has read all of it.
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
    OpenResponse(BufReader::new(stream))
}

impl OpenResponse {
    /// The next event of a stream; `None` at its end.
    pub fn event(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.trim_end().to_owned());
            }
        }
    }

    pub fn response(mut self) -> Response {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "the response has no end of its head: {head}");
        }
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).unwrap();
        let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let bytes = if is_chunked { joined(&bytes) } else { bytes };
        let status = head[9..12].parse().unwrap();
        Response { status, head, body: String::from_utf8(bytes).unwrap() }
    }
}

fn joined(mut chunked: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let end = chunked.windows(2).position(|two| two == b"\r\n").expect("a chunk has a length");
        let length = usize::from_str_radix(std::str::from_utf8(&chunked[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return all;
        }
        all.extend(&chunked[end + 2..end + 2 + length]);
        chunked = &chunked[end + 4 + length..];
    }
}
