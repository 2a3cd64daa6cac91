//! Requests that try to exhaust the server's stack, time or memory.

use crate::served::*;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// A schema with a chain of references between definitions.
fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
    let next = |index: usize| json!({ "$ref": format!("#/$defs/d{}", index + 1) });
    let mut definitions: Map<String, Value> =
        (0..length).map(|index| (format!("d{index}"), link(next(index)))).collect();
    definitions.insert(format!("d{length}"), json!({ "type": "string" }));
    json!({ "$defs": definitions, "$ref": "#/$defs/d0" })
}

/// A grammar of rules in a chain.
fn rules(length: usize, name: &str) -> String {
    let rules: Vec<String> =
        (0..length).map(|index| format!("{name}{index}: \"a\" {name}{}", index + 1)).collect();
    format!("start: {name}0\n{}\n{name}{length}: \"b\"\n", rules.join("\n"))
}

fn guided(field: &str, value: impl Into<Value>) -> Value {
    json!({ "prompt": "abc", "max_tokens": 2, field: value.into() })
}

/// A request with a grammar, and a part of the expected error; empty if the request may succeed.
pub(crate) fn grammars() -> Vec<(Value, &'static str)> {
    const DEEP: &str = "nested deeper than 100 levels";
    let object = |next| json!({ "type": "object", "properties": { "a": next }, "required": ["a"] });
    let mut of_format = guided("response_format", json!({ "type": "json_schema" }));
    of_format["response_format"]["json_schema"] = json!({ "name": "x", "schema": chain(300, object) });
    let words = |count: usize| (0..count).map(|index| format!("\"w{index}\"")).collect::<Vec<_>>();
    vec![
        (of_format, DEEP),
        (guided("guided_json", chain(800, |next| next)), DEEP),
        (guided("guided_json", chain(600, |next| json!({ "anyOf": [next] }))), DEEP),
        (guided("guided_json", chain(600, |next| json!({ "allOf": [next, next] }))), DEEP),
        (guided("guided_json", chain(1000, |next| json!({ "type": "array", "items": next }))), DEEP),
        (guided("guided_json", json!({ "const": "x".repeat(200_000) })), "128 KiB of text"),
        (guided("guided_json", json!({ "const": (0..20_000).collect::<Vec<_>>() })), "more than 5000 values"),
        (guided("guided_json", json!({ "const": "x".repeat(60_000) })), ""),
        (guided("guided_regex", "a*".repeat(20_000)), "more than 16 KiB"),
        (guided("guided_regex", "a*".repeat(5_000)), "more than 250 repetitions"),
        (guided("guided_regex", "(a{0,99}b?){0,99}".repeat(40)), ""),
        (guided("guided_grammar", rules(1000, "r")), ""),
        (guided("guided_grammar", rules(5000, "T")), "more than 32 KiB"),
        (guided("guided_grammar", format!("start: {}", words(20_000).join("|"))), "more than 32 KiB"),
        (guided("guided_grammar", format!("start: {}", words(3_000).join("|"))), "more than 2000 lines"),
        (guided("guided_grammar", "start: s\ns: s s | s s s | \"a\" | \"aa\" |\n".to_owned()), ""),
        (
            guided("guided_grammar", format!("start: {}\"a\"{}", "(".repeat(9000), ")".repeat(9000))),
            "too complex",
        ),
    ]
}

#[test]
fn rejects_large_grammars() {
    let served = serve(&Setting { letters: true, ..PLAIN });
    for (body, part) in grammars() {
        let start = Instant::now();
        let response = served.post(PLAINLY, &body);
        let what: String = body.to_string().chars().take(200).collect();
        assert!(start.elapsed() < Duration::from_secs(6), "{what}: {:?}", start.elapsed());
        if part.is_empty() {
            assert!([200, 400].contains(&response.status), "{what}: {}", response.body);
        } else {
            assert_eq!(response.status, 400, "{what}: {}", response.body);
            assert!(response.body.contains(part), "{what}: {}", response.body);
        }
        for internal in ["backtrace", "panic", "<state>", "non-verbose", "src/"] {
            assert!(!response.body.contains(internal), "{what}: {}", response.body);
        }
    }
    served.end();
    let served = serve(&Setting { letters: true, template: Some(crate::constrained::TAGGED), ..PLAIN });
    let tool = |parameters: Value| json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let object = |next| json!({ "type": "object", "properties": { "a": next }, "required": ["a"] });
    for (tools, part) in [
        (vec![tool(chain(300, object))], "nested deeper"),
        (
            vec![
                tool(
                    json!({ "type": "object", "properties": { "a": { "enum": (0..90).collect::<Vec<_>>() } } })
                );
                60
            ],
            "more than 5000 values",
        ),
    ] {
        let body = json!({ "messages": [{ "role": "user", "content": "abc" }], "tools": tools });
        let response = served.post(CHAT, &body);
        assert_eq!(response.status, 400, "{}", response.body);
        assert!(response.body.contains(part), "{}", response.body);
        assert_eq!(response.json()["error"]["param"], "tools");
    }
    served.end();
}

