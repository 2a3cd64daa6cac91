//! Rejected requests, authentication, and the small endpoints.

use crate::served::*;
use crate::support::http::send;
use serde_json::json;

#[test]
fn rejects_unsupported_requests_by_field() {
    let served = serve(&PLAIN);
    let long: Vec<usize> = vec![5; 65];
    for (path, body, status, param, part) in [
        (PLAINLY, json!({}), 400, "prompt", "`prompt` is missing"),
        (PLAINLY, json!({ "prompt": "" , "max_tokens": 1 }), 200, "", ""),
        (PLAINLY, json!({ "prompt": [] }), 400, "prompt", "is empty"),
        (PLAINLY, json!({ "prompt": { "a": 1 } }), 400, "prompt", "a text, a list of token ids"),
        (PLAINLY, json!({ "prompt": [50] }), 400, "prompt", "not below the vocabulary size"),
        (PLAINLY, json!({ "prompt": long }), 400, "prompt", "has 65 tokens, the context length is 64"),
        (PLAINLY, json!({ "prompt": "w5", "echo": "loud" }), 400, "echo", "`echo`"),
        (PLAINLY, json!({ "prompt": "w5", "max_tokens": 0 }), 400, "max_tokens", "not 0"),
        (PLAINLY, json!({ "prompt": "w5", "max_tokens": 0, "echo": true }), 200, "", ""),
        (PLAINLY, json!({ "prompt": "w5", "temperature": "hot" }), 400, "temperature", "`temperature`"),
        (PLAINLY, json!({ "prompt": "w5", "temperature": -1 }), 400, "temperature", "0 to 100, not -1"),
        (PLAINLY, json!({ "prompt": "w5", "n": 1000 }), 400, "n", "`n` must be 1 to 68"),
        (
            PLAINLY,
            json!({ "prompt": ["w5", "w6"], "n": 40 }),
            400,
            "n",
            "80 completions exceed the maximum of 68",
        ),
        // Before processing starts.
        (
            PLAINLY,
            json!({ "prompt": vec!["w5"; 50_000], "n": 6, "guided_json": { "type": "object" } }),
            400,
            "prompt",
            "50000 prompts exceed the maximum of 68",
        ),
        (
            PLAINLY,
            json!({ "prompt": "w5", "max_tokens": 0 }),
            400,
            "max_tokens",
            "`max_tokens` must be at least 1",
        ),
        (PLAINLY, json!({ "prompt": "w5", "stop": [""] }), 400, "stop", "none of them empty"),
        (PLAINLY, json!({ "prompt": "w5", "logit_bias": { "x": 1 } }), 400, "logit_bias", "token ids"),
        (
            PLAINLY,
            json!({ "prompt": "w5", "logit_bias": { "50": 1 } }),
            400,
            "logit_bias",
            "token id 50 is not below the vocabulary size 50",
        ),
        (
            PLAINLY,
            json!({ "prompt": "w5", "stream_options": { "include_usage": true } }),
            400,
            "stream_options",
            "requires `stream`",
        ),
        (
            PLAINLY,
            json!({ "prompt": "w5", "use_beam_search": true }),
            400,
            "use_beam_search",
            "unsupported field `use_beam_search`",
        ),
        (
            PLAINLY,
            json!({ "prompt": "w5", "model": "gpt-4" }),
            404,
            "",
            "unknown model \"gpt-4\": this server has \"tiny\"",
        ),
        (
            PLAINLY,
            json!({ "prompt": "w5", "max_tokens": 1, "model": "small", "user": "me", "seed": null }),
            200,
            "",
            "",
        ),
        (CHAT, json!({}), 400, "messages", "`messages` is missing"),
        (CHAT, json!({ "messages": [] }), 400, "messages", "is empty"),
        (CHAT, json!({ "messages": [{ "content": "w5" }] }), 400, "messages", "role"),
        (
            CHAT,
            json!({ "messages": [{ "role": "tool", "content": "w5" }] }),
            400,
            "messages",
            "rejected by the model's chat template: no tools here",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            400,
            "messages",
            "this model accepts text only",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "w5" }] }], "max_tokens": 1 }),
            200,
            "",
            "",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "w5" }], "top_logprobs": 2 }),
            400,
            "top_logprobs",
            "requires `logprobs`",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "assistant", "content": "", "tool_calls": [5] }] }),
            400,
            "messages",
            "must have a `function` with name and arguments, not 5",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "assistant", "content": "", "tool_calls": [{ "function": 5 }] }] }),
            400,
            "messages",
            "must have a `function`",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "assistant", "content": "", "tool_calls": 5 }] }),
            400,
            "messages",
            "`tool_calls` must be a list, not 5",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "w5 ".repeat(80) }] }),
            400,
            "messages",
            "the context length is 64",
        ),
        ("/v1/responses", json!({ "input": "w5 ".repeat(80) }), 400, "input", "the context length is 64"),
        ("/v1/responses", json!({ "input": "w5", "text": 5 }), 400, "text", "`text`"),
        ("/v1/responses", json!({ "input": "w5", "reasoning": 5 }), 400, "reasoning", "`reasoning`"),
        (
            "/v1/responses",
            json!({ "input": "w5", "max_output_tokens": 0 }),
            400,
            "max_output_tokens",
            "`max_output_tokens` must be at least 1, not 0",
        ),
        (PLAINLY, json!({ "prompt": "w5", "top_p": 0 }), 400, "top_p", "above 0"),
        (PLAINLY, json!({ "prompt": "w5", "max_tokens": "x" }), 400, "max_tokens", "expected an integer"),
        (PLAINLY, json!({ "prompt": "w5", "max_tokens": -2 }), 400, "max_tokens", "`max_tokens`"),
        (PLAINLY, json!({ "prompt": "w5", "max_tokens": -1 }), 200, "", ""),
        (
            CHAT,
            json!({ "messages": [{ "role": "assistant", "content": null }, { "role": "user" }], "max_tokens": 1 }),
            200,
            "",
            "",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "w5" }], "chat_template_kwargs": { "bos_token": "w6" } }),
            400,
            "chat_template_kwargs",
            "cannot set `bos_token`",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": "w5" }], "chat_template_kwargs": { "messages": [] } }),
            400,
            "chat_template_kwargs",
            "cannot set `messages`",
        ),
        ("/v1/nowhere", json!({}), 404, "", "not found: /v1/nowhere"),
        ("/v1/models", json!({}), 405, "", "/v1/models does not support POST"),
    ] {
        let response = served.post(path, &body);
        assert_eq!(response.status, status, "{path} {body}: {}", response.body);
        if status != 200 {
            let error = response.json()["error"].clone();
            assert!(error["message"].as_str().unwrap().contains(part), "{path} {body}: {error}");
            assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{error}");
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    for body in ["", "[1]", "{\"prompt\": ", "\u{0}"] {
        let response = send(served.address, "POST", PLAINLY, &[], body).response();
        assert_eq!(response.status, 400, "{body}");
        assert!(
            response.json()["error"]["message"].as_str().unwrap().contains("the request body is not"),
            "{body}"
        );
    }
    let response = send(served.address, "GET", "/v1/models/%ff", &[], "").response();
    assert_eq!(
        (response.status, response.json()["error"]["type"].as_str()),
        (400, Some("invalid_request_error"))
    );
    let huge = format!("{{\"prompt\": \"{}\"}}", "w5 ".repeat(1 << 20));
    assert_eq!(send(served.address, "POST", PLAINLY, &[], &huge).response().status, 413);
    served.end();
    let served = serve(&Setting { without_template: true, ..PLAIN });
    let response = served.post(CHAT, &json!({ "messages": [{ "role": "user", "content": "w5" }] }));
    assert_eq!(response.status, 400);
    assert!(response.body.contains("no chat template"), "{}", response.body);
    served.end();
}

#[test]
fn small_endpoints_answer() {
    let served = serve(&PLAIN);
    let page = served.get("/");
    assert!(page.head.contains("text/html") && page.body.contains("</html>"), "{}", page.head);
    assert!(!page.body.contains("http"), "the page makes no external requests");
    assert_eq!(served.get("/health").json(), json!({ "status": "ok" }));
    assert_eq!(served.get("/ready").json(), json!({ "status": "ready" }));
    let models = served.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("tiny"), &json!("small")));
    assert_eq!(served.get("/v1/models/tiny").json()["context_length"], 64);
    assert_eq!(served.get("/v1/models/other").status, 404);
    let tokens = served.answer("/tokenize", &json!({ "prompt": "w5 w6" }));
    assert_eq!(tokens, json!({ "tokens": [1, 5, 6], "count": 3, "max_model_len": 64 }));
    let bare = served.answer("/tokenize", &json!({ "content": "w5 w6", "add_special_tokens": false }));
    assert_eq!(bare["tokens"], json!([5, 6]));
    let chat = served.answer("/tokenize", &json!({ "messages": [{ "role": "user", "content": "w5" }] }));
    assert_eq!(chat["tokens"], json!([1, 10, 5, 12]));
    assert_eq!(served.answer("/detokenize", &json!({ "tokens": [5, 6] }))["prompt"], "w5 w6");
    assert_eq!(served.answer("/detokenize", &json!({ "tokens": [1, 5] }))["prompt"], "<s> w5");
    let outside = served.post("/detokenize", &json!({ "tokens": [5, 50] }));
    assert_eq!(outside.status, 400);
    assert!(outside.body.contains("token id 50 is not below the vocabulary size 50"), "{}", outside.body);
    let nameless = served.post("/tokenize", &json!({ "text": "w5" }));
    assert!(nameless.body.contains("`prompt` (or `content`)"), "{}", nameless.body);
    served.answer(PLAINLY, &json!({ "prompt": "w5 w6", "max_tokens": 3, "ignore_eos": true }));
    for (name, value) in [
        ("generation_tokens_total", 3.0),
        ("prompt_tokens_total", 3.0),
        ("requests_completed_total", 1.0),
        ("slots", 4.0),
    ] {
        served.becomes(name, value);
    }
    served.end();
}

