//! Grammar-constrained generation and tool calls.

use crate::served::*;
use serde_json::{Value, json};

#[test]
fn text_follows_a_grammar() {
    let served = serve(&Setting { letters: true, ..PLAIN });
    let request = |more: Value| {
        let mut question = json!({ "prompt": "abc", "max_tokens": 60, "temperature": 1, "seed": 3 });
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    let schema = json!({
        "type": "object",
        "properties": {
            "kind": { "enum": ["cat", "dog"] },
            "age": { "type": "integer", "minimum": 0, "maximum": 20 },
        },
        "required": ["kind", "age"],
        "additionalProperties": false,
    });
    for seed in 0..10 {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "pet", "strict": true, "schema": schema } });
        for form in [json!({ "response_format": format }), json!({ "guided_json": schema })] {
            let mut question = request(form);
            question["seed"] = seed.into();
            // A model that prefers blanks would generate nothing else if the grammar allowed any number of
            // them.
            question["logit_bias"] = json!({ "21": 100 });
            let answer = served.answer(PLAINLY, &question);
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
            let pet: Value =
                serde_json::from_str(text(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"));
            assert!(!text(&answer).contains([' ', '\n']), "{answer}");
            assert!(pet["kind"] == "cat" || pet["kind"] == "dog", "{pet}");
            assert!((0..=20).contains(&pet["age"].as_i64().unwrap()), "{pet}");
        }
        let mut question = request(json!({ "guided_regex": "[a-c]{3}-[0-9]+z" }));
        question["seed"] = seed.into();
        let answer = served.answer(PLAINLY, &question);
        let (letters, rest) = text(&answer).split_once('-').unwrap_or_else(|| panic!("{answer}"));
        assert!(letters.len() == 3 && letters.chars().all(|letter| "abc".contains(letter)), "{answer}");
        let is_cut = answer["choices"][0]["finish_reason"] == "length";
        assert!(is_cut || rest.ends_with('z'), "{answer}");
        let answer =
            served.answer(PLAINLY, &request(json!({ "guided_grammar": "start: \"x\" (\"yes\" | \"no\")" })));
        assert!(["xyes", "xno"].contains(&text(&answer)), "{answer}");
        let answer =
            served.answer(PLAINLY, &request(json!({ "response_format": { "type": "json_object" } })));
        assert!(text(&answer).trim_start().starts_with('{'), "{answer}");
    }
    for (form, param, part) in [
        (json!({ "guided_regex": "(" }), "guided_regex", "unsupported grammar"),
        (json!({ "guided_grammar": "start: nothing" }), "guided_grammar", "unsupported grammar"),
        (json!({ "guided_json": { "$ref": "#" } }), "guided_json", "it matches no text"),
        (json!({ "guided_grammar": "start: start" }), "guided_grammar", "unsupported grammar"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "nonsense" } } } }),
            "response_format",
            "unsupported grammar",
        ),
        (
            json!({ "response_format": { "type": "yaml" } }),
            "response_format",
            "text, json_object or json_schema",
        ),
        (json!({ "guided_regex": "a", "guided_json": {} }), "guided_regex", "cannot be combined"),
    ] {
        let response = served.post(PLAINLY, &request(form));
        assert_eq!(response.status, 400, "{}", response.body);
        let error = response.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        assert_eq!(error["param"], param);
    }
    served.end();
}

/// Tool calls in the formats of Qwen's and Llama's templates.
pub(crate) const TAGGED: &str = "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}<tool_call>\n\
    {\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>\
    {% endfor %}{% endfor %}";
const BARE: &str = "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}\
    {\"name\": \"{{ call.function.name }}\", \"parameters\": {{ call.function.arguments | tojson }}}\
    {% endfor %}{% endfor %}";

