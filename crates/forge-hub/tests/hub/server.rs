//! A local hub server: it lists and serves one repository, and misbehaves on request.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The commit of every file.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    /// The file, or `list`.
    pub(crate) file: String,
    /// Number of earlier requests for the same path.
    pub(crate) before: usize,
    /// `HEAD` rather than `GET`.
    pub(crate) head: bool,
    /// Value of the `Authorization` header.
    pub(crate) token: Option<String>,
}

/// The server's response.
pub(crate) enum Response {
    /// A correct response.
    Serve,
    /// A response with this status and these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// Announces the full length and closes the connection after this many bytes.
    Truncate(usize),
    /// Ignores the requested range and sends everything.
    Whole,
    /// Sends from another offset than requested.
    Offset(usize),
    /// Announces a length that is wrong by this many bytes.
    Length(isize),
    /// Sends other content.
    Replaced(Vec<u8>),
    /// Redirects to another address.
    Redirect(String),
    /// Stops sending after this many bytes, without closing the connection.
    Stall(usize),
    /// Sends slowly, a few bytes at a time.
    Slow,
}

type Script = Box<dyn Fn(&HttpRequest) -> Response + Send + Sync>;

/// A local hub server.
pub(crate) struct Server {
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<HttpRequest>>>,
    served: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Server {
    /// Serves these files; `script` selects each response.
    pub(crate) fn start(
        files: &[(&str, Vec<u8>)],
        script: impl Fn(&HttpRequest) -> Response + Send + Sync + 'static,
    ) -> Server {
        let list = listing(files);
        let files: BTreeMap<String, Vec<u8>> = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.clone()))
            .chain([("list".to_owned(), list)])
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (requests, served) =
            (Arc::<Mutex<Vec<HttpRequest>>>::default(), Arc::<Mutex<BTreeMap<_, _>>>::default());
        let shared = Arc::new((files, Box::new(script) as Script, requests.clone(), served.clone()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let (files, script, requests, served) = &*shared;
                    // Clients may close the connection early, which is not an error.
                    let _ = handle(stream, files, script, requests, served);
                });
            }
        });
        Server { address, requests, served }
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<HttpRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Bytes of a file that were sent.
    pub(crate) fn served(&self, file: &str) -> usize {
        self.served.lock().unwrap().get(file).copied().unwrap_or(0)
    }
}

/// The list of files, as the hub gives it: the weights in the large-file storage, the rest in the repository.
fn listing(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let files = files.iter().map(|(name, bytes)| {
        let mut file = serde_json::json!({"rfilename": name, "size": bytes.len(), "blobId": git_name(bytes)});
        if is_large(name) {
            let sum = hexadecimal(&Sha256::digest(bytes));
            file["lfs"] = serde_json::json!({"sha256": sum, "size": bytes.len(), "pointerSize": 130});
        }
        file
    });
    let files: serde_json::Value = files.collect();
    serde_json::json!({"id": "owner/name", "sha": COMMIT, "siblings": files}).to_string().into_bytes()
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

fn git_name(bytes: &[u8]) -> String {
    let header = format!("blob {}\0", bytes.len());
    hexadecimal(&Sha1::digest([header.as_bytes(), bytes].concat()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle(
    mut stream: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    script: &Script,
    requests: &Mutex<Vec<HttpRequest>>,
    served: &Mutex<BTreeMap<String, usize>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ');
    let (head, path) = (words.next() == Some("HEAD"), words.next().unwrap_or_default().to_owned());
    let (mut from, mut token) = (None, None);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? <= 2 {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_lowercase().as_str() {
            "range" => {
                from =
                    value.trim().strip_prefix("bytes=").and_then(|it| it.trim_end_matches('-').parse().ok())
            }
            "authorization" => token = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let file = match path.split_once("/resolve/") {
        Some((_, file)) => file.split_once('/').unwrap_or_default().1.to_owned(),
        None if path.starts_with("/api/models/owner/name/revision/") => "list".to_owned(),
        None => path.clone(),
    };
    let request = {
        let mut requests = requests.lock().unwrap();
        let before = requests.iter().filter(|other| other.file == file).count();
        let request = HttpRequest { file: file.clone(), before, head, token };
        requests.push(request.clone());
        request
    };
    let Some(content) = files.get(&file) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    let response = script(&request);
    let mut from = from.unwrap_or(0);
    let mut content = content.clone();
    let (mut length, mut cut) = (0, usize::MAX);
    match response {
        Response::Status(status, headers) => {
            write!(stream, "HTTP/1.1 {status} Scripted\r\n")?;
            for (name, value) in headers {
                write!(stream, "{name}: {value}\r\n")?;
            }
            return write!(stream, "content-length: 0\r\nconnection: close\r\n\r\n");
        }
        Response::Redirect(to) => {
            let to = if to.ends_with('/') { format!("{to}{}", path.trim_start_matches('/')) } else { to };
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        Response::Whole => from = 0,
        Response::Offset(other) => from = other,
        Response::Truncate(bytes) => cut = bytes,
        Response::Stall(bytes) => cut = bytes,
        Response::Length(more) => length = more,
        Response::Replaced(ref other) => content.clone_from(other),
        Response::Serve | Response::Slow => {}
    }
    if from >= content.len() && from > 0 {
        return write!(
            stream,
            "HTTP/1.1 416 No Such Range\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    let body = &content[from..];
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n",
        body.len() as isize + length
    )?;
    if from > 0 {
        write!(stream, "content-range: bytes {from}-{}/{}\r\n", content.len() - 1, content.len())?;
    }
    if is_large(&file) {
        write!(
            stream,
            "x-linked-etag: \"{}\"\r\nx-linked-size: {}\r\n",
            hexadecimal(&Sha256::digest(&content)),
            content.len()
        )?;
    } else {
        write!(stream, "etag: \"{}\"\r\n", git_name(&content))?;
    }
    write!(stream, "\r\n")?;
    if head {
        return Ok(());
    }
    let body = &body[..body.len().min(cut)];
    // Before sending, because a client may check the count as soon as it has the bytes.
    *served.lock().unwrap().entry(file.clone()).or_default() += body.len();
    match response {
        Response::Slow => {
            for piece in body.chunks(body.len().div_ceil(20)) {
                stream.write_all(piece)?;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        _ => stream.write_all(body)?,
    }
    if let Response::Stall(_) = response {
        std::thread::sleep(Duration::from_secs(3));
    }
    Ok(())
}