#[test]
fn only_authorized_requests_are_answered() {
    let served = serve(&Setting {
        keys: vec!["first".to_owned(), "second".to_owned()],
        origins: vec!["https://friend.example".to_owned()],
        ..PLAIN
    });
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        send(served.address, method, path, headers, "").response()
    };
    for (headers, status) in [
        (vec![], 401),
        (vec![("Authorization", "Bearer third")], 401),
        (vec![("Authorization", "first")], 401),
        (vec![("Authorization", "Bearer second")], 200),
        (vec![("Authorization", "Bearer second"), ("Origin", "https://friend.example")], 200),
        (vec![("Authorization", "Bearer second"), ("Origin", "https://foe.example")], 403),
        (vec![("Authorization", "Bearer second"), ("Origin", "null")], 403),
        (
            vec![("Authorization", "Bearer second"), ("Host", "localhost"), ("Origin", "http://localhost")],
            200,
        ),
    ] {
        assert_eq!(ask("GET", "/v1/models", &headers).status, status, "{headers:?}");
    }
    for (headers, expected) in
        [(vec![], "API key required"), (vec![("Authorization", "Bearer third")], "invalid API key")]
    {
        let response = ask("GET", "/v1/models", &headers).body;
        assert!(response.contains(expected), "{response}");
    }
    assert_eq!(ask("GET", "/health", &[]).status, 200);
    assert_eq!(ask("GET", "/metrics", &[]).status, 401);
    assert_eq!(ask("GET", "/v1/models", &[("authorization", "bearer second")]).status, 200);
    // A web page can read the response to a wrong key.
    let response = ask("GET", "/v1/models", &[("Origin", "https://friend.example")]);
    assert_eq!(response.status, 401);
    assert!(
        response.head.contains("access-control-allow-origin: https://friend.example"),
        "{}",
        response.head
    );
    let wanted = ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-lang");
    let preflight = ask("OPTIONS", CHAT, &[("Origin", "https://friend.example"), wanted]);
    assert!(
        preflight.head.contains(&format!("access-control-allow-headers: {}", wanted.1)),
        "{}",
        preflight.head
    );
    let preflight = ask("OPTIONS", CHAT, &[("Origin", "https://friend.example")]);
    assert_eq!(preflight.status, 204);
    assert!(
        preflight.head.contains("access-control-allow-origin: https://friend.example"),
        "{}",
        preflight.head
    );
    assert_eq!(ask("OPTIONS", CHAT, &[("Origin", "https://foe.example")]).status, 403);
    served.end();
    // Without a key the Host header is checked, because a web page may use another name for this machine (DNS
    // rebinding).
    let served = serve(&Setting { origins: vec!["https://friend.example".to_owned()], ..PLAIN });
    for (host, status) in
        [("localhost:1", 200), ("127.0.0.1", 200), ("friend.example", 200), ("foe.example", 403)]
    {
        let response = send(served.address, "GET", "/v1/models", &[("Host", host)], "").response();
        assert_eq!(response.status, status, "{host}");
    }
    served.end();
}

#[test]
fn aliases_have_names() {
    let options = crate::runtime::serve::ServerOptions {
        host: "127.0.0.1".to_owned(),
        port: 0,
        api_keys: Vec::new(),
        allow_no_api_key: false,
        queue: 1,
        origins: Vec::new(),
        aliases: vec![String::new()],
    };
    let failure = crate::runtime::serve::Server::listen(options).err().unwrap();
    assert!(failure.to_string().contains("empty name: check --alias"), "{failure}");
}