#[test]
fn tool_calls_follow_their_schemas() {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let sky = json!({
        "type": "object",
        "properties": { "d": { "enum": ["mon", "tue"] }, "h": { "type": "integer", "minimum": 0, "maximum": 23 } },
        "required": ["d", "h"],
        "additionalProperties": false,
    });
    let tools = json!([tool("sky", sky), tool("dice", json!({ "type": "object", "maxProperties": 0 }))]);
    let check = |call: &Value| {
        assert_eq!((call["type"].as_str(), call["id"].as_str().map(str::len)), (Some("function"), Some(9)));
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        match name.as_str() {
            "sky" => assert!(
                ["mon", "tue"].contains(&arguments["d"].as_str().unwrap())
                    && (0..24).contains(&arguments["h"].as_i64().unwrap())
            ),
            "dice" => assert_eq!(arguments, json!({})),
            other => panic!("{other}"),
        }
        name
    };
    for template in [TAGGED, BARE] {
        let served = serve(&Setting { letters: true, template: Some(template), ..PLAIN });
        let mut names = std::collections::BTreeSet::new();
        for seed in 0..12 {
            let mut question = json!({
                "messages": [{ "role": "user", "content": "abc" }], "tools": tools, "seed": seed,
                "tool_choice": "required", "parallel_tool_calls": false, "temperature": 9,
                // The context is short.
                "logit_bias": { "21": -100 },
            });
            let answer = served.answer(CHAT, &question);
            let choice = &answer["choices"][0];
            assert_eq!(
                (&choice["finish_reason"], &choice["message"]["content"]),
                (&json!("tool_calls"), &Value::Null)
            );
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            names.insert(check(&calls[0]));
            // The same, streamed: first the name, then the arguments bit by bit.
            question["stream"] = true.into();
            let (mut call, mut reason) = (json!({}), Value::Null);
            for event in served.post(CHAT, &question).events() {
                let choice = &event["choices"][0];
                assert!(choice["delta"]["content"].as_str().unwrap_or_default().is_empty(), "{event}");
                if let Some(delta) = choice["delta"]["tool_calls"].get(0) {
                    assert_eq!(delta["index"], 0);
                    if delta["id"].is_string() {
                        call = delta.clone();
                    } else {
                        let more = delta["function"]["arguments"].as_str().unwrap();
                        let arguments = call["function"]["arguments"].as_str().unwrap().to_owned() + more;
                        call["function"]["arguments"] = arguments.into();
                    }
                }
                reason = choice["finish_reason"].clone();
            }
            assert_eq!(reason, "tool_calls");
            assert_eq!(call["function"], calls[0]["function"]);
            // A named function is the one that is called.
            question["stream"] = false.into();
            question["tool_choice"] = json!({ "type": "function", "function": { "name": "dice" } });
            let answer = served.answer(CHAT, &question);
            assert_eq!(check(&answer["choices"][0]["message"]["tool_calls"][0]), "dice");
            // tool_choice auto: once the model opens a call, the grammar constrains it.
            question["tool_choice"] = "auto".into();
            question["temperature"] = 2.into();
            if template == TAGGED {
                question["logit_bias"] = json!({ "21": -100, "48": 4 });
            }
            let choice = served.answer(CHAT, &question)["choices"][0].clone();
            for call in choice["message"]["tool_calls"].as_array().unwrap_or(&Vec::new()) {
                if choice["finish_reason"] == "tool_calls" {
                    check(call);
                    names.insert("freely".to_owned());
                }
            }
            // With `tool_choice` none, no tool may be called.
            question["tool_choice"] = "none".into();
            assert_eq!(served.answer(CHAT, &question)["choices"][0]["message"].get("tool_calls"), None);
        }
        let wanted = if template == TAGGED { 3 } else { 2 };
        assert!(names.len() >= wanted, "{names:?}");
        // The call and its result are appended to the conversation.
        let call = json!({ "id": "abcdefghi", "type": "function", "function": { "name": "dice", "arguments": "{}" } });
        let messages = json!([
            { "role": "user", "content": "abc" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "abcdefghi", "content": "6" },
        ]);
        served.answer(CHAT, &json!({ "messages": messages, "tools": tools, "max_tokens": 3 }));
        for (more, param, part) in [
            (json!({ "tool_choice": "sometimes" }), "tool_choice", "none, auto, required"),
            (json!({ "tool_choice": { "function": { "name": "x" } } }), "tool_choice", "not in `tools`"),
            (json!({ "tools": [], "tool_choice": "required" }), "tool_choice", "requires `tools`"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools", "a function with a name"),
            (json!({ "tool_choice": "required", "guided_regex": "a" }), "tools", "JSON output only"),
        ] {
            let mut question = json!({ "messages": messages, "tools": tools });
            question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let response = served.post(CHAT, &question);
            let error = response.json()["error"].clone();
            assert_eq!((response.status, error["param"].as_str()), (400, Some(param)), "{error}");
            assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        }
        served.end();
    }
    let served = serve(&PLAIN);
    let response =
        served.post(CHAT, &json!({ "messages": [{ "role": "user", "content": "w5" }], "tools": tools }));
    assert!(response.body.contains("this model's chat template does not support tools"), "{}", response.body);
    assert_eq!(served.post("/v1/embeddings", &json!({ "input": "w5" })).status, 404);
    served.end();
}
