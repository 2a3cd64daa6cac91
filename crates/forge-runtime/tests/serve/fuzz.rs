//! Mutated requests to a server in a separate process.
//!
//! For any request, the server responds in limited time, serves another client meanwhile, stays within its
//! memory limit and keeps running. A request is determined by its index, so runs are reproducible:
//! `FORGE_FUZZ_FIRST=25181` starts with that one.
//! `FORGE_FUZZ_MINUTES=30` sets a duration instead:
//!
//! ```sh
//! FORGE_FUZZ_MINUTES=30 cargo test -p forge-runtime --test serve fuzz -- --nocapture
//! ```

use crate::hostile::grammars;
use crate::served::*;
use crate::support::http::send;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of requests, unless the environment sets a duration.
const REQUESTS: u64 = 200;
/// Maximum time of any request.
const TIME: Duration = Duration::from_secs(2);
/// Maximum time of another client's plain request meanwhile.
const PLAIN_TIME: Duration = Duration::from_secs(1);
/// Maximum growth of the server's memory, in KiB.
const MEMORY: u64 = 200 << 10;
const SERVER: &str = "FORGE_FUZZ_SERVER";

/// The server, which runs until its standard input ends.
#[test]
#[ignore = "the fuzz test runs it in a process of its own"]
fn server() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let served = serve(&Setting { letters: true, template: Some(crate::constrained::TAGGED), ..PLAIN });
    println!("\naddress {}", served.address);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    served.end();
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start() -> (Process, SocketAddr) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fuzz::server", "--ignored", "--nocapture"])
            .env(SERVER, "1")
            // As `cli::main` sets it.
            .env("RUST_LIB_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut addresses =
            lines.by_ref().filter_map(|line| line.unwrap().strip_prefix("address ")?.parse().ok());
        let address = addresses.next().expect("the server says where it listens");
        // The test harness prints a line after a minute, and exits if its output is closed.
        std::thread::spawn(move || lines.for_each(drop));
        (Process(child), address)
    }

    /// Memory in use in KiB; `None` if the system does not report it.
    fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

/// Pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % most.max(1) as u64) as usize
    }
}

/// Requests to mutate: the path, and the body.
fn corpus() -> Vec<(&'static str, Value)> {
    let tool = |parameters: Value| json!([{ "type": "function", "function": { "name": "f", "parameters": parameters } }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "abc" }], "max_tokens": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let mut corpus: Vec<_> = grammars().into_iter().map(|(body, _)| (PLAINLY, body)).collect();
    for guided in [
        json!({ "guided_regex": "((a{0,99}b?){0,99}c?){0,99}" }),
        json!({ "guided_regex": r"(\p{L}|\d)?[^a-f]+|x{5,}" }),
        json!({ "guided_grammar": "start: A+ b{3,20}\nA: /[a-z]+/ & ~/abc/\nb: \"x\" | %json {\"type\": \"integer\"}\n" }),
        json!({ "guided_json": { "allOf": [{ "anyOf": [{ "minimum": 1 }, { "minLength": 2 }] }, { "oneOf": [{ "type": "string" }] }] } }),
        json!({ "guided_json": { "type": "array", "minItems": 1000, "maxItems": 100_000, "items": { "type": "string", "pattern": "^(a|e)*a(a|e){9}$" } } }),
        json!({ "guided_json": { "type": "integer", "multipleOf": 7919, "minimum": 1, "x-guidance": { "item_separator": "a*" } } }),
    ] {
        let mut body = json!({ "prompt": "abc", "max_tokens": 3 });
        body.as_object_mut().unwrap().extend(guided.as_object().unwrap().clone());
        corpus.push((PLAINLY, body));
    }
    corpus.push((CHAT, chat(json!({ "tools": tool(json!({ "type": "object", "properties": { "a": { "enum": [1, "x"] } } })), "tool_choice": "required" }))));
    corpus.push((CHAT, chat(json!({ "logprobs": true, "top_logprobs": 3, "stop": ["a"], "logit_bias": { "3": 5 }, "n": 2, "seed": 1 }))));
    corpus.push(("/v1/responses", json!({ "input": "abc", "max_output_tokens": 3, "text": { "format": { "type": "json_schema", "schema": { "type": "object" } } } })));
    corpus.push(("/tokenize", json!({ "messages": [{ "role": "user", "content": "a</s>b" }] })));
    corpus.push(("/detokenize", json!({ "tokens": [1, 2, 3] })));
    corpus
}