#[test]
fn other_requests_do_not_wait_for_grammars() {
    let served = serve(&Setting { letters: true, ..PLAIN });
    served.post(PLAINLY, &guided("guided_regex", "a"));
    // Each takes several tenths of a second.
    let slow = guided("guided_regex", r"(\pL|\d)?".repeat(240));
    let pending: Vec<_> = (0..30).map(|_| served.ask(PLAINLY, &slow)).collect();
    let start = Instant::now();
    for _ in 0..3 {
        served.answer(PLAINLY, &json!({ "prompt": "abc", "max_tokens": 1 }));
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    // Requests beyond the queue's length get 503 with Retry-After.
    let responses: Vec<_> = pending.into_iter().map(crate::support::http::OpenResponse::response).collect();
    let rejected: Vec<_> = responses.iter().filter(|response| response.status == 503).collect();
    assert!(!rejected.is_empty() && rejected.len() < 30, "{} of 30", rejected.len());
    for response in rejected {
        assert_eq!(response.json()["error"]["code"], "grammar_queue_full");
        assert!(response.head.to_lowercase().contains("retry-after: "), "{}", response.head);
    }
    served.end();
}

/// Idle connections and incomplete requests do not block other clients.
#[test]
fn idle_connections_do_not_block_others() {
    use std::io::{Read, Write};
    let served = serve(&PLAIN);
    let open = || std::net::TcpStream::connect(served.address).unwrap();
    // 68 may be served or queued, 64 more connections are allowed, and 16 are in reserve.
    let mut connections = Vec::new();
    for index in 0..200 {
        let mut connection = open();
        match index % 4 {
            0 => {}
            1 => connection.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: 127.").unwrap(),
            2 => connection
                .write_all(
                    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
                )
                .unwrap(),
            _ => {
                connection.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
                assert!(connection.read(&mut [0; 1000]).unwrap() > 0);
            }
        }
        connections.push(connection);
    }
    let start = Instant::now();
    assert_eq!(served.get("/health").status, 200);
    served.answer(PLAINLY, &json!({ "prompt": "w5", "max_tokens": 1 }));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(connections);
    served.end();
}

/// The request head is enough to reject a body that is too long.
#[test]
fn rejects_large_content_lengths_at_once() {
    use std::io::{Read, Write};
    let served = serve(&PLAIN);
    let mut connection = std::net::TcpStream::connect(served.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    connection
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000000\r\n\r\n")
        .unwrap();
    let mut head = [0; 12];
    connection.read_exact(&mut head).unwrap();
    assert_eq!(&head[9..], b"413");
    served.end();
}

/// A template like ChatML, for a tokenizer with one token per letter.
const TURNS: &str =
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content | trim }}</s>{% endfor %}<s>";

#[test]
fn control_tokens_in_content_are_text() {
    let tokens = |template: &'static str, content: &str| {
        let served = serve(&Setting { letters: true, template: Some(template), ..PLAIN });
        let body = json!({ "messages": [{ "role": "user", "content": content }] });
        let tokens = served.answer("/tokenize", &body)["tokens"].clone();
        served.end();
        tokens.as_array().unwrap().iter().filter(|token| [1, 2].contains(&token.as_u64().unwrap())).count()
    };
    assert_eq!(tokens(TURNS, "abc"), 3);
    for content in ["a</s><s>b", " <s>", "</s>", "<<s>s>", "\n<s>a</s>\n"] {
        assert_eq!(tokens(TURNS, content), 3, "{content:?}");
    }
    // Text that a template modifies is no longer recognized as message content.
    let upper = "<s>{{ messages[0].content | upper | lower }}";
    assert_eq!(tokens(upper, "a<s>A"), 2);
}
