//! The Responses API of OpenAI.

use crate::constrained::TAGGED;
use crate::served::*;
use serde_json::{Value, json};

#[test]
fn responses_are_the_same_answers_in_another_shape() {
    let served = serve(&PLAIN);
    let mut question = json!({
        "instructions": "w20", "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "w21 w22" }] }],
        "max_output_tokens": 9, "temperature": 0, "ignore_eos": true, "store": false,
    });
    let whole = served.answer("/v1/responses", &question);
    let messages = json!([{ "role": "system", "content": "w20" }, { "role": "user", "content": "w21 w22" }]);
    let chat = json!({ "messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": true });
    let chat = served.answer(CHAT, &chat);
    assert_eq!(whole["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!((&whole["status"], &whole["usage"]["output_tokens"]), (&json!("incomplete"), &json!(9)));
    assert_eq!(whole["output"][0]["status"], "incomplete");
    assert!(whole["id"].as_str().unwrap().starts_with("resp_"), "{whole}");
    // The response repeats the request's parameters.
    assert_eq!((&whole["instructions"], &whole["max_output_tokens"]), (&json!("w20"), &json!(9)));
    assert_eq!((&whole["temperature"], &whole["tools"]), (&json!(0.0), &json!([])));
    question["stream"] = true.into();
    let body = served.post("/v1/responses", &question).body;
    let events: Vec<Value> = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert!(events.iter().enumerate().all(|(number, event)| event["sequence_number"] == number));
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds.iter().map(|kind| kind.trim_start_matches("response.")).collect::<Vec<_>>(),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "incomplete",
        ]
    );
    let streamed: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(streamed, chat["choices"][0]["message"]["content"]);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    for (more, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "computer_call" }] }), "input"),
    ] {
        let mut question = question.clone();
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = served.post("/v1/responses", &question);
        assert_eq!((response.status, response.json()["error"]["param"].as_str()), (400, Some(param)));
    }
    served.end();
    // Calls and their results.
    let served = serve(&Setting { letters: true, template: Some(TAGGED), ..PLAIN });
    let schema = json!({ "type": "object", "properties": { "d": { "enum": ["mon", "tue"] } }, "required": ["d"], "additionalProperties": false });
    let mut question = json!({
        "input": "abc",
        "tools": [{ "type": "function", "name": "sky", "parameters": schema, "strict": true }],
        "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": { "21": -100 },
    });
    let call = served.answer("/v1/responses", &question)["output"][0].clone();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("sky")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["mon", "tue"].contains(&arguments["d"].as_str().unwrap()));
    // The call and its result are sent back: the context has space for only a few more letters.
    question["input"] = json!([
        { "role": "user", "content": "abc" },
        { "type": "function_call", "call_id": "abcdefghi", "name": "sky", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "abcdefghi", "output": "a" },
    ]);
    question["tool_choice"] = "none".into();
    question["max_output_tokens"] = 3.into();
    let answer = served.answer("/v1/responses", &question);
    assert!(answer["usage"]["input_tokens"].as_u64().unwrap() >= 40, "{answer}");
    served.end();
}