/// All values within one, by their JSON pointers.
fn pointers(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate().take(20) {
                pointers(item, format!("{at}/{index}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields.iter().take(20) {
                pointers(value, format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        _ => {}
    }
    found.push(at);
}

fn part(value: &Value, random: &mut Random) -> Value {
    let mut found = Vec::new();
    pointers(value, String::new(), &mut found);
    value.pointer(&found[random.below(found.len())]).cloned().unwrap_or_default()
}

fn mutate(body: &mut Value, corpus: &[(&str, Value)], random: &mut Random) {
    let mut found = Vec::new();
    pointers(body, String::new(), &mut found);
    let other = part(&corpus[random.below(corpus.len())].1, random);
    let Some(place) = body.pointer_mut(&found[random.below(found.len())]) else { return };
    let old = place.take();
    *place = match (random.below(7), old) {
        (0, _) => other,
        (1, old) => json!([old, other]),
        (2, old) => json!({ "anyOf": [old, other] }),
        (3, old) => (0..random.below(60)).fold(old, |inner, _| json!({ "type": "array", "items": inner })),
        (4, Value::String(text)) => {
            text.repeat(1 + random.below(300)).chars().take(60_000).collect::<String>().into()
        }
        (4, Value::Number(_)) => {
            [json!(-1), json!(1e300), json!(u64::MAX), json!(0.5)][random.below(4)].clone()
        }
        (5, Value::String(text)) => {
            const PIECES: [&str; 12] =
                ["(", ")*", "{1,9999}", "|", "[^", "]", "\\p{L}", "?", "\n", "</s>", "~", "$"];
            let at = text.char_indices().map(|(at, _)| at).nth(random.below(text.len())).unwrap_or(0);
            format!("{}{}{}", &text[..at], PIECES[random.below(PIECES.len())], &text[at..]).into()
        }
        (5, Value::Array(items)) => {
            items.iter().cycle().take(items.len() * random.below(500)).cloned().collect()
        }
        (_, old) => old,
    };
}

/// Sends a body, reads any response, and returns its status.
fn ask(address: SocketAddr, path: &str, body: &[u8]) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // A server may reject a request before it has read all of it.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    std::str::from_utf8(response.get(9..12)?).ok()?.parse().ok()
}

#[test]
fn mutated_requests_are_answered_in_time() {
    let minutes = std::env::var("FORGE_FUZZ_MINUTES").ok().map(|minutes| minutes.parse::<f64>().unwrap());
    let first = std::env::var("FORGE_FUZZ_FIRST").map_or(0, |number| number.parse::<u64>().unwrap());
    let (process, address) = Process::start();
    let corpus = corpus();
    let plain = json!({ "prompt": "abc", "max_tokens": 1 }).to_string();
    // Initialization by the first grammar does not count as growth.
    ask(
        address,
        PLAINLY,
        json!({ "prompt": "abc", "max_tokens": 1, "guided_regex": "a" }).to_string().as_bytes(),
    );
    let before = process.memory();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                let response = send(address, "POST", PLAINLY, &[], &plain).response();
                assert_eq!(response.status, 200, "{}", response.body);
                slowest = slowest.max(start.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            slowest
        });
        let start = Instant::now();
        let mut faults = Vec::new();
        for number in first.. {
            let is_last = match minutes {
                Some(minutes) => start.elapsed().as_secs_f64() > 60.0 * minutes,
                None => number == first + REQUESTS + corpus.len() as u64,
            };
            if is_last || other.is_finished() {
                break;
            }
            let mut random = Random(number);
            let index = number as usize;
            let (path, mut body) =
                corpus[if index < corpus.len() { index } else { random.below(corpus.len()) }].clone();
            if index >= corpus.len() {
                (0..1 + random.below(4)).for_each(|_| mutate(&mut body, &corpus, &mut random));
            }
            let mut bytes = body.to_string().into_bytes();
            if index >= corpus.len() && random.below(8) == 0 && !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            let started = Instant::now();
            let status = ask(address, path, &bytes);
            let what = || {
                let file = std::env::temp_dir().join(format!("forge-fuzz-{number}.json"));
                std::fs::write(&file, &bytes).unwrap();
                format!("request {number}, {path}: body in {}", file.display())
            };
            if started.elapsed() > TIME {
                faults.push(format!("{:?}: {}", started.elapsed(), what()));
            }
            if !status.is_some_and(|status| status == 200 || (400..500).contains(&status) || status == 503) {
                faults.push(format!("status {status:?}: {}", what()));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let slowest = other.join().unwrap();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(slowest < PLAIN_TIME, "another client waited {slowest:?}");
    });
    if let (Some(before), Some(after)) = (before, process.memory()) {
        eprintln!("the server's memory went from {before} to {after} KiB");
        assert!(after < before + MEMORY, "from {before} to {after} KiB");
    }
    assert_eq!(send(address, "GET", "/health", &[], "").response().status, 200);
}
