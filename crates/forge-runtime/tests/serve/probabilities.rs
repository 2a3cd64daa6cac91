//! Log probabilities of generated and prompt tokens.

use crate::served::*;
use serde_json::{Value, json};

#[test]
fn log_probabilities_are_returned_on_request() {
    let served = serve(&PLAIN);
    let messages = json!([{ "role": "user", "content": "w5 w6" }]);
    let mut question = json!({ "messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": true, "top_logprobs": 3 });
    let answer = served.answer(CHAT, &question);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (3, &entry["token"]));
        let of = |i: usize| top[i]["logprob"].as_f64().unwrap();
        assert!(of(0) < 0.0 && of(0) >= of(1) && of(1) >= of(2), "{entry}");
        assert_eq!(entry["logprob"], top[0]["logprob"]);
    }
    question["stream"] = true.into();
    let streamed: Vec<Value> = served
        .post(CHAT, &question)
        .events()
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(&streamed, content);
    let plain =
        served.answer(PLAINLY, &json!({ "prompt": "w5", "max_tokens": 3, "temperature": 0, "logprobs": 2 }));
    let logprobs = &plain["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    served.end();
}

/// The lists of `logprobs` of a plain completion, of one text or of the pieces of a stream.
fn lists(choices: &[&Value], name: &str) -> Vec<Value> {
    choices
        .iter()
        .flat_map(|choice| choice["logprobs"][name].as_array().cloned().unwrap_or_default())
        .collect()
}

#[test]
fn completion_text_offsets_match_their_tokens() {
    let served = serve(&PLAIN);
    let mut question = json!({
        "prompt": [1, 5, 6], "max_tokens": 6, "temperature": 0, "logprobs": 2, "echo": true,
        "logit_bias": { "0": -100, "1": -100, "2": -100 },
    });
    let answer = served.answer(PLAINLY, &question);
    let choice = &answer["choices"][0];
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let tokens = lists(&[choice], "tokens");
    let offsets = lists(&[choice], "text_offset");
    // A special token has no text in the completion, but has an entry with its name.
    assert_eq!((&tokens[0], &offsets[..2]), (&json!("<s>"), &[json!(0), json!(0)][..]), "{answer}");
    for (token, offset) in tokens.iter().zip(&offsets).skip(1) {
        let rest: String = text[offset.as_u64().unwrap() as usize..].iter().collect();
        assert!(rest.trim_start().starts_with(token.as_str().unwrap()), "{token} at {offset}: {answer}");
    }
    question["stream"] = true.into();
    let events = served.post(PLAINLY, &question).events();
    let pieces: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    assert_eq!((lists(&pieces, "tokens"), lists(&pieces, "text_offset")), (tokens, offsets));
    served.end();
}

#[test]
fn the_chosen_token_is_among_the_likeliest() {
    let served = serve(&PLAIN);
    // 16 sampled tokens are not all the most probable ones.
    let question = json!({ "prompt": "w5", "max_tokens": 16, "temperature": 5, "seed": 3, "logprobs": 1, "ignore_eos": true });
    let answer = served.answer(PLAINLY, &question);
    let logprobs = &answer["choices"][0]["logprobs"];
    let tops = logprobs["top_logprobs"].as_array().unwrap();
    for (at, top) in tops.iter().enumerate() {
        let token = logprobs["tokens"][at].as_str().unwrap();
        assert_eq!(top[token], logprobs["token_logprobs"][at], "{answer}");
    }
    assert!(tops.iter().any(|top| top.as_object().unwrap().len() == 2), "{answer}");
    served.end();
}

/// Log probabilities of a prompt equal those of the same text when it was generated, because of batch
/// invariance.
#[test]
fn echo_returns_the_prompt() {
    let served = serve(&PLAIN);
    let prompt = ids(3, 40);
    let mut question = greedy(&prompt, 9);
    question["logprobs"] = 2.into();
    // Tokens whose text identifies them.
    question["logit_bias"] = json!({ "0": -100, "1": -100, "2": -100 });
    let answer = served.answer(PLAINLY, &question);
    let written = &answer["choices"][0];
    let ids_written = text(&answer).split(' ').map(|word| word[1..].parse().unwrap());
    let all: Vec<usize> = prompt.iter().copied().chain(ids_written).collect();
    for count in [0, 1] {
        let mut question = greedy(&all, count);
        (question["logprobs"], question["echo"]) = (2.into(), true.into());
        let answer = served.answer(PLAINLY, &question);
        let echoed = &answer["choices"][0];
        assert_eq!(echoed["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], count);
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(echoed["logprobs"][list].as_array().unwrap().len(), all.len() + count, "{list}");
        }
        assert!(
            echoed["logprobs"]["token_logprobs"][0].is_null()
                && echoed["logprobs"]["top_logprobs"][0].is_null()
        );
        for list in ["tokens", "token_logprobs", "top_logprobs"] {
            let of_echo = &echoed["logprobs"][list].as_array().unwrap()[prompt.len()..all.len()];
            assert_eq!(of_echo, written["logprobs"][list].as_array().unwrap(), "{list}");
        }
        let words: Vec<String> = all.iter().map(|id| format!("w{id}")).collect();
        assert!(text(&answer).starts_with(&words.join(" ")), "{answer}");
        // Streamed, the lists are the same.
        question["stream"] = true.into();
        let events = served.post(PLAINLY, &question).events();
        let pieces: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(pieces, text(&answer));
    }
    // Without log probabilities there is only text, and the prefix is reused.
    let mut question = greedy(&all, 0);
    question["echo"] = true.into();
    let answer = served.answer(PLAINLY, &question);
    assert!(text(&answer).starts_with("w") && answer["choices"][0]["logprobs"].is_null());
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], all.len() - 1);
    served.end();
}

#[test]
fn byte_fallback_returns_the_tokens_bytes() {
    let served = serve(&Setting { letters: true, ..PLAIN });
    // The first token is the tokenizer's blank, the second a special token.
    for (token, shown, bytes) in [(21, " ", json!([32])), (1, "<s>", json!([60, 115, 62]))] {
        let question = json!({
            "messages": [{ "role": "user", "content": "abc" }], "max_tokens": 1, "temperature": 0,
            "logprobs": true, "logit_bias": { token.to_string(): 100 },
        });
        let answer = served.answer(CHAT, &question);
        let entry = &answer["choices"][0]["logprobs"]["content"][0];
        assert_eq!((&entry["token"], &entry["bytes"]), (&json!(shown), &bytes), "{answer}");
    }
    served.end();
}
